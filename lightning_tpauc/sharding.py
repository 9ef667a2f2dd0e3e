"""FSDP2: writing into sharded parameters takes effect only after a reshard."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule

__all__ = ("reshard",)


def reshard(module: nn.Module) -> None:
    """Free unsharded copies in every FSDP2 module, so that the next forward pass gathers the current weights.

    After a forward pass without backward a root module may stay unsharded; it would then ignore an average or a
    checkpoint written into its shards. Does nothing for ordinary modules.
    """
    for child in module.modules():
        if isinstance(child, FSDPModule):
            child.reshard()
