"""The picture of the metric: a ROC curve, the rectangle, and the area between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.polyline import clip_polyline

__all__ = ("plot_roc", "plot_rocs")

CURVE = "#1f3b57"
RECTANGLE = "#f2a33a"
AREA = "#a4c8e4"
NEUTRAL = "#8a8f98"


def plot_roc(
    fpr: Tensor, tpr: Tensor, value: float, min_tpr: float, max_fpr: float, ax: Any = None, label: str = "ROC curve"
) -> tuple[Any, Any]:
    """Draw a ROC curve, the rectangle [0, max_fpr] x [min_tpr, 1] and the part of it under the curve.

    Args:
        fpr: false positive rates of the vertices, float tensor ``(V,)``, non-decreasing from 0 to 1.
        tpr: true positive rates of the vertices, float tensor ``(V,)``, non-decreasing from 0 to 1.
        value: the two-way partial AUC, printed in the legend.
        min_tpr: lower border of the rectangle, in [0, 1).
        max_fpr: right border of the rectangle, in (0, 1].
        ax: matplotlib axes to draw into; a new figure if ``None``.
        label: name of the curve.

    Returns:
        The figure and the axes.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    patches = import_extra("matplotlib.patches", "plot")
    ax = _axes(ax)
    fpr, tpr = fpr.double().cpu(), tpr.double().cpu()
    corner, width, height = (0, min_tpr), max_fpr, 1 - min_tpr
    region = f"TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}"
    ax.add_patch(patches.Rectangle(corner, width, height, facecolor=RECTANGLE, alpha=0.16, linewidth=0, zorder=0))
    inside_fpr, inside_tpr = clip_polyline(fpr, tpr, min_tpr, max_fpr)
    ax.fill_between(
        inside_fpr.numpy(),
        min_tpr,
        inside_tpr.numpy(),
        color=AREA,
        linewidth=0,
        zorder=2,
        label=f"TPAUC = {value:.3f}",
    )
    ax.add_patch(
        patches.Rectangle(corner, width, height, fill=False, edgecolor=RECTANGLE, linewidth=1.4, zorder=3, label=region)
    )
    ax.plot(fpr.numpy(), tpr.numpy(), color=CURVE, linewidth=2, solid_joinstyle="round", zorder=4, label=label)
    _dress(ax)
    return ax.figure, ax


def plot_rocs(
    curves: Sequence[tuple[Tensor, Tensor, Tensor]],
    labels: Sequence[str],
    rectangles: Sequence[tuple[float, float]],
    ax: Any = None,
) -> tuple[Any, Any]:
    """Draw several ROC curves and the rectangle of each, one rectangle where all are the same.

    Args:
        curves: ``(fpr, tpr, thresholds)`` of each, float tensors ``(V_k,)``.
        labels: what the legend says of each.
        rectangles: ``(min_tpr, max_fpr)`` of each.
        ax: matplotlib axes to draw into; a new figure if ``None``.

    Returns:
        The figure and the axes.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    colormaps = import_extra("matplotlib", "plot").colormaps
    patches = import_extra("matplotlib.patches", "plot")
    ax = _axes(ax)
    colors = colormaps["tab10"].colors if len(curves) <= 10 else colormaps["viridis"].resampled(len(curves)).colors
    shared = len(set(rectangles)) == 1
    for (min_tpr, max_fpr), color in zip(rectangles[:1] if shared else rectangles, colors, strict=False):
        edge, region = RECTANGLE if shared else color, f"TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}" if shared else None
        box = {"fill": False, "edgecolor": edge, "linewidth": 1.4, "zorder": 3, "label": region}
        ax.add_patch(patches.Rectangle((0, min_tpr), max_fpr, 1 - min_tpr, **box))
    for (fpr, tpr, _), color, label in zip(curves, colors, labels, strict=False):
        ax.plot(fpr.numpy(force=True), tpr.numpy(force=True), color=color, linewidth=1.6, zorder=4, label=label)
    _dress(ax)
    return ax.figure, ax


def _axes(ax: Any) -> Any:
    """The axes to draw into, with the diagonal that guessing follows."""
    if ax is None:
        _, ax = import_extra("matplotlib.pyplot", "plot").subplots(figsize=(5.2, 5.2), layout="constrained")
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 4)), zorder=1)
    return ax


def _dress(ax: Any) -> None:
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    ax.set(xlabel="False positive rate", ylabel="True positive rate")
    ax.grid(visible=True, color=NEUTRAL, alpha=0.18, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(NEUTRAL)
    ax.tick_params(colors="#4a4f57")
    ax.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", reverse=True)
