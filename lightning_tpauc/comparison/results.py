"""What came out: values, paired differences, a verdict, and the rows of the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr, two_way_partial_auroc
from lightning_tpauc.functional.order import split_classes
from lightning_tpauc.functional.roc import exact_area

#: All resamples together draw at most this many scores. Larger sets get fewer resamples, since theirs differ less.
_DRAWS = 1_000_000_000


class Evaluated(NamedTuple):
    """Scores of one run.

    Attributes:
        scores: float tensor ``(N,)``.
        target: integer tensor ``(N,)`` of 0 and 1.
    """

    scores: Tensor
    target: Tensor


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


def measures(run: Evaluated, rectangles: Sequence[tuple[float, float]]) -> dict[str, float]:
    """All that a table shows of one run's scores.

    Returns:
        ``tpauc 0``, ``tpauc 1`` and so on by rectangle, ``auroc``, ``average_precision``, ``tpr_at_max_fpr`` and
        ``fpr_at_min_tpr``.

    Example:
        >>> run = Evaluated(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]))
        >>> measures(run, [(0.5, 0.5)])["auroc"]
        0.75
    """
    from sklearn.metrics import average_precision_score

    min_tpr, max_fpr = rectangles[0]
    found = {f"tpauc {k}": float(two_way_partial_auroc(*run, *r)) for k, r in enumerate(rectangles)}
    found["auroc"] = float(two_way_partial_auroc(*run, 0.0, 1.0))
    found["average_precision"] = float(average_precision_score(run.target.numpy(), run.scores.double().numpy()))
    found["tpr_at_max_fpr"] = float(tpr_at_max_fpr(*run, max_fpr))
    found["fpr_at_min_tpr"] = float(fpr_at_min_tpr(*run, min_tpr))
    return found


def num_resamples_for(num_scores: int) -> int:
    """Number of resamples for this many scores (examples x runs x methods): 1000; of huge sets fewer, at least 200.

    Example:
        >>> num_resamples_for(100_000), num_resamples_for(10**9)
        (1000, 200)
    """
    return max(200, min(1000, _DRAWS // max(1, num_scores)))


def resampled_areas(
    methods: Mapping[str, Sequence[Evaluated]],
    rectangles: Sequence[tuple[float, float]],
    num_resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, Tensor]:
    r"""TPAUC of every method in stratified resamples that are the same for all of them.

    A resample draws runs (seeds or folds) with replacement, and of each class as many examples as there are, with
    replacement. Runs that were evaluated on the same examples share their draw. So the spread includes the error of the
    finite data. With R runs it also includes a part of the error of training, :math:`(R - 1) / R` of its variance; with
    one run it includes nothing of that.

    Args:
        methods: by method, its runs; run k of all methods has the same examples in the same order.
        rectangles: (min_tpr, max_fpr) pairs.
        num_resamples: number of resamples.
        seed: of the draws.
        progress: is handed the numbers of the resamples, and may show how many are done.

    Returns:
        By method, a float64 tensor ``(num_resamples, len(rectangles))``: means over the drawn runs.

    Raises:
        ArgumentError: if the runs are not paired, or a class is missing.
    """
    targets = _paired(methods)
    shared = all(torch.equal(target, targets[0]) for target in targets)
    split = {name: [split_classes(*run) for run in runs] for name, runs in methods.items()}
    counts = [(int((t == 1).sum()), int((t == 0).sum())) for t in targets]
    if any(0 in count for count in counts):
        msg = "Methods can't be compared on data that lack a class."
        raise ArgumentError(msg)
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.zeros(num_resamples, len(rectangles), dtype=torch.float64) for name in methods}
    for k in progress(range(num_resamples)):
        drawn = torch.randint(len(targets), (len(targets),), generator=generator).tolist()
        rows = [_draw(counts[0], generator)] * len(drawn) if shared else [_draw(counts[r], generator) for r in drawn]
        for name, runs in split.items():
            for run, (pos, neg) in zip(drawn, rows, strict=True):
                scores = runs[run][0][pos], runs[run][1][neg]
                areas = [exact_area(*scores, *rectangle) for rectangle in rectangles]
                found[name][k] += torch.tensor(areas, dtype=torch.float64) / len(drawn)
    return found


def _paired(methods: Mapping[str, Sequence[Evaluated]]) -> list[Tensor]:
    first = [run.target for run in next(iter(methods.values()))]
    for name, runs in methods.items():
        same = len(runs) == len(first) and all(torch.equal(r.target, t) for r, t in zip(runs, first, strict=True))
        if not same:
            msg = f"The runs of {name!r} were evaluated on other examples than those of the other methods."
            raise ArgumentError(msg)
    return first


def _draw(counts: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    pos, neg = (torch.randint(count, (count,), generator=generator) for count in counts)
    return pos, neg


def difference(estimate: float, ours: Tensor, theirs: Tensor) -> Difference:
    """The difference with its 95% percentile interval.

    Example:
        >>> difference(0.5, torch.full((9,), 0.75), torch.full((9,), 0.25))
        Difference(estimate=0.5, lower=0.5, upper=0.5)
    """
    tail = (1.0 - 0.95) / 2
    ends = (ours - theirs).double().quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
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
    """

    rectangles: Sequence[tuple[float, float]]
    rows: Sequence[Row]
    differences: Mapping[str, Sequence[Difference]]
    baseline: str
    part: str
    scores: Mapping[str, Sequence[Evaluated]]
    curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]
    num_resamples: int
    notes: Sequence[str] = field(default_factory=tuple)

    def verdict(self, method: str, rectangle: int = 0) -> str:
        """In plain words whether a method is ahead of the baseline.

        Args:
            method: name of another method than the baseline.
            rectangle: number of the rectangle.
        """
        untrained = [row.method for row in self.rows if row.kept_start and row.method in (method, self.baseline)]
        return verdict(self.differences[method][rectangle], self.baseline, untrained)


def evaluate(
    scores: Mapping[str, Sequence[Evaluated]], baseline: str, rectangles: Sequence[tuple[float, float]]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[tuple[float, float]]], dict[str, list[Difference]], int]:
    """Values, intervals and differences of what was scored.

    Returns:
        By method: the values of its runs by name, the intervals of its areas, and the differences of its areas to the
        baseline's; then the number of resamples.
    """
    values = {name: [measures(run, rectangles) for run in runs] for name, runs in scores.items()}
    measured = {name: {key: [run[key] for run in runs] for key in runs[0]} for name, runs in values.items()}
    drawn = sum(run.scores.numel() for runs in scores.values() for run in runs) * len(rectangles)
    count = num_resamples_for(drawn)
    areas = resampled_areas(scores, rectangles, count, progress=_shown) if scores else {}
    found: dict[str, list[Difference]] = {}
    intervals: dict[str, list[tuple[float, float]]] = {}
    for name, own in areas.items():
        means = [statistics.fmean(measured[name][f"tpauc {k}"]) for k in range(len(rectangles))]
        alone = [difference(mean, own[:, k], 0 * own[:, k]) for k, mean in enumerate(means)]
        intervals[name] = [(d.lower, d.upper) for d in alone]
        if baseline in areas and name != baseline:
            theirs = [statistics.fmean(measured[baseline][f"tpauc {k}"]) for k in range(len(rectangles))]
            found[name] = [
                difference(mean - theirs[k], own[:, k], areas[baseline][:, k]) for k, mean in enumerate(means)
            ]
    return measured, intervals, found, count


def _shown(numbers: Iterable[int]) -> Iterable[int]:
    """With a bar, if it takes more than two seconds."""
    bar: Iterable[int] = tqdm(numbers, desc="resampling", delay=2)
    return bar
