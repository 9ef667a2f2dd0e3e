"""The ROC curve of every validation as a picture in TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.metrics.plot import plot_roc

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ("ROCFigure",)


class ROCFigure(Callback):
    """Draws the ROC curve, the trained rectangle and the area under it, as ``val/roc`` in TensorBoard.

    Without a :class:`~lightning.pytorch.loggers.TensorBoardLogger` nothing is drawn.

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
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw before the module resets its metrics; scores come together from all ranks, rank 0 draws."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if trainer.sanity_checking or not loggers:
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
            step = trainer.global_step - 1  # where Lightning puts this validation's scalars
            for logger in loggers:
                figure, _ = plot_roc(fpr, tpr, value, metric.min_tpr, metric.max_fpr)
                logger.experiment.add_figure("val/roc", figure, step)
