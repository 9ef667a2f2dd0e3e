"""Passes over data outside Lightning's loops that see the same batches, in the same precision, as its steps do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

__all__ = ("device_batches",)


def device_batches(module: LightningModule, loader: Iterable[Any]) -> Iterator[Any]:
    """Batches as steps get them: in the precision's dtype, through the transfer hooks, on the device.

    What the caller does with a batch runs in the precision plugin's context, mixed precision included.

    Args:
        module: attached to a Trainer.
        loader: yields batches on the host.
    """
    trainer = module.trainer
    for host_batch in loader:
        batch = trainer.precision_plugin.convert_input(host_batch)
        batch = module._on_before_batch_transfer(batch)
        batch = trainer.strategy.batch_to_device(batch)
        with trainer.precision_plugin.forward_context():
            yield batch
