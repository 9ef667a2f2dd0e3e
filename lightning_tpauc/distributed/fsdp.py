"""FSDP2: reading and writing sharded parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ("assign", "reshard", "whole")


def reshard(module: nn.Module) -> None:
    """Free the unsharded copies in every FSDP2 module, so that the next forward pass gathers the current weights.

    After a forward pass without backward a root module may keep its unsharded copy. It would then ignore weights that
    were written into its shards. Ordinary modules are left alone.
    """
    for child in module.modules():
        if isinstance(child, FSDPModule):
            child.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The unsharded tensor; a collective for a DTensor, the tensor itself otherwise."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assign(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy whole or sharded ``sources`` into ``targets``, in place and in the targets' dtype and sharding."""
    for target, source in zip(targets, sources, strict=True):
        if isinstance(target, DTensor) and not isinstance(source, DTensor):
            source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
        target.detach().copy_(source)
