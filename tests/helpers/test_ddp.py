import os
import time

import pytest
import torch
from torch import distributed

from tests.helpers.ddp import RankError, run_distributed

pytestmark = pytest.mark.ddp


def gathered_ranks(rank, world_size, offset):
    parts = [torch.zeros(1) for _ in range(world_size)]
    distributed.all_gather(parts, torch.tensor([float(rank + offset)]))
    return rank, torch.cat(parts)


def test_every_rank_sees_every_other():
    results = run_distributed(gathered_ranks, 3, 10)
    assert [rank for rank, _ in results] == [0, 1, 2]
    for _, values in results:
        assert torch.equal(values, torch.tensor([10.0, 11.0, 12.0]))


def fail_on_rank_one(rank, world_size):
    if rank == 1:
        msg = "broken on purpose"
        raise ValueError(msg)
    distributed.barrier()


def test_a_failing_rank_fails_the_test_and_does_not_hang():
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"rank 1 of 2: [\s\S]*broken on purpose"):
        run_distributed(fail_on_rank_one, 2)
    assert time.monotonic() - start < 30


def test_a_dead_and_a_sleeping_rank_are_reported():
    def die_or_sleep(rank, world_size):
        if rank == 0:
            os._exit(7)
        time.sleep(60)

    dead, asleep = run_distributed(die_or_sleep, 2, timeout=2, return_errors=True)
    assert dead == RankError("died with exit code 7")
    assert asleep == RankError("did not finish in time")
