import time

import pytest
from torch import distributed

from tests.helpers.ddp import run_distributed

pytestmark = pytest.mark.ddp


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
