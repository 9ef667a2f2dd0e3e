"""The ROC polyline: its vertices, from scores or from counts at thresholds, and its area inside the rectangle."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.functional import checks


def count_by_score(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number of positives and of negatives at each distinct score, highest first, int64 ``(G,)``, and the scores."""
    pos, neg = split_classes(scores, labels)
    distinct, place = torch.unique(torch.cat([pos, neg]), return_inverse=True)
    size = distinct.shape[0]
    pos_counts = torch.bincount(place[: pos.shape[0]], minlength=size)
    neg_counts = torch.bincount(place[pos.shape[0] :], minlength=size)
    return pos_counts.flip(0), neg_counts.flip(0), distinct.flip(0)


def polyline_area(pos_counts: Tensor, neg_counts: Tensor, min_tpr: float, max_fpr: float) -> Tensor:
    r"""Area of a ROC polyline inside the rectangle, over the rectangle's area: float64 ``()``; nan if a class is empty.

    Segment g of the polyline rises by ``pos_counts[g]`` while it runs right by ``neg_counts[g]``, int64 ``(G,)``. The
    area is integrated over the height: at a true positive count :math:`t` the part of the rectangle under the curve is
    :math:`\max(0, \theta_1 n_- - FP(t))` wide, and :math:`FP` is linear on each segment.
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


def roc_polyline(preds: Any, target: Any, drop_collinear: bool = True) -> tuple[Tensor, Tensor]:
    """Vertices of the ROC polyline, one per distinct score, from (0, 0) to (1, 1).

    Args:
        preds: scores, a tensor, array or list of any shape and real dtype; larger means more positive.
        target: labels of the same shape, 1 for positives and 0 for negatives; other rows are left out.
        drop_collinear: leave out vertices inside straight pieces; the curve stays the same.

    Returns:
        ``(fpr, tpr)``: two float64 tensors ``(V,)``, both non-decreasing; nan for a class that is empty, and throughout
        if a score is nan.

    Example:
        >>> fpr, tpr = roc_polyline(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    return roc_points(*checks.as_pair(preds, target), drop_collinear=drop_collinear)[:2]


@checks.eager
def roc_points(preds: Tensor, target: Tensor, drop_collinear: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices of :func:`roc_polyline`, each with the threshold that the scores up to it reach."""
    pos_counts, neg_counts, scores = count_by_score(preds, target)
    return polyline_vertices(pos_counts, neg_counts, scores, drop_collinear, any_nan=has_nan(scores))


def polyline_vertices(
    pos_counts: Tensor, neg_counts: Tensor, scores: Tensor, drop_collinear: bool = True, any_nan: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The polyline whose segments end at these thresholds ``(G,)``: ``(fpr, tpr, thresholds)``, the first infinite."""
    if any_nan:  # which has no rank
        fpr, tpr, thresholds = torch.full((3, 2), math.nan, dtype=torch.float64, device=scores.device)
        return fpr, tpr, thresholds
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


def as_thresholds(thresholds: Any) -> Tensor:
    """The thresholds as a float64 tensor ``(T,)`` in ascending order; an int T means T of them evenly on [0, 1].

    They lie on the CPU, whatever the default device: a model that is made on the meta device can't make up its own.
    """
    if checks.is_whole(thresholds):
        checks.check_count(thresholds, "thresholds", 2)
        return torch.linspace(0, 1, int(thresholds), dtype=torch.float64, device="cpu")
    try:
        values = checks.as_tensor(thresholds, "thresholds").detach().cpu()
    except ArgumentError:  # text
        values = torch.empty(0, device="cpu")
    if values.dtype == torch.bool or values.ndim != 1 or not values.numel() or bool(values.isnan().any()):
        wanted = "`None`, an integer, or numbers in one dimension, at least one and no nan"
        msg = f"Expected `thresholds` to be {wanted}, but got {thresholds!r}."
        raise ArgumentError(msg)
    return values.to(torch.float64).sort().values


def confusion_counts(scores: Tensor, labels: Tensor, thresholds: Tensor) -> Tensor:
    """Counts by threshold, column, label and whether the score reaches the threshold, int64 ``(T, [K,] 2, 2)``.

    Scores are ``(N,)`` or ``(N, K)``, thresholds ascend. They are rounded to float32 for scores of at most that
    precision, so that a score of 0.7 reaches the threshold 0.7 in either.
    """
    scores, labels = scores.detach(), labels.detach()
    low_precision = scores.is_floating_point() and scores.dtype != torch.float64
    if scores.device.type == "mps" and not low_precision:  # Apple's GPUs know no float64
        scores, labels = scores.cpu(), labels.cpu()
    dtype = torch.float32 if low_precision else torch.float64
    edges = thresholds.to(dtype).to(scores.device)
    size, columns = edges.shape[0] + 1, scores.shape[1:]
    # 0 .. T: how many thresholds the score reaches
    reached = torch.bucketize(scores.to(dtype).contiguous(), edges, right=True)
    # Entries of neither class fill a third histogram, which is dropped: cheaper than to take them out.
    kind = torch.where(labels == 1, size, torch.where(labels == 0, 0, 2 * size))
    place = reached + kind
    if columns:
        place = place + 3 * size * torch.arange(columns[0], device=place.device)
    histogram = torch.bincount(place.reshape(-1), minlength=3 * size * columns.numel())
    counted = histogram.view(*columns, 3, size)[..., :2, :]
    # [column, label, k]: scores that reach at least k thresholds
    at_least = counted.flip(-1).cumsum(-1).flip(-1)
    reaching = at_least[..., 1:]
    return torch.stack([at_least[..., :1] - reaching, reaching], dim=-1).movedim(-2, 0).contiguous()


def count_nan(scores: Tensor, labels: Tensor) -> Tensor:
    """How many scores labelled 1 or 0 are nan, int64 ``()`` or ``(K,)``; confusion counts take them for the best."""
    labels = labels.detach()
    return (checks.rankable(scores).isnan() & ((labels == 1) | (labels == 0))).sum(0)


def binned_segments(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rises and runs, each int64 ``(T + 1,)``, of the polyline through the ROC points of counts ``(T, 2, 2)``."""
    totals = counts[0].sum(1)  # negatives, positives
    points = torch.cat([torch.zeros_like(totals)[None], counts[:, :, 1].flip(0), totals[None]])
    runs, rises = points.diff(dim=0).unbind(1)
    return rises, runs


def binned_roc(counts: Tensor, num_nan: int, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ROC polyline of confusion counts ``(T, 2, 2)``: ``(fpr, tpr, thresholds)``, each ``(V,)``."""
    reached = torch.cat([thresholds.flip(0), thresholds.new_tensor([-math.inf])])
    return polyline_vertices(*binned_segments(counts), reached, any_nan=bool(num_nan))


def ranked_classes(
    preds: Any, target: Any, ignore_index: int | None, validate_args: bool, value: str
) -> tuple[Tensor, Tensor, bool]:
    """Scores of both classes, and whether they can't be ranked; then a warning says why there is no ``value``."""
    if validate_args:
        checks.check_ignore_index(ignore_index)
    pos, neg = split_classes(*checks.checked_pair(preds, target, ignore_index, values=validate_args))
    reason = why_undefined(pos.shape[0], neg.shape[0], has_nan(pos) or has_nan(neg))
    if reason:
        warn_on_rank_zero(f"The {value} is nan: {reason}")
    return pos, neg, bool(reason)


def why_undefined(num_pos: int, num_neg: int, any_nan: bool) -> str:
    """Why there is no area, for a sentence; empty if there is one."""
    if num_pos and num_neg:
        return (
            "some scores are nan, which have no rank. Are the inputs nan, or has the model diverged?" if any_nan else ""
        )
    missing = "example" if not num_pos and not num_neg else "positive example" if not num_pos else "negative example"
    return (
        f"there was no {missing} to rank. "
        "This is normal for a few batches of a sanity check; evaluate on a set that holds both classes."
    )


class Segment(NamedTuple):
    """The piece of the ROC polyline of one score: from (fp, tp) it rises by num_pos and runs right by num_neg."""

    score: float
    tp: int
    fp: int
    num_pos: int
    num_neg: int

    def area(self, start: float, most_fp: float) -> float:
        r"""Area right of the segment: :math:`p \int_{start}^{1} \max(0, \theta_1 n_- - fp - n u) du`."""
        room = most_fp - self.fp
        if room <= 0:
            return 0.0
        end = 1.0 if self.num_neg <= room else room / self.num_neg
        return self.num_pos * max(0.0, end - start) * (room - self.num_neg * (start + end) / 2)


def segment_at(score: Tensor, pos: Tensor, neg: Tensor) -> Segment:
    """The segment of a ``score``, shape ``()``, that occurs among ``pos`` or ``neg``."""
    value = score.item()
    (tp, tp_end), (fp, fp_end) = count_above(pos, value), count_above(neg, value)
    return Segment(value, tp, fp, tp_end - tp, fp_end - fp)


def exact_area(pos: Tensor, neg: Tensor, min_tpr: float, max_fpr: float) -> float:
    r"""Normalised area for at least one score of each class.

    Walking up the curve, the rectangle is entered on the segment of the :math:`\theta_0 n_+`-th lowest positive's
    score, ``first``, and left at the latest on that of the :math:`\theta_1 n_-`-th highest negative's, ``last``. Only
    scores between the two have to be put in order, and of these only pairs are counted: in whole numbers, so the result
    does not depend on the order of the samples.
    """
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    least_tp, most_fp = min_tpr * n_pos, max_fpr * n_neg
    total = most_fp * (n_pos - least_tp)

    low_pos = sorted_ranks(pos, 0, math.ceil(n_pos - least_tp))
    first = segment_at(low_pos[-1], pos, neg)
    start = (least_tp - first.tp) / first.num_pos
    fp = first.fp + first.num_neg
    if fp >= most_fp:
        return _clamp(first.area(start, most_fp) / total)

    high_neg = sorted_ranks(neg, n_neg - fp - math.ceil(most_fp - fp), n_neg - fp)
    last = segment_at(high_neg[0], pos, neg)
    pos_mid = between(low_pos, last.score, first.score)
    neg_mid = between(high_neg, last.score, first.score)
    # Height times width, less what lies left of the curve: a perfect curve loses nothing and gives exactly 1.
    height = last.tp - least_tp
    lost_first = first.num_pos * (1 - start) * (first.fp + first.num_neg * (1 + start) / 2)
    lost_mid = pos_mid.shape[0] * fp + count_pairs(pos_mid, neg_mid) / 2
    return _clamp((most_fp * height - (lost_first + lost_mid) + last.area(0.0, most_fp)) / total)


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))


# ---------------------------------------------------------------- splitting, selecting and counting scores
# On the CPU sorting and selecting go through numpy, which shares the tensor's memory and whose SIMD kernels sort ten
# million float32 scores some fifteen times and select from them ten times as fast as torch 2.14's.


def has_nan(scores: Tensor) -> bool:
    """Whether a score is nan, in one pass without a mask: the largest is nan then."""
    return scores.is_floating_point() and scores.numel() > 0 and bool(scores.amax().isnan())


def split_classes(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rankable scores of the entries labelled 1 and of those labelled 0; any other label counts for neither."""
    scores = checks.rankable(scores)
    if scores.device.type == "mps":  # Apple's GPUs know no float64, which the areas are computed in
        scores, labels = scores.cpu(), labels.cpu()
    scores, labels = scores.reshape(-1), labels.detach().reshape(-1)
    if scores.device.type == "cpu":
        values, kinds = scores.numpy(), labels.numpy()
        return torch.from_numpy(values[kinds == 1]), torch.from_numpy(values[kinds == 0])
    return scores[labels == 1], scores[labels == 0]


def sorted_ranks(values: Tensor, start: int, stop: int) -> Tensor:
    """The values of rank ``start`` to ``stop - 1``, counted from 0 at the smallest, in ascending order."""
    if values.device.type != "cpu":
        return values.sort().values[start:stop]
    part = values.numpy().copy()
    # One rank at a time: numpy's kernel for several is five times as slow as the one for one.
    if start > 0:
        part.partition(start)
        part = part[start:]
    if stop - start < part.shape[0]:
        part.partition(stop - start - 1)
        part = part[: stop - start]
    part.sort()
    return torch.from_numpy(part)


def count_above(values: Tensor, threshold: float) -> tuple[int, int]:
    """How many of the ``values`` (n,) lie above ``threshold``, one of that dtype's numbers, and how many reach it."""
    if values.device.type == "cpu":
        array = values.numpy()
        return int(np.count_nonzero(array > threshold)), int(np.count_nonzero(array >= threshold))
    return int(torch.count_nonzero(values > threshold)), int(torch.count_nonzero(values >= threshold))


def between(values: Tensor, low: float, high: float) -> Tensor:
    """Those of the ascending ``values`` (n,) with ``low`` < value < ``high``; both are numbers of that dtype."""
    bounds = torch.tensor([low, high], dtype=values.dtype, device=values.device)
    first = int(torch.searchsorted(values, bounds[:1], right=True))
    return values[first : int(torch.searchsorted(values, bounds[1:]))]


def count_pairs(pos_scores: Tensor, neg_scores: Tensor) -> int:
    """Twice the number of pairs of ascending scores whose negative is higher, plus the number of tied pairs."""
    # Looking the smaller class up in the larger takes the fewest searches; sorted look-ups stay in the cache.
    flipped = neg_scores.shape[0] < pos_scores.shape[0]
    keys, among = (neg_scores, pos_scores) if flipped else (pos_scores, neg_scores)
    below = int(torch.searchsorted(among, keys).sum()) + int(torch.searchsorted(among, keys, right=True).sum())
    return below if flipped else 2 * keys.shape[0] * among.shape[0] - below
