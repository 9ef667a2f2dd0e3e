"""Tables of an experiment: Markdown to read, CSV to compute with."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from examples.paper.grids import Settings, at_edge, settings_of
from examples.paper.methods import Method
from examples.paper.records import Outcome, Results
from examples.paper.reported import reported_tpauc
from examples.paper.runner import Plan, choose
from lightning_tpauc.metrics.reporting import Rectangle, metric_name

__all__ = ("Row", "rows", "to_csv", "to_markdown")

_COLUMNS = (
    *("min_tpr", "max_fpr", "method", "test_mean", "test_std", "interval_low", "interval_high", "validation_mean"),
    *("runs", "settings_tried", "settings_failed", "chosen", "at_edge", "paper_mean", "paper_std"),
)


_HEADER = (
    *("method", "test TPAUC, mean (std)", "paper", "95% interval", "validation", "runs", "settings tried (failed)"),
    *("chosen setting", "inside its grid?"),
)


@dataclass(frozen=True)
class Row:
    """One method and one rectangle.

    Attributes:
        rectangle: what is reported.
        method: name of the method.
        mean: mean test TPAUC over the final runs; ``None`` if there are none yet.
        std: sample standard deviation over the final runs; ``None`` below two.
        interval: 95% bootstrap interval of the first final run: the error of the finite test set.
        validation: mean validation TPAUC of the chosen setting in the search, on the rectangle that was searched.
        runs: final runs, (folds or seeds).
        failed: settings of the search that became infinite.
        tried: settings of the search that have finished or failed.
        chosen: the chosen setting.
        edges: arguments whose chosen value is at the edge of what was tried.
        paper: the paper's (mean, std).
    """

    rectangle: Rectangle
    method: str
    mean: float | None
    std: float | None
    interval: tuple[float, float] | None
    validation: float | None
    runs: int
    failed: int
    tried: int
    chosen: Settings
    edges: tuple[str, ...]
    paper: tuple[float, float] | None


def rows(plan: Plan, store: Results) -> list[Row]:
    """One row per rectangle and method, of what has finished."""
    return [_row(plan, store, method, r) for r in plan.experiment.rectangles for method in plan.experiment.methods]


def _row(plan: Plan, store: Results, method: Method, rectangle: Rectangle) -> Row:
    name = metric_name(rectangle)
    counts = plan.searched(rectangle)
    trained = plan.trained(method, counts)
    searched: list[list[Outcome]] = []
    for settings in settings_of(method.grid, plan.budget):
        found = [store.get(trial) for trial in plan.search(method, trained, settings)]
        done = [outcome for outcome in found if outcome is not None]
        if len(done) == len(found):
            searched.append(done)
    failed = sum(any(outcome.status == "failed" for outcome in done) for done in searched)
    chosen = choose(plan, method, rectangle, store)
    paper = reported_tpauc(method.reported_as, plan.experiment.data_name, rectangle)
    if chosen is None:
        return Row(rectangle, method.name, None, None, None, None, 0, failed, len(searched), {}, (), paper)
    search = [store.get(trial) for trial in plan.search(method, trained, chosen)]
    final = [store.get(trial) for trial in plan.final(method, plan.trained(method, rectangle), chosen)]
    finished = [outcome for outcome in final if outcome is not None and outcome.status == "finished"]
    values = [outcome.test[name] for outcome in finished]
    return Row(
        rectangle,
        method.name,
        statistics.fmean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
        finished[0].interval[name] if finished else None,
        statistics.fmean(outcome.val[metric_name(counts)] for outcome in search if outcome is not None),
        len(values),
        failed,
        len(searched),
        chosen,
        tuple(at_edge(method.grid, chosen, settings_of(method.grid, plan.budget))),
        paper,
    )


def to_csv(table: list[Row]) -> str:
    """The rows as CSV with a header."""
    rows = []
    for row in table:
        numbers = [row.mean, row.std, *(row.interval or (None, None)), row.validation]
        counts = [row.runs, row.tried, row.failed, describe(row.chosen), " ".join(row.edges)]
        rows.append([*map(str, row.rectangle), row.method, *numbers, *counts, *map(str, row.paper or ("", ""))])
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([[f"{cell:.5f}" if isinstance(cell, float) else cell for cell in row] for row in rows])
    return file.getvalue()


def to_markdown(plan: Plan, table: list[Row]) -> str:
    """One table per rectangle, the best mean in bold, and what our best method is below."""
    parts = []
    for rectangle in plan.experiment.rectangles:
        own = [row for row in table if row.rectangle == rectangle]
        best = max((row.mean for row in own if row.mean is not None), default=None)
        title = f"## TPR ≥ {rectangle.min_tpr:g}, FPR ≤ {rectangle.max_fpr:g}"
        lines = _as_markdown(_HEADER, [_line(row, best) for row in own])
        parts.append("\n".join([title, "", lines, "", *_verdict(own)]))
    return "\n\n".join(parts)


def _as_markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *lines))
    return "\n".join([head, f"|{'---|' * len(header)}", *body])


def _line(row: Row, best: float | None) -> list[str]:
    tried = f"{row.tried} ({row.failed})"
    paper = _value(*row.paper) if row.paper else "—"
    if row.mean is None or row.validation is None:
        return [row.method, "—", paper, "—", "—", "0", tried, "—", "—"]
    value = _value(row.mean, row.std)
    value = f"**{value}**" if row.mean == best else value
    interval = f"{row.interval[0]:.3f} to {row.interval[1]:.3f}" if row.interval else "—"
    inside = "yes" if not row.edges else f"no: {', '.join(row.edges)} at the edge"
    found = [row.method, value, paper, interval, f"{row.validation:.3f}", str(row.runs)]
    return [*found, tried, describe(row.chosen), inside]


def _verdict(own: list[Row]) -> list[str]:
    """Where STACO is below another method, in words."""
    ours = [row for row in own if row.method.startswith("STACO") and row.mean is not None]
    others = [row for row in own if not row.method.startswith("STACO") and row.mean is not None]
    if not ours or not others:
        return []
    mine = max(ours, key=lambda row: row.mean or 0.0)
    above = [row for row in others if (row.mean or 0.0) > (mine.mean or 0.0)]
    if not above:
        return [f"{mine.method} has the best mean."]
    named = ", ".join(f"{row.method} ({row.mean:.3f})" for row in above)
    return [f"The best STACO ({mine.method}, {mine.mean:.3f}) is below {named}."]


def _value(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ({std:.3f})"


def describe(settings: Settings) -> str:
    """A setting in one line.

    Example:
        >>> describe({"lr": 0.1, "gamma": 300.0})
        'lr=0.1, gamma=300'
    """
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, (int, float)) else f"{name}={value}"
        for name, value in settings.items()
    )
