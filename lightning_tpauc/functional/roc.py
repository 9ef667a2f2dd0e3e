"""The ROC polyline: its vertices, from scores or from counts at thresholds, and its area inside the rectangle."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.functional import checks


class Steps(NamedTuple):
    """The ROC polyline piece by piece: from (fp, tp) each rises by ``pos`` and runs right by ``neg``, float64 ``(G,)``.

    There is one for each distinct score of a positive, the lowest first; between two of them the polyline runs right.
    """

    score: Tensor
    tp: Tensor
    fp: Tensor
    pos: Tensor
    neg: Tensor
    #: All positives and all negatives, ``()``.
    num_pos: Tensor
    num_neg: Tensor


def roc_steps(pos: Tensor, neg: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> Steps:
    """The steps of scores ``(P,)`` and ``(N,)``, both not empty; counted, or summed by weights of the same shapes.

    Everything is a look-up in sorted scores, and sums of counts are exact: the order of examples does not matter.
    """
    (pos, pos_sums), (neg, neg_sums) = (
        (sorted_ranks(own, 0, own.shape[0]), None) if weights is None else _sorted_sums(own, weights[k])
        for k, own in enumerate((pos, neg))
    )
    score, counts = torch.unique_consecutive(pos, return_counts=True)
    ends = counts.cumsum(0)
    below, reached = torch.searchsorted(neg, score), torch.searchsorted(neg, score, right=True)

    def total(sums: Tensor | None, places: Tensor) -> Tensor:
        return places.double() if sums is None else sums[places]

    num_pos, num_neg = total(pos_sums, ends[-1]), total(neg_sums, ends.new_tensor(neg.shape[0]))
    upto, upto_neg = total(pos_sums, ends), total(neg_sums, reached)
    rises, runs = upto - total(pos_sums, ends - counts), upto_neg - total(neg_sums, below)
    return Steps(score, num_pos - upto, num_neg - upto_neg, rises, runs, num_pos, num_neg)


def _sorted_sums(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending scores, and the sums of the weights of the first 0, 1, ... of them, on the CPU."""
    scores, order = scores.cpu().sort(stable=True)
    weights = weights.cpu().double()[order]
    return scores, torch.cat([weights.new_zeros(1), weights.cumsum(0)])


def steps_area(steps: Steps, min_tpr: float, max_fpr: float) -> Tensor:
    r"""Area of a ROC polyline inside the rectangle, over the rectangle's area: float64 ``()``; nan if a class is empty.

    It is integrated over the height: at a true positive count :math:`t` the part of the rectangle under the curve is
    :math:`\max(0, \theta_1 n_- - FP(t))` wide, and :math:`FP` is linear on each step.
    """
    _, tp, fp, pos, neg, num_pos, num_neg = steps
    least_tp, most_fp = min_tpr * num_pos, max_fpr * num_neg
    room = (most_fp - fp).clamp(min=0)
    # The part [start, end] of a step, in shares of it, that runs inside the rectangle.
    start = ((least_tp - tp) / torch.where(pos > 0, pos, 1)).clamp(0, 1)
    end = torch.where(neg > 0, room / torch.where(neg > 0, neg, 1), (room > 0).to(torch.float64)).clamp(max=1)
    share = torch.where(pos > 0, (end - start).clamp(min=0), 0)
    # Height times width less what lies left of the curve: a perfect curve loses nothing and gives exactly 1.
    top = torch.where(share > 0, tp + pos * end, least_tp).amax()
    lost = (pos * share * (fp + neg * (start + end) / 2)).sum()
    return ((most_fp * (top - least_tp) - lost) / (most_fp * (num_pos - least_tp))).clamp(0, 1)


def exact_area(
    pos: Tensor, neg: Tensor, min_tpr: float, max_fpr: float, weights: tuple[Tensor, Tensor] | None = None
) -> float:
    """Normalised area for at least one score of each class."""
    return float(steps_area(roc_steps(pos, neg, weights), min_tpr, max_fpr))


def count_by_score(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Number, or weight, of positives and of negatives at each distinct score, highest first, ``(G,)``; the scores."""
    pos, neg = split_classes(scores, labels)
    distinct, place = torch.unique(torch.cat([pos, neg]), return_inverse=True)
    own = (None, None) if weights is None else split_classes(weights.double(), labels)
    places = place[: pos.shape[0]], place[pos.shape[0] :]
    pos_counts, neg_counts = (
        each.bincount(w, minlength=distinct.shape[0]).flip(0) for each, w in zip(places, own, strict=True)
    )
    return pos_counts, neg_counts, distinct.flip(0)


def roc_polyline(
    preds: Any, target: Any, drop_collinear: bool = True, sample_weight: Any = None
) -> tuple[Tensor, Tensor]:
    """Vertices of the ROC polyline, one per distinct score, from (0, 0) to (1, 1).

    Args:
        preds: scores, a tensor, array or list of any shape and real dtype; larger means more positive.
        target: labels of the same shape, 1 for positives and 0 for negatives; other rows are left out.
        drop_collinear: leave out vertices inside straight pieces; the curve stays the same.
        sample_weight: what each example counts, of the same shape, at least 0; ``None`` is 1 for all.

    Returns:
        ``(fpr, tpr)``: two float64 tensors ``(V,)``, both non-decreasing; nan for a class that is empty, and throughout
        if a score is nan.

    Example:
        >>> fpr, tpr = roc_polyline(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    return roc_points(*checks.as_pair(preds, target, sample_weight=sample_weight), drop_collinear, sample_weight)[:2]


@checks.eager
def roc_points(
    preds: Tensor, target: Tensor, drop_collinear: bool = True, sample_weight: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices of :func:`roc_polyline`, each with the threshold that the scores up to it reach."""
    if sample_weight is not None:  # CUDA has no deterministic sums of floats
        preds, target = preds.cpu(), target.cpu()
    pos_counts, neg_counts, scores = count_by_score(preds, target, checks.as_weights(sample_weight, target))
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
    used = torch.ones_like(pos_counts, dtype=torch.bool)
    if drop_collinear:
        used[:-1] = pos_counts[1:] * neg_counts[:-1] != pos_counts[:-1] * neg_counts[1:]
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
    values = checks.as_tensor(thresholds, "thresholds").detach().cpu()
    if values.dtype == torch.bool or values.ndim != 1 or not values.numel() or bool(values.isnan().any()):
        wanted = "`None`, an integer, or numbers in one dimension, at least one and no nan"
        raise ArgumentError(f"Expected `thresholds` to be {wanted}, but got {thresholds!r}.")
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
    place = reached + torch.where(labels == 1, size, torch.where(labels == 0, 0, 2 * size))
    if columns:
        place = place + 3 * size * torch.arange(columns[0], device=place.device)
    histogram = torch.bincount(place.reshape(-1), minlength=3 * size * columns.numel())
    # [column, label, k]: scores that reach at least k thresholds
    at_least = histogram.view(*columns, 3, size)[..., :2, :].flip(-1).cumsum(-1).flip(-1)
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


def binned_area(counts: Tensor, min_tpr: float, max_fpr: float) -> float:
    """The area under that polyline."""
    ends = [own.cumsum(0).double() for own in binned_segments(counts)]
    pos, neg = (own.diff(prepend=own.new_zeros(1)) for own in ends)
    tp, fp = ends[0] - pos, ends[1] - neg
    return float(steps_area(Steps(tp, tp, fp, pos, neg, ends[0][-1], ends[1][-1]), min_tpr, max_fpr))


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
        return "some scores are nan, which have no rank: look at the inputs for nan." if any_nan else ""
    missing = "example" if not num_pos and not num_neg else "positive example" if not num_pos else "negative example"
    return f"there was no {missing} to rank. Evaluate on a set that holds both classes."


# ---------------------------------------------------------------- splitting, selecting and counting scores
# On the CPU sorting and selecting go through numpy, which shares the tensor's memory and whose SIMD kernels sort ten
# million float32 scores some fifteen times and select from them ten times as fast as torch 2.14's.


def split_weights(sample_weight: Any, target: Any) -> tuple[Tensor, Tensor] | None:
    """The weights of the positives and of the negatives, or ``None``."""
    checks.check_one_order(target=target, sample_weight=sample_weight)
    labels = checks.as_tensor(target, "target").cpu()
    weights = checks.as_weights(sample_weight, labels)
    return None if weights is None else split_classes(weights, labels)


def split_groups(groups: Any, target: Any) -> tuple[Tensor, Tensor]:
    """The number of the group of each positive and of each negative, from 0 on."""
    checks.check_one_order(target=target, groups=groups)
    labels = checks.as_tensor(target, "target").cpu()
    return split_classes(checks.as_groups(groups, labels.numel()), labels)


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
