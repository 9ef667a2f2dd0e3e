"""The ROC polyline: its vertices, and its area inside a rectangle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.order import has_nan, split_classes

__all__ = (
    "clip_polyline",
    "count_by_score",
    "nan_points",
    "polyline_area",
    "polyline_vertices",
    "roc_points",
    "roc_polyline",
)


def count_by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number of positives and of negatives at each distinct score, highest score first.

    Args:
        scores: tensor of any shape and real dtype.
        labels: tensor of the same shape; rows labelled neither 1 nor 0 are left out.

    Returns:
        Two int64 tensors ``(G,)``, one entry per distinct score, and the scores.
    """
    pos, neg = split_classes(scores, labels)
    distinct, place = torch.unique(torch.cat([pos, neg]), return_inverse=True)
    size = distinct.shape[0]
    pos_counts = torch.bincount(place[: pos.shape[0]], minlength=size)
    neg_counts = torch.bincount(place[pos.shape[0] :], minlength=size)
    return pos_counts.flip(0), neg_counts.flip(0), distinct.flip(0)


def polyline_area(pos_counts: Tensor, neg_counts: Tensor, min_tpr: float, max_fpr: float) -> Tensor:
    r"""Area of a ROC polyline inside the rectangle, over the rectangle's area.

    Segment g of the polyline rises by ``pos_counts[g]`` while it runs right by ``neg_counts[g]``. The area is
    integrated over the height: at a true positive count :math:`t` the part of the rectangle under the curve is
    :math:`\max(0, \theta_1 n_- - FP(t))` wide, and :math:`FP` is linear on each segment.

    Args:
        pos_counts: int64 tensor ``(G,)``, non-negative.
        neg_counts: same shape.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan if a class is empty.

    Example:
        >>> polyline_area(torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), min_tpr=0.0, max_fpr=1.0)
        tensor(0.6250, dtype=torch.float64)
    """
    pos, neg = pos_counts.to(torch.float64), neg_counts.to(torch.float64)
    n_pos, n_neg = pos.sum(), neg.sum()
    least_tp, most_fp = min_tpr * n_pos, max_fpr * n_neg
    # Where each segment starts; summed as integers, since CUDA has no deterministic cumsum of floats.
    tp, fp = pos_counts.cumsum(0) - pos_counts, neg_counts.cumsum(0) - neg_counts
    room = (most_fp - fp).clamp(min=0)
    # The part [start, end] of a segment, in shares of it, that runs inside the rectangle.
    start = ((least_tp - tp) / pos.clamp(min=1)).clamp(0, 1)
    end = torch.where(neg > 0, room / neg.clamp(min=1), (room > 0).to(torch.float64)).clamp(max=1)
    share = torch.where(pos > 0, (end - start).clamp(min=0), 0)
    # Height times width less what lies left of the curve: a perfect curve loses nothing and gives exactly 1.
    top = torch.where(share > 0, tp + pos * end, least_tp).amax()
    lost = (pos * share * (fp + neg * (start + end) / 2)).sum()
    return ((most_fp * (top - least_tp) - lost) / (most_fp * (n_pos - least_tp))).clamp(0, 1)


def roc_polyline(preds: Tensor, target: Tensor, drop_collinear: bool = True) -> tuple[Tensor, Tensor]:
    """Vertices of the ROC polyline, one per distinct score, from (0, 0) to (1, 1).

    Args:
        preds: scores, tensor of any shape and real dtype; larger means more positive.
        target: tensor of the same shape with 1 for positives and 0 for negatives; other rows are left out.
        drop_collinear: leave out vertices inside straight pieces; the curve stays the same.

    Returns:
        ``(fpr, tpr)``: two float64 tensors ``(V,)``, both non-decreasing; nan for a class that is empty, and throughout
        if a score is nan.

    Example:
        >>> fpr, tpr = roc_polyline(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    return roc_points(preds, target, drop_collinear=drop_collinear)[:2]


@eager
def roc_points(preds: Tensor, target: Tensor, drop_collinear: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices of :func:`roc_polyline`, each with the threshold that the scores up to it reach.

    Example:
        >>> roc_points(torch.tensor([0.5, 0.25]), torch.tensor([1, 0]))[2].tolist()
        [inf, 0.5, 0.25]
    """
    pos_counts, neg_counts, scores = count_by_score(preds, target)
    if has_nan(scores):
        return nan_points(scores.device)
    return polyline_vertices(pos_counts, neg_counts, scores, drop_collinear)


def nan_points(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rates of scores that have no rank."""
    fpr, tpr, thresholds = torch.full((3, 2), math.nan, dtype=torch.float64, device=device)
    return fpr, tpr, thresholds


def polyline_vertices(
    pos_counts: Tensor, neg_counts: Tensor, scores: Tensor, drop_collinear: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Vertices of one polyline whose segments are given by whole numbers ``(G,)``, as in :func:`polyline_area`.

    Args:
        pos_counts: int64 tensor ``(G,)``, non-negative.
        neg_counts: same shape.
        scores: threshold that is reached at the end of each segment, same shape.
        drop_collinear: leave out vertices inside straight pieces.

    Returns:
        ``(fpr, tpr, thresholds)``: three float64 tensors ``(V,)``; the first threshold is infinite.
    """
    occupied = pos_counts + neg_counts > 0
    pos_counts, neg_counts, scores = pos_counts[occupied], neg_counts[occupied], scores[occupied]
    if drop_collinear and pos_counts.shape[0] > 1:
        turns = pos_counts[1:] * neg_counts[:-1] != pos_counts[:-1] * neg_counts[1:]
        used = torch.cat([turns, turns.new_ones(1)])
    else:
        used = torch.ones_like(pos_counts, dtype=torch.bool)
    origin = pos_counts.new_zeros(1)
    tp = torch.cat([origin, pos_counts.cumsum(0)[used]]).to(torch.float64)
    fp = torch.cat([origin, neg_counts.cumsum(0)[used]]).to(torch.float64)
    reached = scores[used].to(torch.float64)
    return fp / fp[-1], tp / tp[-1], torch.cat([reached.new_full((1,), math.inf), reached])


def clip_polyline(fpr: Tensor, tpr: Tensor, min_tpr: float, max_fpr: float) -> tuple[Tensor, Tensor]:
    """The part of a ROC polyline inside the rectangle, with interpolated vertices on its borders.

    Args:
        fpr: non-decreasing float tensor ``(V,)`` from 0 to 1.
        tpr: non-decreasing float tensor ``(V,)`` from 0 to 1.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].

    Returns:
        ``(fpr, tpr)``: tensors ``(U,)`` in the rectangle, from its lower border to its right border; empty if the curve
        passes below its lower right corner, or is nan.

    Raises:
        ArgumentError: if the rectangle is empty or not inside the unit square.

    Example:
        >>> fpr, tpr = clip_polyline(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.5, 1.0]), 0.6, 0.5)
        >>> fpr, tpr
        (tensor([0.2000, 0.5000]), tensor([0.6000, 0.7500]))
    """
    min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
    last_low = int((tpr <= min_tpr).sum()) - 1  # the segment from here on crosses the lower border
    first_right = int((fpr < max_fpr).sum())  # the segment up to here crosses the right border
    left = _between(fpr, tpr, last_low, min_tpr)
    right = _between(tpr, fpr, first_right - 1, max_fpr)
    if not (left <= max_fpr and right >= min_tpr):  # also where a class is empty and rates are nan
        return fpr[:0], tpr[:0]
    inner = slice(last_low + 1, first_right)
    return (
        torch.cat([left.view(1), fpr[inner], fpr.new_tensor([max_fpr])]),
        torch.cat([tpr.new_tensor([min_tpr]), tpr[inner], right.view(1)]),
    )


def _between(values: Tensor, along: Tensor, k: int, position: float) -> Tensor:
    """Value at ``position`` of ``along``, linear between the vertices k and k + 1."""
    share = (position - along[k]) / (along[k + 1] - along[k])
    return values[k] + share * (values[k + 1] - values[k])
