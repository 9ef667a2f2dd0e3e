"""DDP's buckets: gradients are added over ranks in one order from a process's first step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from lightning_tpauc.distributed import world_size

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("prebuild_ddp_buckets",)


def prebuild_ddp_buckets(trainer: Trainer) -> None:
    """Let DDP arrange its buckets before the first step; a collective.

    DDP reduces gradients in buckets, which it arranges anew after the first backward pass of a process, and where a
    number lies in a bucket decides from which rank on it is added up. A resumed run would therefore round its first
    step's gradients otherwise than the unbroken run did, for which it was no first step. A backward pass of zeros
    before training leaves the same arrangement to all steps. Two ranks need none: a + b = b + a.
    """
    model = trainer.strategy.model
    if world_size() < 3 or not isinstance(model, DistributedDataParallel) or model.static_graph:
        return
    loss = torch.stack([0 * p.sum().float() for p in model.parameters() if p.requires_grad]).sum()
    trainer.strategy.pre_backward(loss)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    model.zero_grad()
