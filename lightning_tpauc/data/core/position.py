"""Where a Trainer's fit stands, for the training loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_tpauc.data.core.loader import Position, PosNegLoader

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("training_position",)


def training_position(trainer: Trainer, loader: PosNegLoader) -> Position:
    """Global step and position in the epoch, read when an epoch's first batch is asked for.

    Only the fit loop's own loader is in the middle of an epoch; any other one yields a whole epoch.

    The step is the module's ``batches_seen`` if it has that; other modules are located by the fit loop's counters,
    which is right as long as all epochs have the same number of batches. With ``overfit_batches`` every epoch takes
    the same batches.
    """
    loop = trainer.fit_loop
    # after fit the counters keep their last values
    ready = loop.epoch_loop.batch_progress.current.ready if trainer.training else 0
    combined = loop._combined_loader
    done = ready if combined is not None and any(loader is other for other in combined.flattened) else 0
    if trainer.overfit_batches > 0:  # type: ignore[attr-defined]  # Trainer sets it at run time
        return Position(done, done)
    seen = getattr(trainer.lightning_module, "batches_seen", None)
    if isinstance(seen, int):
        return Position(seen, done)
    epochs = loop.epoch_progress.current.completed
    # before the first epoch the number of batches may still be unknown, which Lightning writes as infinity
    return Position((epochs * int(trainer.num_training_batches) if epochs else 0) + ready, done)
