"""Draws the ROC curve of every validation and gives the figure to the logger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from typing_extensions import override

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.notify import warn_on_rank_zero
from lightning_tpauc.metrics.plot import plot_roc

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ("ROCFigure",)

NAME = "val/roc"

#: How a logger shows a figure, by the class's name, since ``pytorch_lightning`` has classes of its own.
SHOW: dict[str, Callable[[Any, Any, int], object]] = {
    "TensorBoardLogger": lambda logger, figure, step: logger.experiment.add_figure(NAME, figure, step),
    "WandbLogger": lambda logger, figure, step: logger.log_image(NAME, [figure], step),
    "MLFlowLogger": lambda logger, figure, step: logger.experiment.log_figure(
        logger.run_id, figure, f"{NAME}/step_{step:08d}.png"
    ),
    "CometLogger": lambda logger, figure, step: logger.experiment.log_figure(NAME, figure, step=step),
}


class ROCFigure(Callback):
    """Draws the ROC curve, the trained rectangle and the area under it, as ``val/roc``.

    The loggers of TensorBoard, Weights & Biases, MLflow (as an artifact) and Comet show it. If a run has none of them,
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

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warn once if no logger of this run can show figures."""
        if stage in ("fit", "validate") and not trainer.fast_dev_run and not _able(trainer):  # type: ignore[attr-defined]
            found = ", ".join(type(logger).__name__ for logger in trainer.loggers) or "no logger"
            warn_on_rank_zero(f"`ROCFigure` draws nothing: {found} can't show figures. Use one of {', '.join(SHOW)}.")

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw before the module resets its metrics. The scores of all ranks are gathered, and rank 0 draws."""
        able = _able(trainer)
        if trainer.sanity_checking or not able:
            return
        self._validations += 1
        if self._validations % self.every_n_validations:
            return
        metric: Any = pl_module.val_metrics["tpauc"]  # type: ignore[index]  # a TPAUCModule has them
        value = float(metric.compute())
        if value != value:  # a class is missing, which the metric has said
            return
        fpr, tpr, _ = metric.roc()
        if trainer.is_global_zero:
            pyplot = import_extra("matplotlib.pyplot", "plot")
            step = trainer.global_step - 1  # where Lightning puts this validation's scalars
            for logger, show in able:
                figure, _ = plot_roc(fpr, tpr, value, metric.min_tpr, metric.max_fpr)
                show(logger, figure, step)
                pyplot.close(figure)


def _able(trainer: Trainer) -> list[tuple[Any, Callable[[Any, Any, int], object]]]:
    """The loggers that show figures, and how they do; only classes decide, which are the same on all ranks."""
    kinds = [(logger, {kind.__name__ for kind in type(logger).__mro__} & set(SHOW)) for logger in trainer.loggers]
    return [(logger, SHOW[kind.pop()]) for logger, kind in kinds if kind]
