"""The weights that a run starts from: they compete with what it makes of them for the best ones."""

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
    """Lets Lightning's sanity check measure the start, on all validation data.

    The start is the first candidate for the weights that training leaves in the model. Weights that were trained before
    are saved by every ``ModelCheckpoint`` that follows a metric of ours, too. The check draws no random number of the
    run's, and other callbacks take no notice of it: schedules and patience begin with the training, as ever. A run that
    is resumed has no such check.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Tensor] | None = None
        self._steps: Any = None
        self._saves = False

    @property
    def is_measured(self) -> bool:
        """Whether the sanity check that goes on is such a one."""
        return self._metrics is not None

    def prepare(self, trainer: Trainer, *, is_trained: bool) -> None:
        """Ask for the check before it begins, if somebody wants to know.

        Args:
            trainer: whose callbacks keep the best weights or save them.
            is_trained: whether the weights were trained before. Those that were not are left alone by
                ``num_sanity_val_steps=0``.
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
        """Keep what was measured."""
        if self._metrics is not None:
            self._metrics[name] = value

    def end(self, trainer: Trainer) -> None:
        """Give the Trainer its own number of steps back, also after an error."""
        if self._steps is not None:
            trainer.num_sanity_val_steps, self._steps = self._steps, None

    def offer(self, trainer: Trainer, keep: Callable[[float, float, int], None] | None) -> None:
        """Let the start be kept and saved, once everything is ready that a checkpoint holds.

        Args:
            trainer: whose callbacks save.
            keep: takes ``val/tpauc``, ``val/auroc`` and the number of steps, 0; ``None`` if nobody keeps weights.
        """
        self.end(trainer)
        measured, self._metrics = self._metrics or {}, None
        if keep is not None and measured:
            keep(*validated_areas(measured), 0)
        for saver in trainer.checkpoint_callbacks if self._saves else ():
            if isinstance(saver, ModelCheckpoint) and saver.monitor in measured:
                saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **measured})
