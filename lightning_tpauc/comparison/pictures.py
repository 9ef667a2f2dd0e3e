"""Pictures of comparisons: ROC curves and training curves of all methods."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_tpauc.comparison.results import LabelResults, Results
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing
from lightning_tpauc.functional import roc_polyline

COLOURS = ("#1f3b57", "#f2a33a", "#4c9a6a", "#b0413e", "#7b6ba8", "#5aa5c8", "#8a8f98", "#c77fb0", "#9a7b4f", "#2f7f7a")
#: Neighbouring methods have different lines, so that both show where one lies on the other.
_LINES = ("-", (0, (6, 2)), (0, (3, 2)), (0, (1, 1.5)))
#: At most so many labels have ROC curves of their own.
PANELS = 12


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure and its axes."""
    # a figure without pyplot: no window system, no global state to clean up
    module = import_extra("matplotlib.figure", "plot")
    figure = module.Figure(figsize=size, layout="constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns)))


def dress(ax: Any) -> None:
    """A light grid, and no frame on top and on the right."""
    ax.grid(visible=True, color="#8a8f98", alpha=0.18, linewidth=0.8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def as_png(figure: Any) -> bytes:
    """The picture; the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def save(figure: Any, path: Path) -> None:
    """Write the picture."""
    with replacing(path) as file:
        file.write(as_png(figure))


def draw_band(
    ax: Any, runs: Sequence[Sequence[Mapping[str, float]]], name: str, label: str, colour: str, x: str = "step"
) -> None:
    """Draw the mean over runs as a line, and their lowest and highest values as a band.

    Runs that have no values at the places of the first run are left out, and points that lack the value.
    """
    drawn = [run for run in ({p[x]: p[name] for p in points if name in p} for points in runs) if run]
    drawn = [run for run in drawn if run.keys() == drawn[0].keys()]
    if not drawn:
        return
    places, values = list(drawn[0]), np.array([list(run.values()) for run in drawn])
    ax.plot(places, values.mean(axis=0), color=colour, label=label, linewidth=1.8)
    ax.fill_between(places, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def draw_roc(results: Results) -> Any:
    """ROC curves of all methods: a panel for each label that has a value, of many for those with the most positives."""
    panels = [k for k, label in enumerate(results.labels) if label.has_value]
    panels = sorted(sorted(panels, key=lambda k: -results.labels[k].num_positives)[:PANELS])
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    size = 6.5 if columns == 1 else 2.75
    figure, axes = new_figure(rows, columns, (max(5.5, size * columns), size * rows + 1.2))
    for ax, k in zip(axes, panels, strict=False):
        label = results.labels[k]
        _draw_curves(ax, {n: [run.of_labels()[k] for run in runs] for n, runs in results.scores.items()}, label)
        if label.rectangle[1] < 0.2:  # else it can't be seen
            ax.set(xlim=(-0.05 * label.rectangle[1], 5 * label.rectangle[1]), aspect="auto")
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), fontsize=8, frameon=False)
    figure.suptitle(f"ROC on {results.part} data", fontsize=11)
    return figure


def _draw_curves(ax: Any, methods: Mapping[str, Sequence[tuple[Tensor, Tensor]]], label: LabelResults) -> None:
    patches = import_extra("matplotlib.patches", "plot")
    min_tpr, max_fpr = label.rectangle
    shaded = {"facecolor": "#f2a33a", "alpha": 0.18, "linewidth": 0, "zorder": 0}
    ax.add_patch(patches.Rectangle((0, min_tpr), max_fpr, 1 - min_tpr, label="rectangle", **shaded))
    grid = np.linspace(0, 1, 2001) ** 2  # dense where rectangles are
    for k, (name, runs) in enumerate(methods.items()):
        curves = [roc_polyline(*run) for run in runs if 0 < int((run[1] == 1).sum()) < len(run[1])]
        height = np.mean([np.interp(grid, fpr.numpy(force=True), tpr.numpy(force=True)) for fpr, tpr in curves], axis=0)
        look = {"color": COLOURS[k % len(COLOURS)], "linestyle": _LINES[k % len(_LINES)], "linewidth": 1.8}
        ax.plot(np.insert(grid, 0, 0), np.insert(height, 0, 0), label=name, **look)
    ax.plot([0, 1], [0, 1], color="#8a8f98", linewidth=1, linestyle=(0, (4, 4)), zorder=1)  # chance
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    number = f"{label.num_positives:,} of {label.num_positives + label.num_negatives:,} positive"
    ax.set_title(f"{textwrap.fill(label.name, 34)}\n{number}".strip(), fontsize=9, parse_math=False)
    ax.set_xlabel("False positive rate", fontsize=8)
    ax.set_ylabel("True positive rate", fontsize=8)
    ax.tick_params(labelsize=7)
    dress(ax)


def draw_progress(curves: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> Any:
    """Validation TPAUC of all methods against the examples that were seen, and each method's own training loss."""
    columns = min(4, max(2, len(curves)))
    rows = math.ceil(len(curves) / columns)
    figure = import_extra("matplotlib.figure", "plot").Figure(figsize=(11, 3.6 + 2.2 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[1.7, *([1] * rows)])
    top = figure.add_subplot(grid[0, :])
    for k, (name, runs) in enumerate(curves.items()):
        colour = COLOURS[k % len(COLOURS)]
        draw_band(top, runs, "tpauc", name, colour, x="examples")
        ax = figure.add_subplot(grid[1 + k // columns, k % columns])
        draw_band(ax, runs, "loss", name, colour, x="examples")
        ax.set_title(f"{name}: own training loss", fontsize=8)
        ax.set_xlabel("examples", fontsize=8)
        ax.tick_params(labelsize=7)
        dress(ax)
    top.set(xlabel="examples that were trained on", ylabel="validation TPAUC")
    dress(top)
    if top.has_data():
        top.legend(fontsize=8, frameon=False, loc="best")
    figure.suptitle("Training: mean over runs, lowest to highest", fontsize=11)
    return figure
