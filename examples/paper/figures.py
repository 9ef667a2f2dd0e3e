"""Figures of an experiment: training curves, and bars of time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.paper.recorders import objective_name
from examples.paper.records import Results
from examples.paper.runner import Plan, chosen_settings
from lightning_tpauc.comparison.pictures import COLOURS, draw_band, dress, new_figure, save
from lightning_tpauc.metrics.reporting import Rectangle, metric_name

__all__ = ("Curves", "draw_curves", "draw_losses", "draw_times", "training_curves")

#: Points of the final runs by method, for one rectangle; each run is a list of ``{"step": ..., "objective": ...,
#: "tpauc": ..., "loss": ...}``, of which the second and the last may be missing.
Curves = Mapping[str, Sequence[Sequence[Mapping[str, float]]]]

#: These minimise the exact objective; the other methods' scores have another scale.
_MINIMISERS = ("STACO", "SOTA", "SONX")


def training_curves(plan: Plan, store: Results, rectangle: Rectangle) -> Curves:
    """The curves of the chosen settings that have finished, for one of the rectangles that are reported."""
    found: dict[str, list[Any]] = {}
    for method, reported, settings in chosen_settings(plan, store):
        if reported != rectangle:
            continue
        for trial in plan.final(method, plan.trained(method, reported), settings):
            outcome = store.get(trial)
            if outcome is not None and outcome.curve:
                trained = trial.rectangle or (settings.get("min_tpr", 0.5), settings.get("max_fpr", 0.5))
                points = [_point(point, rectangle, trained == rectangle) for point in outcome.curve]
                found.setdefault(method.name, []).append(points)
    return found


def _point(point: Mapping[str, float], rectangle: Rectangle, is_trained: bool) -> dict[str, float]:
    """What a recorded point says about a rectangle; older ones hold one objective, and no loss of the method."""
    objective = point.get(objective_name(rectangle), point["objective"] if is_trained else None)
    values = {"step": point["step"], "objective": objective, "tpauc": point[metric_name(rectangle)]}
    values["loss"] = point.get("loss")
    return {name: value for name, value in values.items() if value is not None}


def draw_curves(curves: Curves, rectangle: Rectangle, title: str, path: Path) -> None:
    """Training loss and training TPAUC against steps: means over runs, and bands from the lowest to the highest.

    The axis of TPAUC shows where the curves end up, and is cut below that: all start near 0 and end close together.
    The loss is the exact objective with the squared hinge, of the methods that minimise it: one scale for all of them.

    Args:
        curves: points by method.
        rectangle: what is drawn.
        title: of the figure.
        path: a PNG file.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    figure, axes = new_figure(1, 2, (11, 4.2))
    panels = (("objective", "training loss, exact objective (squared hinge)"), ("tpauc", "training TPAUC"))
    for ax, (name, label) in zip(axes, panels, strict=True):
        for k, (method, runs) in enumerate(curves.items()):
            exact = method.startswith(_MINIMISERS) and not method.startswith("SOTAs")
            if name == "tpauc" or exact:
                draw_band(ax, runs, name, method, COLOURS[k % len(COLOURS)])
        ax.set(xlabel="step", ylabel=label)
        dress(ax)
    if axes[0].has_data():
        axes[0].set_yscale("log")
    axes[1].set_ylim(bottom=_cut(curves))
    axes[1].legend(fontsize=8, frameon=False)
    figure.suptitle(f"{title}, TPR ≥ {rectangle.min_tpr:g}, FPR ≤ {rectangle.max_fpr:g}", fontsize=11)
    save(figure, path)


def _cut(curves: Curves) -> float:
    """Twice the spread of the curves' later halves below the lowest of them, but not below 0."""
    late = [p["tpauc"] for runs in curves.values() for run in runs for p in run if 2 * p["step"] >= run[-1]["step"]]
    return max(0.0, 3 * min(late) - 2 * max(late)) if late else 0.0


def draw_losses(curves: Curves, rectangle: Rectangle, title: str, path: Path) -> bool:
    """Each method's own training loss against steps, a panel for each, since their scales have nothing in common.

    Args:
        curves: points by method.
        rectangle: what is reported.
        title: of the figure.
        path: a PNG file.

    Returns:
        Whether there was anything to draw: results of earlier versions hold no such losses.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    recorded = {
        method: runs for method, runs in curves.items() if any("loss" in point for run in runs for point in run)
    }
    if not recorded:
        return False
    columns = min(3, len(recorded))
    rows = math.ceil(len(recorded) / columns)
    figure, axes = new_figure(rows, columns, (3.7 * columns, 2.5 * rows + 0.4))
    for ax in axes[len(recorded) :]:
        ax.set_visible(False)
    for k, (ax, (method, runs)) in enumerate(zip(axes, recorded.items(), strict=False)):
        draw_band(ax, runs, "loss", method, COLOURS[k % len(COLOURS)])
        ax.set_title(method, fontsize=9)
        ax.set(xlabel="step", ylabel="own loss")
        dress(ax)
    where = f"TPR ≥ {rectangle.min_tpr:g}, FPR ≤ {rectangle.max_fpr:g}"
    figure.suptitle(f"{title}, {where}:\nmean loss of the steps between two points", fontsize=11)
    save(figure, path)
    return True


def draw_times(milliseconds: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Time per step of each method: the median as a bar, quartiles as a line.

    Args:
        milliseconds: times of steps by method.
        title: of the figure.
        path: a PNG file.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    figure, (ax,) = new_figure(1, 1, (7, 0.45 * len(milliseconds) + 1.2))
    low, middle, high = (
        np.array([np.quantile(times, q) for times in milliseconds.values()]) for q in (0.25, 0.5, 0.75)
    )
    ax.barh(list(milliseconds), middle, xerr=[middle - low, high - middle], color="#a4c8e4", ecolor="#1f3b57")
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds per step (median, quartiles)", title=title)
    dress(ax)
    save(figure, path)
