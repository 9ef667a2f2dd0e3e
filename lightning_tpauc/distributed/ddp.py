"""DDP's buckets: makes a resumed run add up gradients over ranks in the same order as the unbroken run."""

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

    DDP reduces gradients in buckets, and rearranges these after the first backward pass of a process. The place of a
    number in its bucket decides in which order the ranks' values are added, and so how the sum is rounded. The first
    step of a resumed run is a later step of the unbroken run, so the two would round differently. A backward pass of
    zeros before training gives all steps the same buckets. Two ranks do not need it, since a + b = b + a.
    """
    model = trainer.strategy.model
    if world_size() < 3 or not isinstance(model, DistributedDataParallel) or model.static_graph:
        return
    loss = torch.stack([0 * p.sum().float() for p in model.parameters() if p.requires_grad]).sum()
    trainer.strategy.pre_backward(loss)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    model.zero_grad()
