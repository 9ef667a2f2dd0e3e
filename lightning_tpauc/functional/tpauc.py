r"""Two-way partial AUC: exact on raw scores, or binned in constant memory.

With :math:`\theta_0 = 1 -` ``min_tpr`` and :math:`\theta_1 =` ``max_fpr``, the metric is the area of the ROC polyline
inside the rectangle :math:`[0, \theta_1] \times [1 - \theta_0, 1]`, divided by :math:`\theta_0 \theta_1`. The polyline
has one vertex per distinct score, so tied scores form a slanted segment (a tied pair counts 1/2), and it is
interpolated at both borders, so :math:`\theta_0 n_+` and :math:`\theta_1 n_-` need not be whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.functional.binned import adjust_thresholds, binned_area, confusion_counts, count_nan
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.notify import warn_on_rank_zero
from lightning_tpauc.functional.order import between, count_above, count_pairs, has_nan, sorted_ranks, split_classes
from lightning_tpauc.functional.validation import check_ignore_index, check_preds_and_target, check_thresholds

__all__ = (
    "Segment",
    "binned_tpauc",
    "exact_area",
    "exact_tpauc",
    "segment_at",
    "two_way_partial_auroc",
    "unrankable",
)


@eager
def two_way_partial_auroc(
    preds: Tensor,
    target: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float | None = 0.5,
    thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    1 means that the lowest :math:`\theta_0 n_+` positives outscore the highest :math:`\theta_1 n_-` negatives.
    Guessing, or one score for all examples, gives :math:`\max(0, \theta_0 + \theta_1 - 1)^2 / (2 \theta_0 \theta_1)`:
    0 at (0.5, 0.5), and 1/2 only for the whole square. At ``min_tpr=0, max_fpr=1`` the value is AUROC; at ``min_tpr=0``
    it is the partial AUC over ``max_fpr``, without McClish's correction. Scores are ranked as they come: logits and
    probabilities give the same value, unless a squashing function has rounded distinct scores to one.

    Args:
        preds: scores, tensor of shape ``(N,)`` or ``(N, 1)``, any float or integer dtype and any range; larger means
            more positive.
        target: integer or bool tensor of the same shape: 1 for positives, 0 for negatives, ``ignore_index`` for rows to
            leave out.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` computes the exact area, O(N) memory and O(N log N) time at worst. A list, 1-D tensor or
            1-D array of thresholds bins the scores and runs straight lines through the ROC points at these thresholds,
            exact where every score is one of them. An int T stands for T thresholds evenly spaced on [0, 1], and needs
            scores in [0, 1]: nothing is squashed to fit.
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if either class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ or hold several scores per example, ``target`` has
            other labels, ``preds`` holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].

    Example:
        >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1])
        >>> target = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
        >>> two_way_partial_auroc(preds, target, min_tpr=0.5, max_fpr=0.5)
        tensor(0.5000, dtype=torch.float64)
        >>> two_way_partial_auroc(preds, target, min_tpr=0.0, max_fpr=1.0)
        tensor(0.8125, dtype=torch.float64)
    """
    max_fpr = 1.0 if max_fpr is None else max_fpr
    if validate_args:
        min_tpr, max_fpr = _tpauc_arg_validation(min_tpr, max_fpr, thresholds, ignore_index)
        check_preds_and_target(preds, target, ignore_index, unit_range=isinstance(thresholds, Integral))
    if thresholds is None:
        return exact_tpauc(preds, target, min_tpr, max_fpr)
    counts = confusion_counts(preds, target, adjust_thresholds(thresholds))
    num_nan = 0 if validate_args else int(count_nan(preds, target))
    return binned_tpauc(counts, num_nan, min_tpr, max_fpr)


def _tpauc_arg_validation(min_tpr: float, max_fpr: float, thresholds: Any, ignore_index: Any) -> tuple[float, float]:
    if thresholds is not None:
        check_thresholds(thresholds)
    check_ignore_index(ignore_index)
    return check_rectangle(min_tpr, max_fpr)


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
    if _undefined(int(counts[0, 1].sum()), int(counts[0, 0].sum()), num_nan > 0):
        return torch.tensor(math.nan, dtype=torch.float64, device=counts.device)
    return binned_area(counts, min_tpr, max_fpr)


def unrankable(pos: Tensor, neg: Tensor, value: str = "two-way partial AUC") -> bool:
    """Whether a class has no example or a score is nan, with a :class:`TPAUCWarning` that says which."""
    return _undefined(pos.shape[0], neg.shape[0], has_nan(pos) or has_nan(neg), value)


def _undefined(num_pos: int, num_neg: int, any_nan: bool, value: str = "two-way partial AUC") -> bool:
    if num_pos and num_neg:
        if any_nan:
            warn_on_rank_zero(f"The {value} is nan: some scores are nan, which have no rank. Has the model diverged?")
        return any_nan
    missing = "example" if not num_pos and not num_neg else "positive example" if not num_pos else "negative example"
    warn_on_rank_zero(
        f"The {value} is nan: there was no {missing} to rank. "
        "This is normal for a few batches of a sanity check; evaluate on a set that holds both classes."
    )
    return True


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
