"""Pretends to be one of several ranks, without processes."""

from contextlib import contextmanager

import pytest

from lightning_tpauc.data.core import shards


@contextmanager
def rank_of(rank, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "rank", lambda: rank)
        patch.setattr(shards, "world_size", lambda: size)
        yield
