"""The whole training set in every step, cut into contiguous slices for the ranks."""

import numpy as np
import pytest

from lightning_tpauc.data.core.sampler import BatchSizes, FullSampler, World


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_partition_the_training_set(size):
    positives, negatives = np.array([8, 1, 5, 0]), np.array([2, 9, 4, 3, 6, 7, 10])
    sampler = FullSampler(positives, negatives, BatchSizes(32, 32, 32))
    plans = [list(sampler.block(5, 7, World(rank, size))) for rank in range(size)]
    for k, step in enumerate((5, 6)):
        mine = [plan[k] for plan in plans]
        assert [plan.step for plan in mine] == [step] * size
        assert np.concatenate([p.rows[: p.sizes.num_pos] for p in mine]).tolist() == positives.tolist()
        assert np.concatenate([p.rows[p.sizes.num_pos :] for p in mine]).tolist() == negatives.tolist()
        assert np.concatenate([p.index for p in mine]).tolist() == [0, 1, 2, 3]
        assert all(p.shares == (tuple(q.sizes for q in mine) if size > 1 else None) for p in mine)
    assert sampler.steps_per_epoch(size) == 1
    assert sampler.global_sizes(size) == BatchSizes(4, 7, 0)
