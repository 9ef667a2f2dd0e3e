"""The ROC curve and the scores of every validation, as pictures in the logger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.operating_points import count_decisions
from lightning_tpauc.functional.roc import exact_tpauc, roc_points
from lightning_tpauc.metrics.plot import plot_roc, plot_rocs, plot_scores
from lightning_tpauc.metrics.reporting import scores_of_each

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

    The rectangle is the one that was asked for, with the area under the curve. The threshold is that of
    :class:`~lightning_tpauc.DecisionThreshold`. Of several labels the curves of all are drawn in one picture,
    ``val/roc``, and the scores of each in one of its own, ``val/scores/NAME``.

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
        if every_n_validations < 1:
            msg = f"Expected `every_n_validations` to be at least 1, but got {every_n_validations}."
            raise ArgumentError(msg)
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
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the scores of all ranks, before the module forgets them."""
        if trainer.sanity_checking or not _able(trainer):
            return
        self._validations += 1
        if self._validations % self.every_n_validations:
            return
        module: Any = pl_module  # a TPAUCModule
        drawn = scores_of_each(module.val_metrics)
        if any(map(_has_both, drawn)):  # else the metrics have said which class is missing
            self._drawn = drawn

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw on rank 0, when every callback has done its part and the threshold is chosen."""
        drawn, self._drawn = self._drawn, None
        if drawn is None or not trainer.is_global_zero:
            return
        pyplot = import_extra("matplotlib.pyplot", "plot")
        step = trainer.global_step - 1  # where Lightning puts this validation's scalars
        for logger, show in _able(trainer):
            several = getattr(pl_module, "trained_labels", None) is not None
            for name, figure in _figures_of_labels(pl_module, drawn) if several else _figures(pl_module, *drawn[0]):
                show(logger, name, figure, step)
                pyplot.close(figure)


def _figures(module: Any, scores: Tensor, labels: Tensor) -> Iterator[tuple[str, Any]]:
    """The pictures of a validation, by their names."""
    rectangle, threshold = (module.algorithm.min_tpr, module.algorithm.max_fpr), module.threshold
    point = None
    if threshold is not None:
        decisions = count_decisions(scores, labels, threshold)
        point = 1 - decisions.specificity, decisions.sensitivity
    fpr, tpr, _ = roc_points(scores, labels)
    value = float(exact_tpauc(scores, labels, *rectangle))
    yield "val/roc", plot_roc(fpr, tpr, value, *rectangle, point=point)[0]
    yield "val/scores", plot_scores(scores, labels, threshold)[0]


def _figures_of_labels(module: Any, drawn: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Any]]:
    """The pictures of a validation of several labels; one that lacks a class is left out."""
    labels, thresholds = module.trained_labels, module.threshold or {}
    each = list(zip(labels.names, labels.keys, drawn, labels.rectangles(module.algorithm), strict=True))
    known = [(name, key, own, rectangle) for name, key, own, rectangle in each if _has_both(own)]
    curves = [roc_points(*own) for _, _, own, _ in known]
    shown = [f"{name}: {float(exact_tpauc(*own, *rectangle)):.3f}" for name, _, own, rectangle in known]
    yield "val/roc", plot_rocs(curves, shown, [rectangle for _, _, _, rectangle in known])[0]
    for name, key, own, _ in known:
        yield f"val/scores/{key}", plot_scores(*own, thresholds.get(name))[0]


def _has_both(scored: tuple[Tensor, Tensor]) -> bool:
    return bool((scored[1] == 1).any() and (scored[1] == 0).any())


def _able(trainer: Trainer) -> list[tuple[Any, Callable[[Any, str, Any, int], object]]]:
    """The loggers that show figures, and how they do; only classes decide, which are the same on all ranks."""
    kinds = [(logger, {kind.__name__ for kind in type(logger).__mro__} & set(SHOW)) for logger in trainer.loggers]
    return [(logger, SHOW[kind.pop()]) for logger, kind in kinds if kind]
