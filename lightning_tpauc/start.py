"""Trained weights that a run starts from: they compete with what it makes of them for the best checkpoint."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc.metric_names import is_ours

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.module import TPAUCModule

__all__ = ("end_sanity_check", "measure_start", "offer_start")


def measure_start(trainer: Trainer, module: TPAUCModule) -> None:
    """Let the sanity check before training see all validation data, if a ``ModelCheckpoint`` follows what it measures.

    It draws no random number of the run's, and other callbacks take no notice of it: schedules and patience begin with
    the training, as ever. A resumed run has none.
    """
    module.start_metrics = None
    savers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    if not trainer.fast_dev_run and any(saver.monitor and is_ours(saver.monitor) for saver in savers):  # type: ignore[attr-defined]
        module.start_metrics = {}
        module.sanity_steps = trainer.num_sanity_val_steps
        trainer.num_sanity_val_steps = math.inf


def end_sanity_check(trainer: Trainer, module: TPAUCModule) -> None:
    """Give the Trainer its own number of steps back, also after an error."""
    if module.sanity_steps is not None:
        trainer.num_sanity_val_steps, module.sanity_steps = module.sanity_steps, None


def offer_start(trainer: Trainer, module: TPAUCModule) -> None:
    """Let every ``ModelCheckpoint`` save the start, when everything is ready that a checkpoint holds."""
    end_sanity_check(trainer, module)
    measured, module.start_metrics = module.start_metrics, None
    for saver in trainer.checkpoint_callbacks:
        value = (measured or {}).get(getattr(saver, "monitor", None) or "")
        if isinstance(saver, ModelCheckpoint) and value is not None and not bool(value.isnan()):
            saver._save_topk_checkpoint(trainer, {**saver._monitor_candidates(trainer), **(measured or {})})
