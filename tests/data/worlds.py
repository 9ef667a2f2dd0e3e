"""Pretends to be one of several ranks, without processes."""

from contextlib import contextmanager

import pytest

from lightning_tpauc.data import datamodule
from lightning_tpauc.data.core import loader, sampler
from lightning_tpauc.data.core.shards import World
from lightning_tpauc.data.streaming import cursor
from lightning_tpauc.data.streaming import loader as streaming_loader


@contextmanager
def rank_of(rank, size):
    with pytest.MonkeyPatch.context() as patch:
        for module in (cursor, datamodule, loader, sampler, streaming_loader):
            patch.setattr(module, "current_world", lambda: World(rank, size))
        yield
