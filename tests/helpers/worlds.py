"""Pretends to be one of several ranks, without processes."""

from contextlib import contextmanager

import pytest

from lightning_tpauc.data import sampler


@contextmanager
def rank_of(rank, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "rank", lambda: rank)
        patch.setattr(sampler, "world_size", lambda: size)
        yield
