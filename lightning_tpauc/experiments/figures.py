"""Figures of an experiment: training curves, and bars of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_tpauc.evaluation import Rectangle, metric_name
from lightning_tpauc.experiments.runner import Plan, chosen_settings
from lightning_tpauc.experiments.store import Store
from lightning_tpauc.extras import import_extra

__all__ = ("Curves", "draw_curves", "draw_times", "training_curves")

#: Points of the final runs by method; each run is a list of ``{"step": ..., "objective": ..., rectangle: ...}``.
Curves = Mapping[str, Sequence[Sequence[Mapping[str, float]]]]

_COLOURS = (
    "#1f3b57",
    "#f2a33a",
    "#4c9a6a",
    "#b0413e",
    "#7b6ba8",
    "#5aa5c8",
    "#8a8f98",
    "#c77fb0",
    "#9a7b4f",
    "#2f7f7a",
)
#: The loss is one number for these only: other methods' scores have another scale.
_MINIMISERS = ("STACO", "SOTA", "SONX")


def training_curves(plan: Plan, store: Store, rectangle: Rectangle) -> Curves:
    """The curves of the chosen settings that have finished."""
    found: dict[str, list[Any]] = {}
    for method, reported, settings in chosen_settings(plan, store):
        if reported != rectangle:
            continue
        for trial in plan.final(method, plan.trained(method, reported), settings):
            outcome = store.get(trial)
            if outcome is not None and outcome.curve:
                found.setdefault(method.name, []).append(outcome.curve)
    return found


def draw_curves(curves: Curves, rectangle: Rectangle, title: str, path: Path) -> None:
    """Training loss and training TPAUC against steps: means over runs, and bands from the lowest to the highest.

    Args:
        curves: points by method.
        rectangle: what is drawn.
        title: of the figure.
        path: a PNG file.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    figure, axes = _figure(1, 2, (11, 4.2))
    panels = (("objective", "training loss, exact objective"), (metric_name(rectangle), "training TPAUC"))
    for ax, (name, label) in zip(axes, panels, strict=True):
        for k, (method, runs) in enumerate(curves.items()):
            exact = method.startswith(_MINIMISERS) and not method.startswith("SOTAs")
            if name == "objective" and not exact:
                continue
            steps = [point["step"] for point in runs[0]]
            values = np.array([[point[name] for point in run] for run in runs if len(run) == len(steps)])
            colour = _COLOURS[k % len(_COLOURS)]
            ax.plot(steps, values.mean(axis=0), color=colour, label=method, linewidth=1.8)
            ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        ax.set(xlabel="step", ylabel=label)
        _dress(ax)
    if axes[0].has_data():
        axes[0].set_yscale("log")
    axes[1].legend(fontsize=8, frameon=False)
    figure.suptitle(f"{title}, TPR ≥ {rectangle.min_tpr:g}, FPR ≤ {rectangle.max_fpr:g}", fontsize=11)
    _save(figure, path)


def draw_times(milliseconds: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Time per step of each method: the median as a bar, quartiles as a line.

    Args:
        milliseconds: times of steps by method.
        title: of the figure.
        path: a PNG file.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    figure, (ax,) = _figure(1, 1, (7, 0.45 * len(milliseconds) + 1.2))
    low, middle, high = (
        np.array([np.quantile(times, q) for times in milliseconds.values()]) for q in (0.25, 0.5, 0.75)
    )
    ax.barh(list(milliseconds), middle, xerr=[middle - low, high - middle], color="#a4c8e4", ecolor="#1f3b57")
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds per step (median, quartiles)", title=title)
    _dress(ax)
    _save(figure, path)


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    # a figure without pyplot: no window system, no global state to clean up
    module = import_extra("matplotlib.figure", "plot")
    figure = module.Figure(figsize=size, layout="constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns)))


def _dress(ax: Any) -> None:
    ax.grid(visible=True, color="#8a8f98", alpha=0.18, linewidth=0.8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
