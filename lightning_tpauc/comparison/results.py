"""What came out: values, paired differences, a verdict, and the rows of the table."""

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


def measured_names(rectangles: Sequence[Rectangle]) -> tuple[list[str], list[str]]:
    """Names of the areas in rectangles, and of all else that is measured.

    Example:
        >>> measured_names([(0.5, 0.5)])
        (['tpauc 0'], ['auroc', 'average_precision', 'tpr_at_max_fpr', 'fpr_at_min_tpr'])
    """
    areas = [f"tpauc {k}" for k in range(len(rectangles))]
    return areas, ["auroc", "average_precision", "tpr_at_max_fpr", "fpr_at_min_tpr"]


def measures(run: Evaluated, rectangles: Sequence[Rectangle]) -> dict[str, float]:
    """All that a table shows of one run's scores of one label.

    Returns:
        ``tpauc 0``, ``tpauc 1`` and so on by rectangle, ``auroc``, ``average_precision``, ``tpr_at_max_fpr`` and
        ``fpr_at_min_tpr``; nan, all of them, where a class is missing.

    Example:
        >>> run = Evaluated(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))
        >>> measures(run, [(0.5, 0.5)])["auroc"]
        0.75
    """
    from sklearn.metrics import average_precision_score

    areas, others = measured_names(rectangles)
    if not run.is_rankable:
        return dict.fromkeys((*areas, *others), math.nan)
    min_tpr, max_fpr = rectangles[0]
    found = {name: float(two_way_partial_auroc(*run, *r)) for name, r in zip(areas, rectangles, strict=True)}
    found["auroc"] = float(two_way_partial_auroc(*run, 0.0, 1.0))
    found["average_precision"] = float(average_precision_score(run.target.numpy(), run.scores.double().numpy()))
    found["tpr_at_max_fpr"] = float(tpr_at_max_fpr(*run, max_fpr))
    found["fpr_at_min_tpr"] = float(fpr_at_min_tpr(*run, min_tpr))
    return found


def difference(estimate: float, ours: Tensor, theirs: Tensor) -> Difference:
    """The difference with its 95% percentile interval, over the resamples that have it.

    Example:
        >>> difference(0.5, torch.full((9,), 0.75), torch.full((9,), 0.25))
        Difference(estimate=0.5, lower=0.5, upper=0.5)
    """
    tail = (1.0 - 0.95) / 2
    ends = (ours - theirs).double().nanquantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return Difference(estimate, *ends.tolist())


def verdict(found: Difference, baseline: str, untrained: Sequence[str] = ()) -> str:
    """In plain words whether a method is ahead of the baseline.

    Args:
        found: how far it is ahead.
        baseline: name of the method that it is compared with.
        untrained: which of the two methods validated best with its first weights, so that nothing can be said of it.

    Example:
        >>> verdict(Difference(0.04, 0.02, 0.06), "cross-entropy")
        'ahead by .040, 95% interval .020 to .060'
        >>> verdict(Difference(0.01, -0.01, 0.03), "cross-entropy")
        'level: keep cross-entropy (+.010, 95% interval -.010 to .030)'
        >>> verdict(Difference(-0.04, -0.06, -0.02), "cross-entropy")
        'behind by .040, 95% interval .020 to .060: keep cross-entropy'
        >>> verdict(Difference(0.4, 0.3, 0.5), "cross-entropy", ["cross-entropy"])
        'open (+.400, 95% interval .300 to .500): cross-entropy never validated better than its first weights'
    """
    lower, upper = (-found.upper, -found.lower) if found.upper < 0 and not untrained else (found.lower, found.upper)
    interval = f"95% interval {short(lower)} to {short(upper)}"
    if untrained:
        who = f"{' and '.join(untrained)} never validated better than {'its' if len(untrained) == 1 else 'their'}"
        return f"open ({short(found.estimate, sign='+')}, {interval}): {who} first weights"
    if found.lower > 0:
        return f"ahead by {short(found.estimate)}, {interval}"
    if found.upper < 0:
        return f"behind by {short(-found.estimate)}, {interval}: keep {baseline}"
    return f"level: keep {baseline} ({short(found.estimate, sign='+')}, {interval})"


def short(value: float, sign: str = "") -> str:
    """Three decimals, without the zero before the point.

    Example:
        >>> short(0.0404), short(-0.5), short(0.25, sign="+"), short(1.0)
        ('.040', '-.500', '+.250', '1.000')
    """
    text = f"{value:{sign}.3f}".replace("-0.000", "0.000")
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        method: its name.
        measured: the values of all runs, by the names of :func:`~lightning_tpauc.comparison.results.measures`;
            empty if it failed.
        interval: 95% bootstrap interval of its TPAUC, by rectangle.
        seconds: of the trainings.
        examples: that each run was trained on.
        optimizer: that trained the weights.
        tried: learning rates that were tried.
        at_edge: whether the best of several learning rates is the smallest or the largest of them.
        kept_start: whether, of some run, the untrained weights validated best.
        failed: why it has no values.
    """

    method: str
    measured: Mapping[str, Sequence[float]]
    interval: Sequence[tuple[float, float]] = ()
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
    def counts(self) -> tuple[int, int]:
        """Numbers of positives and of negatives."""
        return self.num_positives, self.num_negatives

    @property
    def has_value(self) -> bool:
        """Whether some run has both classes."""
        return not any(math.isnan(values["tpauc 0"]) for values in self.measured.values())


def most_positives(labels: Sequence[LabelResults], count: int) -> list[int]:
    """Positions of the labels with the most positives, at most so many of them, in ascending order.

    Example:
        >>> labels = [LabelResults("", (0.5, 0.5), number, 9, {}, {}) for number in (3, 1, 7)]
        >>> most_positives(labels, 2)
        [0, 2]
    """
    return sorted(sorted(range(len(labels)), key=lambda k: -labels[k].num_positives)[:count])


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
        notes: what a reader has to know.
        labels: what came out for each of several labels, of which all else shows the mean; empty with one label.
    """

    rectangles: Sequence[Rectangle]
    rows: Sequence[Row]
    differences: Mapping[str, Sequence[Difference]]
    baseline: str
    part: str
    scores: Mapping[str, Sequence[Evaluated]]
    curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]
    num_resamples: int
    notes: Sequence[str] = field(default_factory=tuple)
    labels: Sequence[LabelResults] = ()

    @property
    def num_valued(self) -> int:
        """Number of labels that the means are of."""
        return sum(label.has_value for label in self.labels)

    def verdict(self, method: str, rectangle: int = 0) -> str:
        """In plain words whether a method is ahead of the baseline.

        Args:
            method: name of another method than the baseline.
            rectangle: number of the rectangle.
        """
        untrained = [row.method for row in self.rows if row.kept_start and row.method in (method, self.baseline)]
        return verdict(self.differences[method][rectangle], self.baseline, untrained)


class Evaluation(NamedTuple):
    """What :func:`evaluate` found.

    Attributes:
        measured: by method, the values of its runs by name; of several labels, means over those that have one.
        intervals: by method, the intervals of its areas.
        differences: by method, the differences of its areas to the baseline's.
        num_resamples: number of resamples.
        labels: each of several labels.
    """

    measured: dict[str, dict[str, list[float]]]
    intervals: dict[str, list[tuple[float, float]]]
    differences: dict[str, list[Difference]]
    num_resamples: int
    labels: list[LabelResults]


def evaluate(
    scores: Mapping[str, Sequence[Evaluated]],
    baseline: str,
    rectangles: Sequence[Rectangle],
    labels: Sequence[tuple[str, Rectangle]] = (),
    folds: int = 1,
) -> Evaluation:
    """Values, intervals and differences of what was scored.

    Args:
        scores: by method, its runs.
        baseline: name of the method that the others are compared with.
        rectangles: (min_tpr, max_fpr) pairs.
        labels: name of each of several labels, and the rectangle that takes the place of the first one.
        folds: how many of the first runs have parts of the same data, if the runs have different examples.
    """
    own = [rectangle for _, rectangle in labels]
    demanded = [[first, *rectangles[1:]] for first in own or rectangles[:1]]
    # by method, run, label and name
    each = {name: [_measured(run, demanded) for run in runs] for name, runs in scores.items()}
    measured = {name: _by_name([_mean_of(run) for run in runs]) for name, runs in each.items()}
    drawn = sum(run.scores.numel() for runs in scores.values() for run in runs) * len(rectangles)
    count = num_resamples_for(drawn)
    areas = resampled_areas(scores, rectangles, count, progress=_shown, own=own) if scores else {}
    means = {name: found[..., 0] if labels else found for name, found in areas.items()}
    estimates = {n: [statistics.fmean(measured[n][f"tpauc {k}"]) for k in range(len(rectangles))] for n in areas}
    found: dict[str, list[Difference]] = {}
    intervals: dict[str, list[tuple[float, float]]] = {}
    for name, ours in means.items():
        alone = [difference(mean, ours[:, k], 0 * ours[:, k]) for k, mean in enumerate(estimates[name])]
        intervals[name] = [(d.lower, d.upper) for d in alone]
        if baseline in means and name != baseline:
            theirs = estimates[baseline]
            found[name] = [
                difference(mean - theirs[k], ours[:, k], means[baseline][:, k])
                for k, mean in enumerate(estimates[name])
            ]
    of_labels = []
    if labels and scores:
        targets = paired(scores)
        shared = all(torch.equal(target, targets[0]) for target in targets)
        target = torch.cat(targets[: 1 if shared else folds])
        for k, label in enumerate(labels):
            own_values = {name: _mean_of([run[k] for run in runs]) for name, runs in each.items()}
            own_areas = {name: sampled[:, 0, 1 + k] for name, sampled in areas.items()}
            of_labels.append(_label(*label, target[:, k], own_values, own_areas, baseline))
    return Evaluation(measured, intervals, found, count, of_labels)


def _measured(run: Evaluated, demanded: Sequence[Sequence[Rectangle]]) -> list[dict[str, float]]:
    return [measures(label, rectangles) for label, rectangles in zip(run.of_labels(), demanded, strict=True)]


def _by_name(values: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [found[name] for found in values] for name in values[0]}


def _mean_of(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each name, the mean of what is not nan; nan if all are."""
    there = {name: [v for v in own if not math.isnan(v)] for name, own in _by_name(values).items()}
    return {name: statistics.fmean(own) if own else math.nan for name, own in there.items()}


def _label(
    name: str,
    rectangle: Rectangle,
    target: Tensor,
    measured: Mapping[str, Mapping[str, float]],
    areas: Mapping[str, Tensor],
    baseline: str,
) -> LabelResults:
    """One label: its values, and its areas in the resamples, by method."""
    differences = {}
    if baseline in areas and not math.isnan(measured[baseline]["tpauc 0"]):
        for method in areas.keys() - {baseline}:
            estimate = measured[method]["tpauc 0"] - measured[baseline]["tpauc 0"]
            differences[method] = difference(estimate, areas[method], areas[baseline])
    return LabelResults(name, rectangle, int((target == 1).sum()), int((target == 0).sum()), measured, differences)


def _shown(numbers: Iterable[int]) -> Iterable[int]:
    """With a bar, if it takes more than two seconds."""
    bar: Iterable[int] = tqdm(numbers, desc="resampling", delay=2)
    return bar
