"""The report of an experiment: README.md, table.csv and figures in its folder."""

from __future__ import annotations

import csv
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch

from examples.paper.methods import Method, Settings, at_edge, settings_of
from examples.paper.reported import reported_tpauc
from examples.paper.runner import Plan, Results, choose, chosen_settings
from examples.paper.trial import objective_name
from lightning_tpauc.comparison.report import COLOURS, as_png, draw_band, new_figure
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from lightning_tpauc.version import __version__

_COLUMNS = (
    *("min_tpr", "max_fpr", "method", "test_mean", "test_std", "interval_low", "interval_high", "validation_mean"),
    *("runs", "settings_tried", "settings_failed", "chosen", "at_edge", "paper_mean", "paper_std"),
)
_HEADER = (
    *("method", "test TPAUC, mean (std)", "paper", "95% interval", "validation", "runs", "settings tried (failed)"),
    *("chosen setting", "inside its grid?"),
)
#: These minimise the exact objective; the other methods' scores have another scale.
_MINIMISERS = ("STACO", "SOTA", "SONX")


def write_report(plan: Plan, store: Results, folder: Path, command: str) -> Path:
    """Write tables and figures of what has finished; returns the path of the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    table = rows(plan, store)
    with (folder / "table.csv").open("w", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(map(_csv_cells, table))
    pictures = []
    for rectangle in plan.experiment.rectangles:
        curves, name = training_curves(plan, store, rectangle), metric_name(rectangle)
        title = f"{plan.experiment.name}, TPR ≥ {rectangle.min_tpr:g}, FPR ≤ {rectangle.max_fpr:g}"
        if curves:
            (folder / f"curves_{name}.png").write_bytes(as_png(draw_curves(curves, title)))
            pictures.append(f"![Training curves](curves_{name}.png)")
        if any("loss" in point for runs in curves.values() for run in runs for point in run):
            (folder / f"losses_{name}.png").write_bytes(as_png(draw_losses(curves, title)))
            pictures.append(f"![Each method's own training loss; scales differ](losses_{name}.png)")
    parts = [f"# {plan.experiment.name}", _protocol(plan, store, command)]
    parts += [_section([row for row in table if row.rectangle == r]) for r in plan.experiment.rectangles]
    path = folder / "README.md"
    path.write_text("\n\n".join([*parts, *pictures]) + "\n", encoding="utf-8")
    return path


def environment() -> str:
    """Versions and machine, in one line."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return (
        f"lightning-tpauc {__version__}, torch {torch.__version__}, lightning {lightning.__version__}, "
        f"Python {platform.python_version()}, {device}"
    )


def _protocol(plan: Plan, store: Results, command: str) -> str:
    experiment = plan.experiment
    schedule = plan.schedule or experiment.schedule
    length = f"{schedule.steps} steps" if schedule.steps else f"{schedule.epochs} epochs"
    changed = "" if plan.schedule is None else " (shortened; the paper's schedule is longer)"
    folds = ", ".join(map(str, plan.folds(searching=True)))
    validation = f"the validation part of fold {folds} of {plan.num_folds}" if experiment.folds else "the given part"
    first = experiment.rectangles[0]
    where = f", TPR ≥ {first.min_tpr:g} and FPR ≤ {first.max_fpr:g}, for all rectangles" if plan.one_search else ""
    seconds = [outcome.seconds for _, outcome in store]
    source, arguments = experiment.data
    given = ", ".join(f"{name}={value}" for name, value in arguments.items() if name != "batch_size")
    others = "; the paper's values are of OGB's selection of these molecules" if source == "SMILESDataModule" else ""
    counts = sorted({len(settings_of(method.grid, plan.budget)) for method in experiment.methods})
    budget = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} (NOT the same budget)"
    return f"""Command: `{command}`

- {source}: {given}{others}.
- {length}{changed}, step sizes times 0.1 after {", ".join(map(str, schedule.milestones))}; backbone
  {experiment.model[0]}; weight decay 2e-4; 64 examples a step unless a method's name says otherwise.
- Methods try {budget} settings per rectangle. A setting is chosen by its mean value on
  {validation}{where}; search runs never see test data.
  The chosen setting is then trained again, with test values, on {len(plan.folds())} fold(s) and seeds
  {", ".join(map(str, plan.seeds))}; "runs" counts those that have finished. Steps of each method: the end of its curve.
- std is the sample standard deviation over these runs. The interval is a 95% stratified bootstrap of the first run's
  test scores: the error of the finite test set alone.
- {len(seconds)} trainings, {sum(seconds) / 3600:.2f} hours of processes. {environment()}."""


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class Row:
    """One method and one rectangle.

    Attributes:
        rectangle: what is reported.
        method: name of the method.
        paper: the paper's (mean, std).
        tried: settings of the search that have finished or failed.
        failed: settings of the search that became infinite.
        chosen: the chosen setting; empty if there is none yet.
        edges: arguments whose chosen value is at the edge of what was tried.
        validation: mean validation TPAUC of the chosen setting in the search, on the rectangle that was searched.
        values: test TPAUC of the final runs, (folds or seeds).
        interval: 95% bootstrap interval of the first final run: the error of the finite test set.
    """

    rectangle: Rectangle
    method: str
    paper: tuple[float, float] | None
    tried: int
    failed: int
    chosen: Settings
    edges: Sequence[str] = ()
    validation: float | None = None
    values: Sequence[float] = ()
    interval: tuple[float, float] | None = None

    @property
    def mean(self) -> float | None:
        """Mean test TPAUC."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation, of two values at least."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def rows(plan: Plan, store: Results) -> list[Row]:
    """One row per rectangle and method, of what has finished."""
    return [_row(plan, store, method, r) for r in plan.experiment.rectangles for method in plan.experiment.methods]


def _row(plan: Plan, store: Results, method: Method, rectangle: Rectangle) -> Row:
    searched, tried = plan.searched(rectangle), settings_of(method.grid, plan.budget)
    found = [[store.get(trial) for trial in plan.search(method, searched, settings)] for settings in tried]
    done = [[outcome for outcome in own if outcome is not None] for own in found if None not in own]
    failed = sum(any(outcome.status == "failed" for outcome in own) for own in done)
    paper = reported_tpauc(method.reported_as, plan.experiment.data_name, rectangle)
    chosen = choose(plan, method, rectangle, store)
    if chosen is None:
        return Row(rectangle, method.name, paper, len(done), failed, {})
    judged = [outcome.val[metric_name(searched)] for outcome in found[tried.index(chosen)] if outcome is not None]
    final = [store.get(trial) for trial in plan.final(method, rectangle, chosen)]
    finished = [outcome for outcome in final if outcome is not None and outcome.status == "finished"]
    name = metric_name(rectangle)
    return Row(
        rectangle,
        method.name,
        paper,
        len(done),
        failed,
        chosen,
        at_edge(method.grid, chosen, tried),
        statistics.fmean(judged),
        [outcome.test[name] for outcome in finished],
        finished[0].interval[name] if finished else None,
    )


def _csv_cells(row: Row) -> list[Any]:
    cells = [*map(str, row.rectangle), row.method, row.mean, row.std, *(row.interval or (None, None)), row.validation]
    cells += [len(row.values), row.tried, row.failed, describe(row.chosen), " ".join(row.edges)]
    return [f"{cell:.5f}" if isinstance(cell, float) else cell for cell in cells] + list(
        map(str, row.paper or ("", ""))
    )


def _section(own: Sequence[Row]) -> str:
    """A table, the best mean in bold, and what our best method is below."""
    best = max((row.mean for row in own if row.mean is not None), default=None)
    head, *body = (f"| {' | '.join(cells)} |" for cells in (_HEADER, *(_cells(row, best) for row in own)))
    title = "## TPR ≥ {:g}, FPR ≤ {:g}".format(*own[0].rectangle)
    return "\n".join([title, "", head, f"|{'---|' * len(_HEADER)}", *body, "", *_verdict(own)])


def _cells(row: Row, best: float | None) -> list[str]:
    tried, paper = f"{row.tried} ({row.failed})", _value(*row.paper) if row.paper else "—"
    if row.mean is None or row.interval is None:
        return [row.method, "—", paper, "—", "—", "0", tried, "—", "—"]
    value = f"**{_value(row.mean, row.std)}**" if row.mean == best else _value(row.mean, row.std)
    inside = "yes" if not row.edges else f"no: {', '.join(row.edges)} at the edge"
    low, high = row.interval
    found = [row.method, value, paper, f"{low:.3f} to {high:.3f}", f"{row.validation:.3f}", str(len(row.values))]
    return [*found, tried, describe(row.chosen), inside]


def _verdict(own: Sequence[Row]) -> list[str]:
    """Where STACO is below another method, in words."""
    means = {row.method: row.mean for row in own if row.mean is not None}
    ours = [name for name in means if name.startswith("STACO")]
    if not ours or len(ours) == len(means):
        return []
    mine = max(ours, key=means.__getitem__)
    above = [f"{name} ({mean:.3f})" for name, mean in means.items() if name not in ours and mean > means[mine]]
    if not above:
        return [f"{mine} has the best mean."]
    return [f"The best STACO ({mine}, {means[mine]:.3f}) is below {', '.join(above)}."]


def _value(mean: float, std: float | None) -> str:
    return f"{mean:.3f}" if std is None else f"{mean:.3f} ({std:.3f})"


def describe(settings: Settings) -> str:
    """A setting in one line.

    Example:
        >>> describe({"lr": 0.1, "gamma": 300.0})
        'lr=0.1, gamma=300'
    """
    numbers = {name: f"{v:g}" if isinstance(v, (int, float)) else v for name, v in settings.items()}
    return ", ".join(f"{name}={value}" for name, value in numbers.items())


# ---------------------------------------------------------------- figures

#: Points of the final runs by method, for one rectangle: ``step``, ``tpauc``, and, where it is known, ``objective`` and
#: ``loss``.
Curves = Mapping[str, Sequence[Sequence[Mapping[str, float]]]]


def training_curves(plan: Plan, store: Results, rectangle: Rectangle) -> Curves:
    """The curves of the chosen settings that have finished, for one of the rectangles that are reported."""
    names = {metric_name(rectangle): "tpauc", objective_name(rectangle): "objective", "step": "step", "loss": "loss"}
    found: dict[str, list[Any]] = {}
    for method, reported, settings in chosen_settings(plan, store):
        for trial in plan.final(method, reported, settings) if reported == rectangle else ():
            outcome = store.get(trial)
            if outcome is not None and outcome.curve:
                points = [{ours: p[name] for name, ours in names.items() if name in p} for p in outcome.curve]
                found.setdefault(method.name, []).append(points)
    return found


def draw_curves(curves: Curves, title: str) -> Any:
    """Training loss and training TPAUC against steps: means over runs, and bands from the lowest to the highest.

    The axis of TPAUC shows where the curves end up, and is cut below that: all start near 0 and end close together.
    The loss is the exact objective with the squared hinge, of the methods that minimise it: one scale for all of them.
    """
    figure, (loss, area) = new_figure(1, 2, (11, 4.2))
    for k, (method, runs) in enumerate(curves.items()):
        draw_band(area, runs, "tpauc", method, COLOURS[k % len(COLOURS)])
        if method.startswith(_MINIMISERS) and not method.startswith("SOTAs"):
            draw_band(loss, runs, "objective", method, COLOURS[k % len(COLOURS)])
    late = [p["tpauc"] for runs in curves.values() for run in runs for p in run if 2 * p["step"] >= run[-1]["step"]]
    area.set(xlabel="step", ylabel="training TPAUC", ylim=(max(0.0, 3 * min(late) - 2 * max(late)), None))
    area.legend(fontsize=8, frameon=False)
    loss.set(xlabel="step", ylabel="training loss, exact objective (squared hinge)")
    if loss.has_data():
        loss.set_yscale("log")
    figure.suptitle(title, fontsize=11)
    return figure


def draw_losses(curves: Curves, title: str) -> Any:
    """Each method's own training loss against steps, a panel for each, since their scales have nothing in common."""
    columns = min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure, axes = new_figure(rows, columns, (3.7 * columns, 2.5 * rows + 0.4))
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    for k, (ax, (method, runs)) in enumerate(zip(axes, curves.items(), strict=False)):
        draw_band(ax, runs, "loss", method, COLOURS[k % len(COLOURS)])
        ax.set(xlabel="step", ylabel="own loss", title=method)
    figure.suptitle(f"{title}:\nmean loss of the steps between two points", fontsize=11)
    return figure


def draw_times(milliseconds: Mapping[str, Sequence[float]], title: str) -> Any:
    """Time per step of each method: the median as a bar, quartiles as a line."""
    figure, (ax,) = new_figure(1, 1, (7, 0.45 * len(milliseconds) + 1.2))
    low, middle, high = np.array([np.quantile(times, (0.25, 0.5, 0.75)) for times in milliseconds.values()]).T
    ax.barh(list(milliseconds), middle, xerr=[middle - low, high - middle], color="#a4c8e4", ecolor="#1f3b57")
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds per step (median, quartiles)", title=title)
    return figure
