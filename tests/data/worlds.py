"""Pretends to be one of several ranks, without processes."""

from contextlib import contextmanager

import pytest

from lightning_tpauc.data import cursor, datamodule, loader, sampler, streamed
from lightning_tpauc.data.shards import World


@contextmanager
def rank_of(rank, size):
    with pytest.MonkeyPatch.context() as patch:
        for module in (cursor, datamodule, loader, sampler, streamed):
            patch.setattr(module, "current_world", lambda: World(rank, size))
        yield
