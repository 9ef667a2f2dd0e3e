"""Trained weights that a run starts from: they compete with what it makes of them for the best checkpoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc.metric_names import is_ours

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch import Tensor

__all__ = ("TrainedStart",)


class TrainedStart:
    """Lets Lightning's sanity check measure the start, on all validation data, and every ``ModelCheckpoint`` save it.

    The check draws no random number of the run's, and other callbacks take no notice of it: schedules and patience
    begin with the training, as ever. A run that is resumed has no such check.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Tensor] | None = None
        self._steps: Any = None

    @property
    def is_measured(self) -> bool:
        """Whether the sanity check that goes on is such a one."""
        return self._metrics is not None

    def prepare(self, trainer: Trainer) -> None:
        """Ask for the check before it begins, if a ``ModelCheckpoint`` follows what a validation of ours logs."""
        self._metrics = None
        monitors = [saver.monitor for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        if any(name is not None and is_ours(name) for name in monitors):
            self._metrics = {}
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, math.inf

    def note(self, name: str, value: Tensor) -> None:
        """Keep what was measured."""
        if self._metrics is not None:
            self._metrics[name] = value

    def end(self, trainer: Trainer) -> None:
        """Give the Trainer its own number of steps back, also after an error."""
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None

    def offer(self, trainer: Trainer) -> None:
        """Let the start be saved, once everything is ready that a checkpoint holds."""
        self.end(trainer)
        measured, self._metrics = self._metrics or {}, None
        for saver in trainer.checkpoint_callbacks:
            if isinstance(saver, ModelCheckpoint) and saver.monitor in measured:
                saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **measured})
