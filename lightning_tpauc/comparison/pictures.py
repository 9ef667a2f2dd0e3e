"""Pictures of comparisons: ROC curves and training curves of all methods."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_tpauc.comparison.results import Results, have_both
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional import roc_polyline

COLOURS = ("#1f3b57", "#f2a33a", "#4c9a6a", "#b0413e", "#7b6ba8", "#5aa5c8", "#8a8f98", "#c77fb0", "#9a7b4f", "#2f7f7a")
#: At most so many labels have ROC curves of their own.
PANELS = 12


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure and its axes, with a light grid."""
    # a figure without pyplot: no window system, no global state to clean up
    figure = import_extra("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns)))
    for ax in axes:
        ax.grid(alpha=0.2)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def as_png(figure: Any) -> bytes:
    """The picture; the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


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
    size = 5.5 if columns == 1 else 2.75
    figure, axes = new_figure(rows, columns, (size * columns, size * rows + 1.2))
    for ax, k in zip(axes, panels, strict=False):
        _draw_label(ax, results, k)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), fontsize=8, frameon=False)
    figure.suptitle(f"ROC on {results.part} data", fontsize=11)
    return figure


def _draw_label(ax: Any, results: Results, number: int) -> None:
    label = results.labels[number]
    min_tpr, max_fpr = label.rectangle
    ax.fill_between([0, max_fpr], min_tpr, 1, color="#f2a33a", alpha=0.18, linewidth=0, label="rectangle")
    grid = np.linspace(0, 1, 2001) ** 2  # dense where rectangles are
    for k, (name, runs) in enumerate(results.runs.items()):
        of_label = [run.of_labels()[number] for run in runs]
        curves = [roc_polyline(*own) for own in of_label if have_both(own[1])]
        height = np.mean([np.interp(grid, fpr.numpy(), tpr.numpy()) for fpr, tpr in curves], axis=0)
        look = {"color": COLOURS[k % len(COLOURS)], "linestyle": ("-", "--")[k % 2], "linewidth": 1.8}
        ax.plot([0, *grid], [0, *height], label=name, **look)
    ax.plot([0, 1], [0, 1], color="#8a8f98", linewidth=1, linestyle=":")  # chance
    right = 1.0 if max_fpr >= 0.2 else 5 * max_fpr  # else it can't be seen
    ax.set(xlim=(-0.01 * right, 1.01 * right), ylim=(-0.01, 1.01))
    counts = f"{label.num_positives:,} of {label.num_positives + label.num_negatives:,} positive"
    ax.set_title(f"{textwrap.fill(label.name, 34)}\n{counts}".strip(), fontsize=9, parse_math=False)
    ax.set_xlabel("False positive rate", fontsize=8)
    ax.set_ylabel("True positive rate", fontsize=8)


def draw_progress(results: Results) -> Any:
    """Validation TPAUC of all methods against the examples that were seen."""
    figure, (ax,) = new_figure(1, 1, (8, 4.2))
    for k, (name, runs) in enumerate(results.runs.items()):
        draw_band(ax, [run.curve for run in runs], "tpauc", name, COLOURS[k % len(COLOURS)], x="examples")
    ax.set(xlabel="examples that were trained on", ylabel="validation TPAUC: mean, lowest to highest run")
    ax.legend(fontsize=8, frameon=False)
    return figure
