r"""Single points of the ROC polyline: where it crosses the rectangle's borders, and where a threshold lies on it.

The polyline is the metric's: one vertex per distinct score, straight lines between them.

An example is called positive if its score is at least the threshold.

**Guarantees.** A demand is met on the examples at hand if a threshold makes few enough errors of its kind. It is met on
new examples, too, with confidence :math:`1 - \delta`, if the errors are at most :math:`c`, the largest number with
:math:`P(\mathrm{Bin}(n, \text{rate}) \le c) \le \delta`, where n counts the examples of the class that the demand is
about. A lower threshold has more false alarms, for the population and for the sample. So if some threshold of at most c
false alarms breaks the demand, then the highest one that breaks it has at most c, too, and that happens with
probability :math:`\delta` at most. The bound therefore holds for all such thresholds at once, however one of them is
chosen, whatever the distribution of scores is, and with ties (Tong, Feng and Li, *Neyman-Pearson classification
algorithms and NP receiver operating characteristics*, Science Advances 2018).

With groups, each counts as one draw, and its error is the share of its examples that are decided wrongly. Such shares
have heavier tails than counts by a factor of e at most (Bentkus, *On Hoeffding's inequalities*, Annals of Probability
2004), so :math:`\delta / e` takes the place of :math:`\delta`.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, TooFewExamplesError, warn_on_rank_zero
from lightning_tpauc.functional import checks
from lightning_tpauc.functional.roc import (
    count_by_score,
    ranked_classes,
    roc_steps,
    split_classes,
    split_groups,
    split_weights,
)

Criterion = Literal["youden", "f1", "min_cost", "max_sensitivity", "max_specificity"]
CRITERIA: tuple[Criterion, ...] = ("youden", "f1", "min_cost", "max_sensitivity", "max_specificity")
#: Counts that miss a bound by such a share of all examples have missed it by rounding.
_ROUNDING = 1e-12


@checks.eager
def tpr_at_max_fpr(
    preds: Any,
    target: Any,
    max_fpr: float = 0.5,
    ignore_index: int | None = None,
    validate_args: bool = True,
    sample_weight: Any = None,
) -> Tensor:
    """The largest true positive rate that the ROC polyline reaches at a false positive rate of at most ``max_fpr``.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        max_fpr: upper bound of the false positive rate, in (0, 1].
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.
        sample_weight: what each example counts, of the same shape, at least 0; ``None`` is 1 for all.

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
    if undefined:
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    steps = roc_steps(pos, neg, split_weights(sample_weight, target))
    # The bound lies on a step, or at its start, above what rises straight there; of the next step nothing is reached.
    room = max_fpr * steps.num_neg - steps.fp
    share = torch.where(steps.neg > 0, room / steps.neg, 1.0).clamp(0, 1)
    reached = steps.tp + torch.where(room >= -_ROUNDING * steps.num_neg, share * steps.pos, -steps.tp)
    return (reached.amax() / steps.num_pos).clamp(max=1).to(pos.device)


@checks.eager
def fpr_at_min_tpr(
    preds: Any,
    target: Any,
    min_tpr: float = 0.5,
    ignore_index: int | None = None,
    validate_args: bool = True,
    sample_weight: Any = None,
) -> Tensor:
    """The smallest false positive rate at which the ROC polyline reaches a true positive rate of ``min_tpr``.

    The other arguments, the result and the errors are those of :func:`tpr_at_max_fpr`.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``.
        target: labels of the same shape.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values.
        sample_weight: what each example counts.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> fpr_at_min_tpr(preds, target, min_tpr=0.5)  # the second positive comes after one of two negatives
        tensor(0.5000, dtype=torch.float64)
    """
    if validate_args:
        min_tpr, _ = checks.check_rectangle(min_tpr, 1.0)
    pos, neg, undefined = ranked_classes(preds, target, ignore_index, validate_args, "FPR at `min_tpr`")
    if undefined or not min_tpr:
        return torch.tensor(math.nan if undefined else 0.0, dtype=torch.float64, device=pos.device)
    steps = roc_steps(pos, neg, split_weights(sample_weight, target))
    # The bound lies on a step, or at its end, before what runs right there.
    missing = min_tpr * steps.num_pos - steps.tp
    share = torch.where(steps.pos > 0, missing / steps.pos, 1.0).clamp(0, 1)
    enough = missing <= steps.pos + _ROUNDING * steps.num_pos
    return (
        (torch.where(enough, steps.fp + share * steps.neg, math.inf).amin() / steps.num_neg).clamp(max=1).to(pos.device)
    )


class Decisions(NamedTuple):
    """What a threshold does to examples whose class is known, as counts, or as sums of weights.

    Attributes:
        threshold: an example is called positive if its score is at least that.
        tp: positives that are called positive.
        fp: negatives that are called positive.
        num_pos: all positives.
        num_neg: all negatives.
        guaranteed: the demands, by the names of their arguments, that hold for new examples at the ``confidence`` that
            :func:`decision_threshold` was asked for.
        times: so many times as many examples like these guarantee all demands; 0 where no number is known to.
    """

    threshold: float
    tp: float
    fp: float
    num_pos: float
    num_neg: float
    guaranteed: tuple[str, ...] = ()
    times: int = 1

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

    @property
    def alert_rate(self) -> float:
        """Share of all examples that are called positive; nan if there is none."""
        total = self.num_pos + self.num_neg
        return (self.tp + self.fp) / total if total else math.nan

    @property
    def shares(self) -> dict[str, tuple[float, float]]:
        """Sensitivity, specificity and precision by name: the count of which of how many each of them is the share."""
        right = {"sensitivity": (self.tp, self.num_pos), "specificity": (self.num_neg - self.fp, self.num_neg)}
        return {**right, "precision": (self.tp, self.tp + self.fp)}

    def lies_in(self, min_tpr: float, max_fpr: float) -> bool:
        """Whether the point lies in the rectangle, its borders included."""
        enough = self.tp >= (min_tpr - _ROUNDING) * self.num_pos
        return enough and self.fp <= (max_fpr + _ROUNDING) * self.num_neg


def allowed_errors(num: int, rate: float, risk: float) -> int:
    r"""The largest number of errors c with :math:`P(\mathrm{Bin}(num, rate) \le c) \le risk`, or -1 if 0 is too many.

    Example:
        >>> allowed_errors(149, 0.02, 0.05), allowed_errors(148, 0.02, 0.05), allowed_errors(2000, 0.1, 0.05)
        (0, -1, 177)
    """
    from scipy.special import bdtr  # takes a while to import

    return bisect_right(range(num), risk, key=lambda c: float(bdtr(c, num, rate))) - 1


@checks.eager
def decision_threshold(
    preds: Any,
    target: Any,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    criterion: Criterion = "youden",
    cost_ratio: float = 1.0,
    ignore_index: int | None = None,
    validate_args: bool = True,
    *,
    confidence: float | None = None,
    min_precision: float | None = None,
    max_alert_rate: float | None = None,
    groups: Any = None,
    sample_weight: Any = None,
) -> Decisions | None:
    r"""The threshold that is best by a criterion among those inside the rectangle [0, max_fpr] x [min_tpr, 1].

    Only whole decisions count: examples with equal scores are decided alike, and nothing is interpolated. Where several
    thresholds are equally good, it is the one with the fewest false alarms. The threshold lies halfway between the
    lowest score that it calls positive and the next lower one, so that rounding of scores changes no decision.

    If no threshold meets all demands, ``"max_sensitivity"`` gives up ``min_tpr`` and ``"max_specificity"`` gives up
    ``max_fpr``. If that is not enough, and with the other criteria, the threshold nearest to the demands is taken.
    :meth:`Decisions.lies_in` tells whether it lies in the rectangle.

    **New examples.** A demand that is just met on these examples is broken on new ones about every second time. With
    ``confidence`` the threshold leaves enough room: ``min_tpr`` or ``max_fpr`` is broken for the population with a
    probability of at most ``1 - confidence`` in total, whatever the distribution of the scores is. ``guaranteed`` of
    the result names the demands for which this is true. The examples must have neither trained the model nor chosen its
    weights.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        min_tpr: lower bound of the true positive rate, in [0, 1); 0 for no such demand.
        max_fpr: upper bound of the false positive rate, in (0, 1]; 1 for no such demand.
        criterion: ``"youden"``: largest true positive rate less false positive rate; ``"f1"``: largest harmonic mean of
            sensitivity and precision; ``"min_cost"``: smallest cost of all errors; ``"max_sensitivity"``: most
            positives found at a false positive rate of at most ``max_fpr``; ``"max_specificity"``: fewest false alarms
            at a true positive rate of at least ``min_tpr``.
        cost_ratio: for ``"min_cost"``, what a missed positive costs, in false alarms.
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.
        confidence: how sure it must be that new examples meet the demands, in (0, 1); ``None`` asks only these
            examples.
        min_precision: lower bound of the precision, in (0, 1]; it comes without a guarantee.
        max_alert_rate: upper bound of the share of examples that are called positive (an alert budget), in (0, 1]; it
            comes without a guarantee, too.
        groups: which examples belong together, such as those of a patient: numbers or texts, one each. The guarantee is
            then for new groups. It bounds the mean over groups of the share of a group's negatives, or positives, that
            are decided wrongly.
        sample_weight: what each example counts, of the same shape, at least 0. If the classes were sampled unevenly,
            give each the weight that restores its share. A guarantee needs equal weights within a class.

    Returns:
        The threshold and the counts. The threshold is infinite where it is best to call nobody positive, infinite
        scores apart. ``None``, with a :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ, ``target`` has other labels or ``preds`` holds
            nan.
        TooFewExamplesError: if there are too few examples for ``confidence``; it says how many are needed, and what
            these allow.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> chosen = decision_threshold(preds, target, max_fpr=0.5, criterion="max_sensitivity")
        >>> f"{chosen.threshold:.2f}", chosen.sensitivity, chosen.specificity
        ('0.55', 1.0, 0.5)
        >>> target = torch.arange(600) % 3 == 0
        >>> preds = torch.linspace(-1, 1, 600).roll(200) + target
        >>> for confidence in (None, 0.95):
        ...     found = decision_threshold(preds, target, 0.0, 0.1, "max_sensitivity", confidence=confidence)
        ...     print(f"{1 - found.specificity:.4f} {found.sensitivity:.3f} {found.guaranteed}")
        0.0975 0.600 ()
        0.0725 0.575 ('max_fpr',)
    """
    if validate_args:
        min_tpr, max_fpr = checks.check_rectangle(min_tpr, max_fpr)
        check_rule(criterion, cost_ratio, confidence, min_precision, max_alert_rate)
    *classes, undefined = ranked_classes(preds, target, ignore_index, validate_args, "threshold")
    if undefined:
        return None
    # in float64, which tells the threshold from its neighbours in float32
    pos, neg = (scores.cpu().double() for scores in classes)
    weights = split_weights(sample_weight, target)
    values, *counted = _candidates(pos, neg, weights)
    tp, fp, num_pos, num_neg = counted
    # by how much of a rate each demand is broken; at most 0 where it is met
    called, away = tp + fp, {"min_tpr": min_tpr - tp / num_pos, "max_fpr": fp / num_neg - max_fpr}
    if min_precision is not None:
        away["min_precision"] = torch.where(called > 0, min_precision - tp / called, 0.0)
    if max_alert_rate is not None:
        away["max_alert_rate"] = called / (num_pos + num_neg) - max_alert_rate
    met = {name: shortfall <= _ROUNDING for name, shortfall in away.items()}
    safe = {}
    if confidence is not None:
        shares = _group_shares(groups, target)
        if weights is not None or shares is not None:
            _, *counted = _candidates(pos, neg, shares)
        safe_of = partial(_safe, min_tpr, max_fpr, confidence, weights=weights, shares=shares)
        safe = safe_of(counted)
    # Of thresholds that keep to `max_fpr` the one that finds most meets `min_tpr` if any does, and the other way round.
    open_one = {"max_sensitivity": "min_tpr", "max_specificity": "max_fpr"}.get(criterion)
    distance = torch.stack([shortfall.clamp(min=0) for shortfall in away.values()]).norm(dim=0)
    for masks in ({**met, **safe}, met, {"nearest": distance <= distance.min() + 1e-12}):  # equal but for rounding
        competing = torch.stack([mask for name, mask in masks.items() if name != open_one]).all(0)
        if bool(competing.any()):
            break
    gain = {
        "max_sensitivity": tp,
        "max_specificity": torch.where(fp <= fp[competing].min() + _ROUNDING * num_neg, tp, -math.inf),
        "youden": tp * num_neg - fp * num_pos,
        "f1": tp / (tp + fp + num_pos),
        "min_cost": cost_ratio * tp - fp,
    }[criterion]
    # candidates come with growing counts: the first of the best has the fewest false alarms
    best = int(torch.where(competing, gain, -math.inf).argmax())
    count: Any = int if weights is None else float
    totals = count(num_pos), count(num_neg)
    kept, times = tuple(name for name, mask in safe.items() if bool(mask[best])), 1
    if len(kept) < len(safe):
        grown = ((k, safe_of([k * own for own in counted])) for k in (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256))
        times = next((k for k, own in grown if bool(torch.stack([*met.values(), *own.values()]).all(0).any())), 0)
        left = " and ".join(name for name in safe if name not in kept)
        more = f", or take {times} times as many examples" if times else ""
        warn_on_rank_zero(f"No threshold guarantees {left} as well: ask for less{more}.")
    return Decisions(_widened(float(values[best]), pos, neg), count(tp[best]), count(fp[best]), *totals, kept, times)


def _candidates(
    pos: Tensor, neg: Tensor, weights: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Infinity, then each distinct score of a positive, falling, with the examples of both classes that reach it.

    A score that negatives alone have is none: the next higher one finds as many positives with fewer alarms.
    """
    steps = roc_steps(pos, neg, weights)
    infinite = [own == math.inf for own in (pos, neg)]
    first = [each.sum() if weights is None else weights[k][each].sum() for k, each in enumerate(infinite)]
    ends = (steps.tp + steps.pos, steps.fp + steps.neg)
    tp, fp = (torch.cat([own[None].double(), end.flip(0)]) for own, end in zip(first, ends, strict=True))
    return torch.cat([steps.score.new_tensor([math.inf]), steps.score.flip(0)]), tp, fp, steps.num_pos, steps.num_neg


def _safe(
    min_tpr: float,
    max_fpr: float,
    confidence: float,
    counted: Sequence[Tensor],
    weights: tuple[Tensor, Tensor] | None,
    shares: tuple[Tensor, Tensor] | None,
) -> dict[str, Tensor]:
    """Which candidates meet a demand with so much room that it holds for new examples, by the names of the demands."""
    if weights is not None and any(bool((own != own[0]).any()) for own in weights):
        raise ArgumentError("A guarantee needs equal `sample_weight` within a class: pass `confidence=None`.")
    tp, fp, num_pos, num_neg = counted
    grouped = shares is not None and any(bool((own < 1).any()) for own in shares)
    asked = [
        ("max_fpr", "FPR <=", max_fpr, fp, num_neg, "negatives"),
        ("min_tpr", "TPR >=", 1 - min_tpr, num_pos - tp, num_pos, "positives"),
    ]
    asked = [each for each in asked if each[2] < 1]
    price = max(1, len(asked)) * (math.e if grouped else 1)  # they share the risk; groups' shares have heavier tails
    risk, safe, missing = (1 - confidence) / price, {}, []
    for name, sign, rate, errors, total, who in asked:
        size, needed = round(float(total)), math.ceil(math.log(risk) / math.log1p(-rate))
        safe[name] = errors <= allowed_errors(size, rate, risk) + 1e-9  # sums of shares are rounded
        if size < needed:
            possible = math.ceil(1000 * (1 - risk ** (1 / max(1, size)))) / 1000
            shown = [1 - r if name == "min_tpr" else r for r in (rate, possible)]
            allowed = math.floor(1000 * (1 - price * (1 - rate) ** size)) / 10
            otherwise = f", or {allowed:g}% confidence" if allowed > 0 else ""
            missing.append(
                f"{sign} {shown[0]:.4g} at {100 * confidence:g}% confidence takes {needed} "
                f"{'groups with ' * grouped}{who}, and there are {size}, which allow {sign} {shown[1]:.4g}{otherwise}"
            )
    if missing:
        raise TooFewExamplesError(f"{'; '.join(missing)}.")
    return safe


def _group_shares(groups: Any, target: Any) -> tuple[Tensor, Tensor] | None:
    """What each positive, and each negative, is of those of its group."""
    if groups is None:
        return None
    pos, neg = (1 / own.bincount().double()[own] for own in split_groups(groups, target))
    return pos, neg


@checks.eager
def count_decisions(preds: Any, target: Any, threshold: float, sample_weight: Any = None) -> Decisions:
    """What a given threshold does.

    Args:
        preds: scores, a tensor, array or list of any shape and real dtype.
        target: labels of the same shape; rows labelled neither 1 nor 0 are left out.
        threshold: an example is called positive if its score is at least that.
        sample_weight: what each example counts, of the same shape, at least 0; ``None`` is 1 for all.

    Example:
        >>> count_decisions(torch.tensor([2.0, 0.5, 1.0]), torch.tensor([1, 1, 0]), threshold=1.0)[1:5]
        (1, 1, 2, 1)
    """
    classes = split_classes(*checks.as_pair(preds, target))
    weights, counts = split_weights(sample_weight, target), []
    for k, scores in enumerate(classes):
        called = scores.cpu().double() >= threshold
        each = torch.ones_like(called, dtype=torch.int64) if weights is None else weights[k].cpu()
        counts.append((each[called].sum().item(), each.sum().item()))
    (tp, num_pos), (fp, num_neg) = counts
    return Decisions(threshold, tp, fp, num_pos, num_neg)


@checks.eager
def precision_at_alert_rate(
    preds: Any,
    target: Any,
    alert_rate: float,
    ignore_index: int | None = None,
    validate_args: bool = True,
    sample_weight: Any = None,
) -> Tensor:
    """Share of positives among the examples with the highest scores: the precision of an alert budget.

    If only some of several examples with equal scores fit into the budget, the expected share of positives counts.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        alert_rate: which share of the examples is called positive, in (0, 1].
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values.
        sample_weight: what each example counts, of the same shape, at least 0; ``None`` is 1 for all.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if a class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: as for :func:`tpr_at_max_fpr`.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> precision_at_alert_rate(preds, target, alert_rate=0.8)
        tensor(0.7500, dtype=torch.float64)
    """
    if validate_args:
        checks.require_range("alert_rate", alert_rate, 0.0, 1.0, open_low=True)
    pos, _, undefined = ranked_classes(preds, target, ignore_index, validate_args, "precision")
    if undefined:
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    scores, labels = (each.cpu() for each in checks.as_pair(preds, target, sample_weight=sample_weight))
    found, wrong, _ = count_by_score(scores, labels, checks.as_weights(sample_weight, labels))
    tp, called = (np.append(0.0, each.cumsum(0).numpy()) for each in (found, found + wrong))
    budget = alert_rate * called[-1]
    return torch.tensor(np.interp(budget, called, tp) / budget, dtype=torch.float64, device=pos.device)


def exact_interval(successes: float, trials: float) -> tuple[float, float]:
    """The 95% interval of Clopper and Pearson for a probability, by scipy; (0, 1) without a trial."""
    from scipy.special import betaincinv  # takes a while to import

    low = betaincinv(successes, trials - successes + 1, 0.025) if successes else 0.0
    return float(low), float(betaincinv(successes + 1, trials - successes, 0.975) if successes < trials else 1.0)


def check_rule(
    criterion: Any, cost_ratio: Any, confidence: Any = None, min_precision: Any = None, max_alert_rate: Any = None
) -> None:
    """Raise :class:`ArgumentError` unless the criterion exists, uses the cost, and each number is in its range."""
    checks.check_choice(criterion, "criterion", CRITERIA)
    checks.require_range("cost_ratio", cost_ratio, 0.0, open_low=True)
    if criterion != "min_cost" and cost_ratio != 1.0:
        raise ArgumentError(f"`cost_ratio` is not used by criterion={criterion!r}: pass `criterion='min_cost'`.")
    shares = {"confidence": confidence, "min_precision": min_precision, "max_alert_rate": max_alert_rate}
    for name, value in shares.items():
        if value is not None:
            checks.require_range(name, value, 0.0, 1.0, open_low=True, open_high=name == "confidence")


def _widened(threshold: float, pos: Tensor, neg: Tensor) -> float:
    """Halfway to the next lower score, if there is a number between the two."""
    scores = torch.cat([pos, neg])
    floor = float(scores.where(scores < threshold, -math.inf).max())
    middle = threshold / 2 + floor / 2  # of an infinite one infinite, or nan
    return middle if floor < middle <= threshold else threshold
