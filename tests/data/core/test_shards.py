"""Slices of a batch."""

from itertools import chain

import pytest
from torch import distributed

from lightning_tpauc.data.core.sampler import World, current_world, share_of, slice_of
from tests.helpers.ddp import run_distributed


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 2, 6, 7, 100])
def test_slices_partition_the_batch(total, size):
    worlds = [World(rank, size) for rank in range(size)]
    items = [list(range(total))[slice_of(total, world)] for world in worlds]
    assert list(chain(*items)) == list(range(total))
    assert [len(part) for part in items] == [share_of(total, world) for world in worlds]
    assert max(map(len, items)) - min(map(len, items)) <= 1


def test_one_process():
    assert current_world() == World(0, 1)


@pytest.mark.ddp
def test_reads_the_process_group_when_asked():
    def ask(rank, size):
        inside = current_world()
        distributed.barrier()
        return inside

    assert run_distributed(ask, 2) == [World(0, 2), World(1, 2)]
