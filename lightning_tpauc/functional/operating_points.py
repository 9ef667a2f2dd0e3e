"""Single points of the ROC polyline: where it crosses the rectangle's borders, and where a threshold lies on it.

The polyline is the metric's: one vertex per distinct score, straight lines between them.

An example is called positive if its score is at least the threshold.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import checks
from lightning_tpauc.functional.pairwise import ceil_count, floor_count
from lightning_tpauc.functional.roc import ranked_classes, segment_at, sorted_ranks, split_classes

Criterion = Literal["max_sensitivity", "max_specificity", "youden", "min_cost"]
CRITERIA: tuple[Criterion, ...] = ("max_sensitivity", "max_specificity", "youden", "min_cost")


@checks.eager
def tpr_at_max_fpr(
    preds: Any, target: Any, max_fpr: float = 0.5, ignore_index: int | None = None, validate_args: bool = True
) -> Tensor:
    """The largest true positive rate that the ROC polyline reaches at a false positive rate of at most ``max_fpr``.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        max_fpr: upper bound of the false positive rate, in (0, 1].
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if a class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ, ``target`` has other labels or ``preds`` holds
            nan.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> tpr_at_max_fpr(preds, target, max_fpr=0.5)  # all positives come before the second negative
        tensor(1., dtype=torch.float64)
        >>> tpr_at_max_fpr(preds, target, max_fpr=0.25)
        tensor(0.3333, dtype=torch.float64)
    """
    if validate_args:
        _, max_fpr = checks.check_rectangle(0.0, max_fpr)
    pos, neg, undefined = ranked_classes(preds, target, ignore_index, validate_args, "TPR at `max_fpr`")
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    # The bound lies on the segment of the next negative's score, or at its start, above what rises straight there.
    whole, tpr = floor_count(max_fpr, n_neg), 1.0
    if undefined:
        tpr = math.nan
    elif whole < n_neg:
        segment = segment_at(sorted_ranks(neg, n_neg - whole - 1, n_neg - whole)[0], pos, neg)
        share = (max(max_fpr * n_neg, whole) - segment.fp) / segment.num_neg
        tpr = (segment.tp + segment.num_pos * share) / n_pos
    return torch.tensor(tpr, dtype=torch.float64, device=pos.device)


@checks.eager
def fpr_at_min_tpr(
    preds: Any, target: Any, min_tpr: float = 0.5, ignore_index: int | None = None, validate_args: bool = True
) -> Tensor:
    """The smallest false positive rate at which the ROC polyline reaches a true positive rate of ``min_tpr``.

    The other arguments, the result and the errors are those of :func:`tpr_at_max_fpr`.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``.
        target: labels of the same shape.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> fpr_at_min_tpr(preds, target, min_tpr=0.5)  # the second positive comes after one of two negatives
        tensor(0.5000, dtype=torch.float64)
    """
    if validate_args:
        min_tpr, _ = checks.check_rectangle(min_tpr, 1.0)
    pos, neg, undefined = ranked_classes(preds, target, ignore_index, validate_args, "FPR at `min_tpr`")
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    # The bound lies on the segment of the last positive that it asks for, or at its end, before what runs right there.
    whole, fpr = _least(min_tpr, n_pos), 0.0
    if undefined:
        fpr = math.nan
    elif whole > 0:
        segment = segment_at(sorted_ranks(pos, n_pos - whole, n_pos - whole + 1)[0], pos, neg)
        share = (min(min_tpr * n_pos, whole) - segment.tp) / segment.num_pos
        fpr = (segment.fp + segment.num_neg * share) / n_neg
    return torch.tensor(fpr, dtype=torch.float64, device=pos.device)


class Decisions(NamedTuple):
    """What a threshold does to examples whose class is known, as counts.

    Attributes:
        threshold: an example is called positive if its score is at least that.
        tp: positives that are called positive.
        fp: negatives that are called positive.
        num_pos: all positives.
        num_neg: all negatives.
    """

    threshold: float
    tp: int
    fp: int
    num_pos: int
    num_neg: int

    @property
    def sensitivity(self) -> float:
        """Share of the positives that are called positive: recall, the true positive rate; nan if there is none."""
        return self.tp / self.num_pos if self.num_pos else math.nan

    @property
    def specificity(self) -> float:
        """Share of the negatives that are called negative, 1 less the false positive rate; nan if there is none."""
        return (self.num_neg - self.fp) / self.num_neg if self.num_neg else math.nan

    @property
    def precision(self) -> float:
        """Share of those called positive that are positive; nan if nobody is called positive."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else math.nan

    def lies_in(self, min_tpr: float, max_fpr: float) -> bool:
        """Whether the point lies in the rectangle, its borders included."""
        return self.tp >= _least(min_tpr, self.num_pos) and self.fp <= floor_count(max_fpr, self.num_neg)


@checks.eager
def decision_threshold(
    preds: Any,
    target: Any,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    criterion: Criterion = "max_sensitivity",
    cost_ratio: float = 1.0,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Decisions | None:
    r"""The threshold that is best by a criterion among those inside the rectangle [0, max_fpr] x [min_tpr, 1].

    Only whole decisions count: examples with equal scores are decided alike, and nothing is interpolated. Where several
    thresholds are equally good, it is the one with the fewest false alarms. The threshold lies halfway between the
    lowest score that it calls positive and the next lower one, so that rounding of scores changes no decision.

    Where no threshold lies in the rectangle, ``"max_sensitivity"`` keeps to ``max_fpr`` and ``"max_specificity"`` to
    ``min_tpr``; where none does even that, as infinite scores of negatives allow none, and by the other criteria it is
    the threshold whose rates are nearest to the rectangle. :meth:`Decisions.lies_in` tells.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].
        criterion: ``"max_sensitivity"``: most positives found at a false positive rate of at most ``max_fpr``;
            ``"max_specificity"``: fewest false alarms at a true positive rate of at least ``min_tpr``; ``"youden"``:
            largest true positive rate less false positive rate; ``"min_cost"``: smallest cost of all errors.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms.
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        The threshold, infinite where it is best to call nobody positive but whose score is infinite, and the counts;
        ``None``, with a :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ, ``target`` has other labels or ``preds`` holds
            nan.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> chosen = decision_threshold(preds, target, max_fpr=0.5)
        >>> f"{chosen.threshold:.2f}", chosen.sensitivity, chosen.specificity
        ('0.55', 1.0, 0.5)
    """
    if validate_args:
        min_tpr, max_fpr = checks.check_rectangle(min_tpr, max_fpr)
        check_criterion(criterion, cost_ratio)
    *classes, undefined = ranked_classes(preds, target, ignore_index, validate_args, "threshold")
    if undefined:
        return None
    # in float64, which tells the threshold from its neighbours in float32
    pos, neg = (scores.cpu().double() for scores in classes)
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    # Candidates are infinity, then each distinct score of a positive, falling. A score that negatives alone have is
    # none: the next higher one finds as many positives with fewer alarms.
    values = torch.unique(torch.cat([pos, pos.new_tensor([math.inf])]))
    # how many of the values an example reaches; infinity is reached by infinite scores alone
    reached = [torch.bucketize(scores, values, right=True) for scores in (pos, neg)]
    tp, fp = (each.bincount(minlength=values.shape[0] + 1)[1:].flip(0).cumsum(0).double() for each in reached)
    few_alarms, enough_found = fp <= floor_count(max_fpr, n_neg), tp >= _least(min_tpr, n_pos)
    # what the criterion maximises, and which candidates compete: of those with few alarms the best one finds enough
    # positives if any does, and the other way round
    gain, competing = {
        "max_sensitivity": (tp, few_alarms),
        "max_specificity": (tp - fp * (n_pos + 1), enough_found),
        "youden": (tp * n_neg - fp * n_pos, few_alarms & enough_found),
        "min_cost": (cost_ratio * tp - fp, few_alarms & enough_found),
    }[criterion]
    if not competing.any():
        away = torch.hypot((min_tpr - tp / n_pos).clamp(min=0), (fp / n_neg - max_fpr).clamp(min=0))
        competing = away <= away.min() + 1e-12  # equal but for rounding
    # candidates come with growing counts: the first of the best has the fewest false alarms
    best = int(torch.where(competing, gain, -math.inf).argmax())
    threshold = _widened(float(values.flip(0)[best]), pos, neg)
    return Decisions(threshold, int(tp[best]), int(fp[best]), n_pos, n_neg)


@checks.eager
def count_decisions(preds: Any, target: Any, threshold: float) -> Decisions:
    """What a given threshold does.

    Args:
        preds: scores, a tensor, array or list of any shape and real dtype.
        target: labels of the same shape; rows labelled neither 1 nor 0 are left out.
        threshold: an example is called positive if its score is at least that.

    Example:
        >>> count_decisions(torch.tensor([2.0, 0.5, 1.0]), torch.tensor([1, 1, 0]), threshold=1.0)[1:]
        (1, 1, 2, 1)
    """
    pos, neg = split_classes(*checks.as_pair(preds, target))
    tp, fp = (int((scores.cpu().double() >= threshold).sum()) for scores in (pos, neg))
    return Decisions(threshold, tp, fp, pos.shape[0], neg.shape[0])


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% interval of Clopper and Pearson for a probability, by scipy; (0, 1) without a trial."""
    if trials == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest  # takes a second to import

    interval = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


def check_criterion(criterion: Any, cost_ratio: Any) -> None:
    """Raise :class:`ArgumentError` unless the criterion exists, and a cost is a positive number that it uses."""
    checks.check_choice(criterion, "criterion", CRITERIA)
    if not checks.is_real(cost_ratio) or cost_ratio <= 0:
        msg = f"Expected `cost_ratio` to be a number above 0, but got {cost_ratio!r}."
        raise ArgumentError(msg)
    if criterion != "min_cost" and cost_ratio != 1.0:
        msg = f"`cost_ratio={cost_ratio!r}` is not used by criterion={criterion!r}: pass `criterion='min_cost'`."
        raise ArgumentError(msg)


def _least(min_tpr: float, num_pos: int) -> int:
    return ceil_count(min_tpr, num_pos) if min_tpr and num_pos else 0


def _widened(threshold: float, pos: Tensor, neg: Tensor) -> float:
    """Halfway to the next lower score, if there is a number between the two."""
    scores = torch.cat([pos, neg])
    below = scores[scores < threshold]
    if not below.numel() or math.isinf(threshold):
        return threshold
    floor = float(below.max())
    middle = threshold / 2 + floor / 2
    return middle if floor < middle <= threshold else threshold
