"""What came out: the rows of the table and the differences to the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from lightning_tpauc.comparison.statistics import (
    Difference,
    Evaluated,
    difference,
    measures,
    num_resamples_for,
    resampled_areas,
)

__all__ = ("Results", "Row", "evaluate")


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        method: its name.
        measured: the values of all runs, by the names of :func:`~lightning_tpauc.comparison.statistics.measures`;
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
        num_resamples: of the intervals.
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


def evaluate(
    scores: Mapping[str, Sequence[Evaluated]], baseline: str, rectangles: Sequence[tuple[float, float]]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, list[tuple[float, float]]], dict[str, list[Difference]], int]:
    """Values, intervals and differences of what was scored.

    Args:
        scores: by method, its runs.
        baseline: name of the method that the others are compared with; without it there are no differences.
        rectangles: (min_tpr, max_fpr) pairs.

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
