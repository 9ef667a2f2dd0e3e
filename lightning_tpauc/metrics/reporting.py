"""What validation and test report: our metrics and a user's own, their names, and which of them is better."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.errors import ArgumentError, silent
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.operating_points import exact_interval, fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.functional.pairwise import widest_float
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from lightning_tpauc.metrics.base import ScoreMetric
from lightning_tpauc.metrics.objective import objective_of

_AT_THRESHOLD = "(sensitivity|specificity|precision)_at_threshold"
_LARGER = rf"(val|test)/(auroc|tpr_at_max_fpr|{_AT_THRESHOLD}|tpauc(_tpr[0-9p]+_fpr[0-9p]+)?)(/.+)?"
_SMALLER = r"(val|test)/(objective|fpr_at_min_tpr)(/.+)?"

FurtherMetrics = Mapping[str, Metric] | Sequence[Metric] | Metric
#: Target of rows that metrics leave out; see :class:`~lightning_tpauc.data.batch.EvalBatch`.
IGNORED = -1
#: Names that are logged whatever a user asks for.
_TAKEN = {"tpauc", "auroc", "tpr_at_max_fpr", "fpr_at_min_tpr", "objective", "loss", "threshold"}


# -------------------------------------------------------------------- names


def better_mode(name: str) -> Literal["max", "min"] | None:
    """Whether a larger or a smaller value of one of our metrics is better; ``None`` for others.

    Example:
        >>> [better_mode(name) for name in ("val/tpauc", "test/tpauc_tpr25_fpr75", "val/objective", "val/auroc_loss")]
        ['max', 'max', 'min', None]
    """
    if re.fullmatch(_LARGER, name):
        return "max"
    return "min" if re.fullmatch(_SMALLER, name) else None


def validated_areas(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """``val/tpauc`` and ``val/auroc`` of the first data loader; nan if they were not logged."""
    names = [(f"val/{area}", f"val/{area}/dataloader_idx_0") for area in ("tpauc", "auroc")]
    tpauc, auroc = (float(metrics.get(one, metrics.get(other, math.nan))) for one, other in names)
    return tpauc, auroc


class Rectangle(NamedTuple):
    """Lower bound of the true positive rate and upper bound of the false positive rate."""

    min_tpr: float
    max_fpr: float


def as_rectangles(pairs: Any) -> list[Rectangle]:
    """Check the argument ``rectangles``.

    Raises:
        ArgumentError: if it is no sequence of pairs of numbers, or if a rectangle is not inside the unit square.
    """
    try:
        return [Rectangle(*check_rectangle(*pair)) for pair in pairs]
    except TypeError:
        raise ArgumentError(f"Expected `rectangles` to be pairs, such as [(0.7, 0.3)], but got {pairs!r}.") from None


def metric_name(rectangle: Rectangle) -> str:
    """Name under which a rectangle's area is logged, with the bounds in percent; the trained one's is also ``tpauc``.

    ``p`` stands for the decimal point, since names of modules and fields of a checkpoint's file name can't hold a dot.

    Example:
        >>> metric_name(Rectangle(0.25, 0.75)), metric_name(Rectangle(0.5, 0.125))
        ('tpauc_tpr25_fpr75', 'tpauc_tpr50_fpr12p5')
    """
    tpr, fpr = (f"{100 * bound:.6g}".replace(".", "p") for bound in rectangle)
    return f"tpauc_tpr{tpr}_fpr{fpr}"


# -------------------------------------------------------------------- values


class Scored(NamedTuple):
    """Scores of K labels, each ``(N, K)``, one label being K = 1; or those of one of the labels, each ``(N,)``."""

    raw: Tensor
    #: 1, 0, or -1 for what does not count.
    target: Tensor
    #: The scores that the algorithm sees.
    seen: Tensor
    #: The number of each example's group, ``(N,)``; ``None`` if there are none.
    groups: Tensor | None = None

    def columns(self) -> list[Scored]:
        """Those of each label."""
        parts = (part.unbind(1) for part in (self.raw, self.target, self.seen))
        return [Scored(raw, target, seen, self.groups) for raw, target, seen in zip(*parts, strict=True)]


class Report:
    """What a module reports of scores.

    These are ``tpauc``, the area in the trained rectangle, ``auroc``, the points at which the ROC curve crosses the
    borders of the rectangle, ``tpr_at_max_fpr`` and ``fpr_at_min_tpr``, and what the threshold does; the areas in
    further ``rectangles``, the exact training ``objective``, and a user's own ``metrics``, where these are asked for.
    """

    def __init__(self, rectangles: Any = (), objective: bool = False, metrics: FurtherMetrics | None = None) -> None:
        self.rectangles, self.objective = as_rectangles(rectangles), objective
        self.metrics = _checked({} if metrics is None else metrics)
        taken = sorted({*self.metrics} & {*_TAKEN, *map(metric_name, self.rectangles)})
        if taken:
            raise ArgumentError(f"`metrics` has {taken[0]!r}, a name of ours. Give it another: `{{'mine': it}}`.")

    def values(
        self,
        scored: Scored,
        rectangles: Sequence[tuple[float, float]],
        thresholds: Sequence[float | None],
        keys: Sequence[str] | None = None,
        surrogate: Surrogate | None = None,
        *,
        intervals: bool = False,
    ) -> dict[str, Tensor]:
        """All values by their names.

        Several labels, called ``keys``, are never pooled: each has its value, named ``metric/label``, and ``metric`` is
        the mean of those that are not nan. A user's metric that has ``num_labels`` takes all at once, and so does
        ``accuracy``, if labels are classes: every example has exactly one.
        """
        joint = [name for name, metric in self.metrics.items() if keys and getattr(metric, "num_labels", None)]
        measured, decided = [], []
        with silent() if keys else nullcontext():  # else K times the same, without the label's name
            for own, rectangle, cut in zip(scored.columns(), rectangles, thresholds, strict=True):
                further = {n: further_value(m, own, [cut]) for n, m in self.metrics.items() if n not in joint}
                measured.append({**self._measured(own, rectangle, surrogate), **further})
                decided.append({} if cut is None else _decided(own, cut, intervals=intervals))
        if keys is None:
            return {**measured[0], **decided[0]}
        values = {name: further_value(self.metrics[name], scored, thresholds) for name in joint}
        for name in measured[0]:
            of_labels = torch.stack([found[name] for found in measured])
            values[name] = of_labels.to(torch.promote_types(of_labels.dtype, torch.float32)).nanmean()
        if (right := _rightly_classified(scored, thresholds)) is not None:
            values.setdefault("accuracy", right)
        for key, found, at_threshold in zip(keys, measured, decided, strict=True):
            values.update({f"{name}/{key}": value for name, value in {**found, **at_threshold}.items()})
        return values

    def _measured(self, own: Scored, rectangle: tuple[float, float], surrogate: Surrogate | None) -> dict[str, Tensor]:
        areas = {"tpauc": rectangle, "auroc": (0.0, 1.0), **{metric_name(other): other for other in self.rectangles}}
        raw, target, seen, _ = own
        values = {name: two_way_partial_auroc(raw, target, *area, validate_args=False) for name, area in areas.items()}
        values["tpr_at_max_fpr"] = tpr_at_max_fpr(raw, target, rectangle[1], validate_args=False)
        values["fpr_at_min_tpr"] = fpr_at_min_tpr(raw, target, rectangle[0], validate_args=False)
        if self.objective:
            values["objective"] = objective_of(seen, target, *rectangle, surrogate or "hinge")
        return values


def _rightly_classified(scored: Scored, thresholds: Sequence[float | None]) -> Tensor | None:
    """How often the score that is furthest above its threshold is that of the example's only label.

    Scores of different labels have no common zero but their thresholds. ``None`` where examples have other than one
    label, or a label has no threshold.
    """
    cuts, rows = [cut for cut in thresholds if cut is not None], (scored.target >= 0).any(1)
    target = scored.target[rows]
    if len(cuts) < len(thresholds) or not len(target) or not bool(((target == 1).sum(1) == 1).all()):
        return None
    ahead = scored.raw[rows] - scored.raw.new_tensor(cuts)
    return (ahead.argmax(1) == target.argmax(1)).to(widest_float(ahead.device)).mean()


def _decided(own: Scored, threshold: float, *, intervals: bool) -> dict[str, Tensor]:
    """What a threshold does; a share of nothing is left out."""
    target, called = own.target.cpu(), own.raw.cpu().double() >= threshold  # float32 may not tell it from a score
    rows = {"sensitivity": target == 1, "specificity": target == 0, "precision": called & (target >= 0)}
    values = {"threshold": threshold}
    for name, each in rows.items():
        right = (called == (target == 1))[each].double()
        if total := len(right):
            values[f"{name}_at_threshold"] = share = float(right.sum()) / total
        if total and intervals:
            trials = total if own.groups is None else _independent(right, own.groups[each])
            lower, upper = exact_interval(share * trials, trials)
            values |= {f"{name}_at_threshold_lower": lower, f"{name}_at_threshold_upper": upper}
    return {name: torch.tensor(value, device=own.raw.device) for name, value in values.items()}


def _independent(right: Tensor, groups: Tensor) -> float:
    """How many independent examples tell as much of a share as these do, by the variance of sums over their groups.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 1998.
    """
    hits, (_, codes) = right.double(), torch.unique(groups, return_inverse=True)
    share, count = hits.mean(), int(codes.max()) + 1
    if count < 2 or not 0 < share < 1:
        return float(count)
    sums = hits.new_zeros(count).index_add(0, codes, hits - share)
    variance = sums.square().sum() * count / (count - 1) / len(hits) ** 2
    return min(float(len(hits)), float(share * (1 - share) / variance) * len(hits) / (len(hits) - 1))


# -------------------------------------------------------------------- a user's metrics


def _checked(given: Any) -> dict[str, Metric]:
    """Copies by the names that they are logged under."""
    parsed = given if isinstance(given, MetricCollection) else MetricCollection(given)
    metrics = {name: metric.clone() for name, metric in parsed.items(copy_state=False)}
    for part in (part for metric in metrics.values() for part in _parts(metric)):
        part.distributed_available_fn = bool  # False: it gets the scores of all processes
    return metrics


def _parts(metric: Metric) -> list[Metric]:
    """A metric and what it wraps."""
    return [part for part in metric.modules() if isinstance(part, Metric)]


def further_value(metric: Metric, scored: Scored, thresholds: Sequence[float | None]) -> Tensor:
    """The value of a user's metric, one number, over the examples that count; nan if none does.

    Ours get raw scores. Those that decide, which have ``threshold = 0.5`` or are not torchmetrics' own, get numbers
    above 0.5 exactly for the examples that the module decides to be positive: the sigmoid of the scores less the
    module's threshold, one of each label. All others, and while there is no threshold, get the plain sigmoid: it is in
    float64, where it keeps the order up to a score of 36, and also applied where all scores happen to lie in [0, 1].
    """
    counted = (scored.target >= 0).reshape(len(scored.target), -1).any(1)
    scores, target, kind = scored.raw[counted], scored.target[counted].long(), type(metric).__name__
    if bool((target < 0).any()) and getattr(metric, "ignore_index", None) != IGNORED:
        raise ArgumentError(f"{kind} of `metrics` would count what was not measured: pass it `ignore_index=-1`.")
    if not len(scores):
        return torch.tensor(math.nan, device=scores.device)
    if not isinstance(metric, ScoreMetric):
        scores = scores.to(widest_float(scores.device))
        cuts = thresholds if _decides(metric) else [None] * len(thresholds)
        columns = zip(scores.reshape(len(scores), -1).T, cuts, strict=True)
        scores = torch.stack([_judged(own, cut) for own, cut in columns], 1).reshape(scores.shape)
    metric.to(scores.device).reset()
    metric.update(scores, target)
    value: Any = metric.compute()
    metric.reset()
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(f"Expected each of `metrics` to compute one number, but {kind} gave {got}.")
    return value.reshape(())


def _decides(metric: Metric) -> bool:
    """Whether a metric, or what it wraps, calls examples positive whose probability is above 0.5."""
    cuts = [part.threshold for part in _parts(metric) if isinstance(getattr(part, "threshold", None), float)]
    return 0.5 in cuts or (not cuts and not type(metric).__module__.startswith("torchmetrics."))


def _judged(scores: Tensor, cut: float | None) -> Tensor:
    """Numbers in [0, 1] in the order of the scores, above 0.5 exactly where a score reaches ``cut``."""
    if cut is None:
        return scores.sigmoid()
    half = scores.new_tensor(0.5)
    beyond = torch.nextafter(half, half.new_ones(()))  # torchmetrics asks for more than 0.5
    moved = (scores - cut).sigmoid()  # nan where both are infinite
    return torch.where(scores >= cut, moved.nan_to_num(1.0).clamp(min=beyond), moved.nan_to_num(0.0).clamp(max=half))
