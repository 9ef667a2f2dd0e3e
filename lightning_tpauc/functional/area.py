r"""The area of the ROC polyline inside the rectangle: exact from scores, or from counts at thresholds."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.binned import binned_area
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.notify import warn_on_rank_zero
from lightning_tpauc.functional.order import between, count_above, count_pairs, has_nan, sorted_ranks, split_classes

__all__ = ("Segment", "binned_tpauc", "exact_area", "exact_tpauc", "segment_at", "unrankable", "why_undefined")


@eager
def exact_tpauc(scores: Tensor, labels: Tensor, min_tpr: float, max_fpr: float) -> Tensor:
    """Exact metric of scores with labels 1, 0 or anything else for rows to leave out."""
    pos, neg = split_classes(scores, labels)
    if unrankable(pos, neg):
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    return torch.tensor(exact_area(pos, neg, min_tpr, max_fpr), dtype=torch.float64, device=pos.device)


@eager
def binned_tpauc(counts: Tensor, num_nan: int, min_tpr: float, max_fpr: float) -> Tensor:
    """Metric of confusion counts ``(T, 2, 2)``, among them ``num_nan`` of scores that are nan."""
    if _undefined(why_undefined(int(counts[0, 1].sum()), int(counts[0, 0].sum()), num_nan > 0)):
        return torch.tensor(math.nan, dtype=torch.float64, device=counts.device)
    return binned_area(counts, min_tpr, max_fpr)


def unrankable(pos: Tensor, neg: Tensor, value: str = "two-way partial AUC") -> bool:
    """Whether a class has no example or a score is nan, with a :class:`TPAUCWarning` that says which."""
    return _undefined(why_undefined(pos.shape[0], neg.shape[0], has_nan(pos) or has_nan(neg)), value)


def why_undefined(num_pos: int, num_neg: int, any_nan: bool) -> str:
    """Why there is no area, for a sentence; empty if there is one."""
    if num_pos and num_neg:
        return "some scores are nan, which have no rank. Has the model diverged?" if any_nan else ""
    missing = "example" if not num_pos and not num_neg else "positive example" if not num_pos else "negative example"
    return (
        f"there was no {missing} to rank. "
        "This is normal for a few batches of a sanity check; evaluate on a set that holds both classes."
    )


def _undefined(reason: str, value: str = "two-way partial AUC") -> bool:
    if reason:
        warn_on_rank_zero(f"The {value} is nan: {reason}")
    return bool(reason)


class Segment(NamedTuple):
    """The piece of the ROC polyline that belongs to one score.

    From ``tp`` true and ``fp`` false positives it rises by ``num_pos`` and runs right by ``num_neg``.
    """

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
