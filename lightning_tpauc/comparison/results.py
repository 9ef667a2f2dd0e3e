"""What came out: values, paired differences, and a verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.comparison.resampling import Evaluated, Rectangle, num_resamples_for, paired, resampled_areas
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr, two_way_partial_auroc

#: Methods are level where the whole interval of their difference lies within this.
MARGIN = 0.01


class Difference(NamedTuple):
    """How far a method is ahead of the baseline.

    Attributes:
        estimate: mean difference over the runs.
        lower: lower end of its interval.
        upper: upper end of its interval.
    """

    estimate: float
    lower: float
    upper: float


def measured_names(num_rectangles: int) -> tuple[list[str], list[str]]:
    """Names of the areas in rectangles, and of all else that is measured."""
    areas = [f"tpauc {k}" for k in range(num_rectangles)]
    return areas, ["auroc", "average_precision", "tpr_at_max_fpr", "fpr_at_min_tpr"]


def measures(scores: Tensor, target: Tensor, rectangles: Sequence[Rectangle]) -> dict[str, float]:
    """All that a table shows of one run's scores of one label."""
    from sklearn.metrics import average_precision_score

    areas, others = measured_names(len(rectangles))
    if not (target == 1).any() or not (target == 0).any():
        return dict.fromkeys((*areas, *others), math.nan)
    min_tpr, max_fpr = rectangles[0]
    given = scores, target
    values = [two_way_partial_auroc(*given, *rectangle) for rectangle in (*rectangles, (0.0, 1.0))]
    values.append(average_precision_score(target.numpy(), scores.double().numpy()))
    values += [tpr_at_max_fpr(*given, max_fpr), fpr_at_min_tpr(*given, min_tpr)]
    return dict(zip((*areas, *others), map(float, values), strict=True))


def difference(estimate: float, ours: Tensor, theirs: Tensor) -> Difference:
    """The difference with its 95% percentile interval, over the resamples that have it."""
    ends = (ours - theirs).double().nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return Difference(estimate, *ends.tolist())


def verdict(found: Difference, baseline: str, untrained: Sequence[str] = ()) -> str:
    """In plain words whether a method is ahead of the baseline.

    They are level where the whole interval lies within .010 of 0. Else one is ahead if the interval leaves 0 out, and
    if it does not, the data can't tell.

    Args:
        found: how far it is ahead.
        baseline: name of the method that it is compared with.
        untrained: which of the two methods validated best with its first weights, so that nothing can be said of it.

    Example:
        >>> verdict(Difference(0.04, 0.02, 0.06), "cross-entropy")
        'ahead by .040, 95% interval .020 to .060'
        >>> verdict(Difference(-0.04, -0.06, -0.02), "cross-entropy")
        'behind by .040, 95% interval .020 to .060: keep cross-entropy'
        >>> verdict(Difference(0.001, -0.004, 0.006), "cross-entropy")
        'level within .010: keep cross-entropy (+.001, 95% interval -.004 to .006)'
        >>> verdict(Difference(0.035, -0.012, 0.083), "cross-entropy")
        "can't tell: +.035, 95% interval -.012 to .083"
        >>> verdict(Difference(0.4, 0.3, 0.5), "cross-entropy", ["cross-entropy"])
        'open (+.400, 95% interval .300 to .500): cross-entropy never validated better than its first weights'
    """
    estimate, lower, upper = found
    interval = f"{short(estimate, sign='+')}, 95% interval {short(lower)} to {short(upper)}"
    if untrained:
        who = f"{' and '.join(untrained)} never validated better than {'its' if len(untrained) == 1 else 'their'}"
        return f"open ({interval}): {who} first weights"
    if lower >= -MARGIN and upper <= MARGIN:
        return f"level within {short(MARGIN)}: keep {baseline} ({interval})"
    if lower > 0:
        return f"ahead by {short(estimate)}, 95% interval {short(lower)} to {short(upper)}"
    if upper < 0:
        return f"behind by {short(-estimate)}, 95% interval {short(-upper)} to {short(-lower)}: keep {baseline}"
    return f"can't tell: {interval}"


def short(value: float, sign: str = "") -> str:
    """Three decimals, without the zero before the point."""
    text = f"{value:{sign}.3f}".replace("-0.000", "0.000")
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        method: its name.
        measured: the values of all runs, by the names of :func:`~lightning_tpauc.comparison.results.measures`, of
            several labels their means; empty if it failed.
        interval: 95% bootstrap interval of its TPAUC in the rectangle that was trained for.
        seconds: of the trainings.
        examples: that each run was trained on.
        optimizer: that trained the weights.
        tried: learning rates that were tried.
        at_edge: whether the best of several learning rates is the smallest or the largest of them.
        kept_start: whether, in some run, nothing validated better than the first weights.
        failed: why it has no values.
    """

    method: str
    measured: Mapping[str, Sequence[float]]
    interval: tuple[float, float] | None = None
    seconds: Sequence[float] = ()
    examples: int = 0
    optimizer: str = ""
    tried: int = 1
    at_edge: bool = False
    kept_start: bool = False
    failed: str = ""


@dataclass(frozen=True)
class LabelResults:
    """One of several labels.

    Attributes:
        name: what the data call it.
        rectangle: the (min_tpr, max_fpr) that it was trained for.
        num_positives: of the evaluated examples, those of all folds together.
        num_negatives: the same of the examples that were measured negative.
        measured: by method, means over the runs that have both classes, by the names of
            :func:`~lightning_tpauc.comparison.results.measures`; nan if none has.
        differences: by method, the difference of TPAUC to the baseline in ``rectangle``; empty if there is none.
    """

    name: str
    rectangle: Rectangle
    num_positives: int
    num_negatives: int
    measured: Mapping[str, Mapping[str, float]]
    differences: Mapping[str, Difference]

    @property
    def has_value(self) -> bool:
        """Whether some run has both classes."""
        return not any(math.isnan(values["tpauc 0"]) for values in self.measured.values())


@dataclass(frozen=True)
class Results:
    """All that a report shows.

    Attributes:
        rectangles: (min_tpr, max_fpr) pairs; the first one was trained for.
        rows: a row per method.
        differences: by method, the difference of TPAUC to the baseline, one for each rectangle.
        baseline: name of the method that the others are compared with.
        part: ``"test"`` or ``"validation"``: what was scored in the end.
        scores: by method, the scores of its runs.
        curves: by method, the points of its runs.
        num_resamples: number of bootstrap resamples that the intervals are made of.
        labels: what came out for each label; of several, all else shows the mean.
        notes: what a reader has to know.
    """

    rectangles: Sequence[Rectangle]
    rows: Sequence[Row]
    differences: Mapping[str, Sequence[Difference]]
    baseline: str
    part: str
    scores: Mapping[str, Sequence[Evaluated]]
    curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]
    num_resamples: int
    labels: Sequence[LabelResults] = ()
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def valued(self) -> list[LabelResults]:
        """The labels that the means are of."""
        return [label for label in self.labels if label.has_value]

    def verdict(self, method: str, rectangle: int = 0) -> str:
        """In plain words whether a method is ahead of the baseline.

        Args:
            method: name of another method than the baseline.
            rectangle: number of the rectangle.
        """
        untrained = [row.method for row in self.rows if row.kept_start and row.method in (method, self.baseline)]
        return verdict(self.differences[method][rectangle], self.baseline, untrained)


class Evaluation(NamedTuple):
    """By method: values of runs by name, interval in the first rectangle, differences; number of resamples; labels."""

    measured: dict[str, dict[str, list[float]]]
    intervals: dict[str, tuple[float, float]]
    differences: dict[str, list[Difference]]
    num_resamples: int
    labels: list[LabelResults]


def evaluate(
    scores: Mapping[str, Sequence[Evaluated]],
    baseline: str,
    rectangles: Sequence[Rectangle],
    labels: Sequence[tuple[str, Rectangle]],
    folds: int = 1,
) -> Evaluation:
    """Values, intervals and differences of what was scored."""
    if not scores:
        return Evaluation({}, {}, {}, 0, [])
    wanted = [[own, *rectangles[1:]] for _, own in labels]
    # by method, run, label and name
    each = {
        name: [[measures(*own, r) for own, r in zip(run.of_labels(), wanted, strict=True)] for run in runs]
        for name, runs in scores.items()
    }
    measured = {name: _by_name([_mean_of(run) for run in runs]) for name, runs in each.items()}
    count = num_resamples_for(sum(run.scores.numel() for runs in scores.values() for run in runs) * len(rectangles))
    areas = resampled_areas(scores, wanted, count, progress=_shown)
    intervals, differences = {}, {}
    for name, ours in areas.items():
        means = [statistics.fmean(measured[name][f"tpauc {k}"]) for k in range(len(rectangles))]
        intervals[name] = difference(means[0], ours[:, 0, 0], torch.zeros(()))[1:]
        if baseline in areas and name != baseline:
            theirs = [statistics.fmean(measured[baseline][f"tpauc {k}"]) for k in range(len(rectangles))]
            differences[name] = [
                difference(mean - theirs[k], ours[:, k, 0], areas[baseline][:, k, 0]) for k, mean in enumerate(means)
            ]
    targets = paired(scores)
    target = torch.cat(targets[: 1 if all(torch.equal(own, targets[0]) for own in targets) else folds])
    of_labels = []
    for k, (name, own) in enumerate(labels):
        values = {method: _mean_of([run[k] for run in runs]) for method, runs in each.items()}
        sampled = {method: found[:, 0, 1 + k] for method, found in areas.items()}
        counts = int((target[:, k] == 1).sum()), int((target[:, k] == 0).sum())
        of_labels.append(LabelResults(name, own, *counts, values, _differences_of_label(values, sampled, baseline)))
    return Evaluation(measured, intervals, differences, count, of_labels)


def _by_name(values: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [found[name] for found in values] for name in values[0]}


def _mean_of(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each name, the mean of what is not nan; nan if all are."""
    there = {name: [v for v in own if not math.isnan(v)] for name, own in _by_name(values).items()}
    return {name: statistics.fmean(own) if own else math.nan for name, own in there.items()}


def _differences_of_label(
    measured: Mapping[str, Mapping[str, float]], areas: Mapping[str, Tensor], baseline: str
) -> dict[str, Difference]:
    theirs = measured.get(baseline, {}).get("tpauc 0", math.nan)
    if math.isnan(theirs):
        return {}
    return {
        method: difference(measured[method]["tpauc 0"] - theirs, own, areas[baseline])
        for method, own in areas.items()
        if method != baseline
    }


def _shown(numbers: Iterable[int]) -> Iterable[int]:
    """With a bar, if it takes more than two seconds."""
    bar: Iterable[int] = tqdm(numbers, desc="resampling", delay=2)
    return bar
