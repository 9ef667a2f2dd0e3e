"""Collectives: what is gathered on two ranks, wherever in a program that is."""

import pytest

from lightning_tpauc.distributed import gather_objects
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.training.guards import require_agreement
from tests.helpers.ddp import run_distributed

pytestmark = pytest.mark.ddp


def amid_an_exception(work):
    """A program that tries something, and does ``work`` when that fails, as all its ranks do."""
    try:
        raise FileNotFoundError
    except FileNotFoundError:
        return work()


def test_ranks_meet_in_an_except_block():
    def work(rank, world_size):
        def collect():
            with pytest.raises(ArgumentError):
                require_agreement(lambda: {"batch_size": rank})
            return gather_objects(rank)

        return amid_an_exception(collect)

    assert run_distributed(work, 2) == [[0, 1]] * 2


def test_a_rank_that_is_alone_gathers_its_own():
    assert run_distributed(lambda rank, _: rank and gather_objects(rank, alone=True), 2) == [0, [1]]
