"""Lets the weights that a run starts from compete with later ones for the best weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc.metrics.names import is_ours, validated_areas

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch import Tensor

__all__ = ("TrainedStart",)


class TrainedStart:
    """Measures the start by Lightning's sanity check, run on all validation data.

    The start is the first candidate for the weights that training leaves in the model. If these weights were trained
    before, every ``ModelCheckpoint`` that follows a metric of ours saves them, too. The check does not change the run's
    random numbers, and other callbacks do not notice it: schedules and patience begin with the training as usual. A
    resumed run has no such check.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Tensor] | None = None
        self._steps: Any = None
        self._saves = False

    @property
    def is_measured(self) -> bool:
        """Whether the present sanity check measures the start."""
        return self._metrics is not None

    def prepare(self, trainer: Trainer, *, is_trained: bool) -> None:
        """Extend the coming sanity check to all validation data, if a callback uses the result.

        Args:
            trainer: whose callbacks keep the best weights or save them.
            is_trained: whether the weights were trained before. If not, ``num_sanity_val_steps=0`` turns the check off.
        """
        self._metrics = None
        monitors = [saver.monitor for saver in trainer.checkpoint_callbacks if isinstance(saver, ModelCheckpoint)]
        self._saves = is_trained and any(name is not None and is_ours(name) for name in monitors)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        keeps = any(getattr(callback, "keep_best", False) for callback in callbacks)
        if self._saves or (keeps and (is_trained or trainer.num_sanity_val_steps != 0)):
            self._metrics = {}
            self._steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, math.inf

    def note(self, name: str, value: Tensor) -> None:
        """Store a value that was measured."""
        if self._metrics is not None:
            self._metrics[name] = value

    def end(self, trainer: Trainer) -> None:
        """Restore the Trainer's number of sanity steps, also after an error."""
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None

    def offer(self, trainer: Trainer, keep: Callable[[float, float, int], None] | None) -> None:
        """Keep and save the start, when everything that a checkpoint holds is ready.

        Args:
            trainer: whose callbacks save.
            keep: is called with ``val/tpauc``, ``val/auroc`` and the number of steps, 0; ``None`` for nobody.
        """
        self.end(trainer)
        measured, self._metrics = self._metrics or {}, None
        if keep is not None and measured:
            keep(*validated_areas(measured), 0)
        for saver in trainer.checkpoint_callbacks if self._saves else ():
            if isinstance(saver, ModelCheckpoint) and saver.monitor in measured:
                saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **measured})
