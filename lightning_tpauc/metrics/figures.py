"""Pictures: ROC curves with their rectangles, the scores of both classes, and a callback that shows them in loggers."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.errors import warn_on_rank_zero
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_count
from lightning_tpauc.functional.operating_points import count_decisions
from lightning_tpauc.functional.roc import roc_polyline
from lightning_tpauc.functional.tpauc import two_way_partial_auroc

CURVE, POSITIVE, RECTANGLE, AREA, NEUTRAL = "#1f3b57", "#c8452f", "#f2a33a", "#a4c8e4", "#8a8f98"


def plot_rocs(
    curves: Sequence[tuple[Tensor, Tensor]],
    labels: Sequence[str],
    rectangles: Sequence[tuple[float, float]],
    ax: Any = None,
    filled: str | None = None,
    point: tuple[float, float] | None = None,
) -> tuple[Any, Any]:
    """Draw ROC curves ``(fpr, tpr)`` and their rectangles.

    ``filled`` is what the legend says of the area under the only curve inside its rectangle, which is filled then.
    ``point`` is the false and the true positive rate that decisions have, to mark.
    """
    matplotlib, ax = import_extra("matplotlib", "plot"), _axes(ax, (5.2, 5.2))
    box = import_extra("matplotlib.patches", "plot").Rectangle
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, linestyle=(0, (4, 4)), zorder=1)  # guessing
    many = matplotlib.colormaps["viridis"].resampled(len(curves)).colors
    colors = [CURVE] if filled else matplotlib.colormaps["tab10"].colors if len(curves) <= 10 else many
    face = (*matplotlib.colors.to_rgb(RECTANGLE), 0.14)
    for min_tpr, max_fpr in dict.fromkeys(rectangles):
        place, region = ((0, min_tpr), max_fpr, 1 - min_tpr), f"TPR ≥ {min_tpr:g}, FPR ≤ {max_fpr:g}"
        ax.add_patch(box(*place, label=region, facecolor=face, edgecolor=RECTANGLE, linewidth=1.4, zorder=3))
    arrays = [(fpr.numpy(force=True), tpr.numpy(force=True)) for fpr, tpr in curves]
    if filled is not None:
        fpr, tpr = _inside(*arrays[0], *rectangles[0])
        ax.fill_between(fpr, rectangles[0][0], tpr, color=AREA, linewidth=0, zorder=2, label=filled)
    for (fpr, tpr), color, label in zip(arrays, colors, labels, strict=False):
        ax.plot(fpr, tpr, color=color, linewidth=1.8, solid_joinstyle="round", zorder=4, label=label)
    if point is not None:
        text = f"decisions: TPR {point[1]:.3f}, FPR {point[0]:.3f}"
        ax.plot(*point, "o", color=POSITIVE, markersize=7, markeredgecolor="white", zorder=5, label=text)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    ax.set(xlabel="False positive rate", ylabel="True positive rate")
    ax.legend(loc="lower right", reverse=True)
    return ax.figure, ax


def _inside(fpr: Any, tpr: Any, min_tpr: float, max_fpr: float) -> Any:
    """The part of a curve inside the rectangle, with vertices on its borders, an array ``(2, U)``."""
    left, right = np.interp(min_tpr, tpr, fpr), np.interp(max_fpr, fpr, tpr)
    if not (left < max_fpr and right > min_tpr):  # also where a class is empty and rates are nan
        return np.empty((2, 0))
    kept = (tpr > min_tpr) & (fpr < max_fpr)
    return np.array([[left, *fpr[kept], max_fpr], [min_tpr, *tpr[kept], right]])


def plot_scores(scores: Tensor, labels: Tensor, threshold: float | None = None, ax: Any = None) -> tuple[Any, Any]:
    """Draw how the finite scores of both classes are distributed, each class by its share of examples per bin."""
    ax, finite = _axes(ax, (6.4, 4.0)), scores.isfinite()
    negatives, positives = (scores[finite & (labels == label)].numpy(force=True) for label in (0, 1))
    bins = np.histogram_bin_edges(np.concatenate([negatives, positives]).astype(np.float64), 60)
    for values, color, name in ((negatives, CURVE, "negatives"), (positives, POSITIVE, "positives")):
        weights, label = np.full(len(values), 1 / max(1, len(values))), f"{len(values):,} {name}"
        ax.hist(values, bins=bins, weights=weights, color=color, alpha=0.55, label=label, zorder=2)
    if threshold is not None and math.isfinite(threshold):
        ax.axvline(threshold, color="#222222", linewidth=1.4, linestyle=(0, (4, 3)), zorder=4, label="threshold")
    ax.set(xlabel="Score", ylabel="Share of the class", ylim=(0.0, 1.3 * ax.get_ylim()[1]))  # the legend hides no bar
    ax.legend(loc="upper right")
    return ax.figure, ax


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is None:
        _, ax = import_extra("matplotlib.pyplot", "plot").subplots(figsize=size, layout="constrained")
    ax.grid(visible=True, color=NEUTRAL, alpha=0.18, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


#: How a logger shows a figure by its name, by the name of its class: the classes of ``pytorch_lightning`` are others.
SHOW: dict[str, Callable[[Any, str, Any, int], object]] = {
    "TensorBoardLogger": lambda logger, name, figure, step: logger.experiment.add_figure(name, figure, step),
    "WandbLogger": lambda logger, name, figure, step: logger.log_image(name, [figure], step),
    "MLFlowLogger": lambda logger, name, figure, step: logger.experiment.log_figure(
        logger.run_id, figure, f"{name}/step_{step:08d}.png"
    ),
    "CometLogger": lambda logger, name, figure, step: logger.experiment.log_figure(name, figure, step=step),
}


class ROCFigure(Callback):
    """Draws the ROC curve with what decisions reach, ``val/roc``, and the scores of both classes, ``val/scores``.

    The rectangle is the final one, with the area under the curve. The threshold is that of
    :class:`~lightning_tpauc.DecisionThreshold`. With several labels all curves are in one picture, ``val/roc``, and
    each label's scores are in ``val/scores/NAME``.

    The loggers of TensorBoard, Weights & Biases, MLflow (as artifacts) and Comet show them. If a run has none of these,
    there is a :class:`TPAUCWarning` at its start.

    Args:
        every_n_validations: draw at every n-th validation.

    Raises:
        ArgumentError: if ``every_n_validations`` is below 1.
        MissingExtraError: if matplotlib is not installed.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="cpu", logger=False, callbacks=[ROCFigure(every_n_validations=5)])
    """

    def __init__(self, every_n_validations: int = 1) -> None:
        check_count(every_n_validations, "every_n_validations", 1)
        import_extra("matplotlib", "plot")
        self.every_n_validations = every_n_validations
        self._validations = 0
        self._drawn: list[tuple[Tensor, Tensor]] | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warn once if no logger of this run can show figures."""
        if stage in ("fit", "validate") and not trainer.fast_dev_run and not _able(trainer):  # type: ignore[attr-defined]
            found = ", ".join(type(logger).__name__ for logger in trainer.loggers) or "no logger"
            warn_on_rank_zero(f"`ROCFigure` draws nothing: {found} can't show figures. Use one of {', '.join(SHOW)}.")

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # a TPAUCModule
        """Take the scores of all ranks, before the module forgets them."""
        if trainer.sanity_checking or not _able(trainer):
            return
        self._validations += 1
        if self._validations % self.every_n_validations:
            return
        self._drawn = [(own.raw, own.target) for own in pl_module._collected[0].scored.columns()]

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw on rank 0, when every callback has done its part and the threshold is chosen."""
        drawn, self._drawn = self._drawn, None
        if drawn is None or not trainer.is_global_zero:
            return
        pyplot = import_extra("matplotlib.pyplot", "plot")
        step = trainer.global_step - 1  # where Lightning puts this validation's scalars
        for logger, show in _able(trainer):
            for name, figure in _figures(pl_module, drawn):
                show(logger, name, figure, step)
                pyplot.close(figure)


def _figures(module: Any, drawn: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Any]]:
    """The pictures of a validation, by their names; one that lacks a class is left out: the metrics have named it."""
    labels, algorithm, point = module.trained_labels, module.algorithm, module.operating_point
    rectangles = [(algorithm.min_tpr, algorithm.max_fpr)] if labels is None else labels.rectangles(algorithm)
    names = [("", "")] if labels is None else list(zip(labels.names, labels.keys, strict=True))
    each = zip(names, drawn, rectangles, [None] * len(names) if point is None else point.thresholds, strict=True)
    known = [one for one in each if {0, 1} <= {*one[1][1].tolist()}]
    if not known:
        return
    curves, shown, decided = [roc_polyline(*scored) for _, scored, _, _ in known], [], None
    for (name, _), scored, rectangle, threshold in known:
        min_tpr, max_fpr = rectangle
        area = float(two_way_partial_auroc(*scored, min_tpr, max_fpr, ignore_index=-1, validate_args=False))
        shown.append(f"{name}: {area:.3f}" if name else f"TPAUC = {area:.3f}")
        if labels is None and threshold is not None:
            found = count_decisions(*scored, threshold)
            decided = (1 - found.specificity, found.sensitivity)
    legend, filled = (["ROC curve"], shown[0]) if labels is None else (shown, None)
    yield "val/roc", plot_rocs(curves, legend, [rectangle for _, _, rectangle, _ in known], None, filled, decided)[0]
    for (_, key), scored, _, threshold in known:
        yield f"val/scores{'/' + key if key else ''}", plot_scores(*scored, threshold)[0]


def _able(trainer: Trainer) -> list[tuple[Any, Callable[[Any, str, Any, int], object]]]:
    """The loggers that show figures, and how they do; only classes decide, which are the same on all ranks."""
    kinds = [(logger, {kind.__name__ for kind in type(logger).__mro__} & set(SHOW)) for logger in trainer.loggers]
    return [(logger, SHOW[kind.pop()]) for logger, kind in kinds if kind]
