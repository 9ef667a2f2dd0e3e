"""Batches of distinct examples, pass after pass."""

import numpy as np
import pytest
from scipy.stats import chi2

from lightning_tpauc.data.core.batch_indices import BatchIndices
from lightning_tpauc.data.core.seeding import permute

# n >= 2 size: divisible or not, odd and even, barely two batches, above the sorted sizes
COVERED = [(64, 32), (65, 32), (71, 32), (10, 5), (11, 5), (9, 4), (7, 3), (100, 7), (1000, 96), (5003, 512), (5, 1)]


@pytest.mark.parametrize(("n", "size"), [*COVERED, (32, 32), (40, 32), (63, 32), (1, 1), (3, 2), (6000, 4000)])
def test_no_example_twice_in_a_batch(n, size):
    steps = max(20, 6 * n // size)
    batches = np.sort(BatchIndices(n, size, seed=4).batches(0, steps), axis=1)
    assert (np.diff(batches, axis=1) > 0).all()
    assert batches.min() >= 0
    assert batches.max() < n


@pytest.mark.parametrize(("n", "size"), COVERED)
def test_every_pass_covers_everything_once(n, size):
    passes = 9
    drawn = BatchIndices(n, size, seed=7, purpose=2).batches(0, -(-passes * n // size)).ravel()[: passes * n]
    for one in drawn.reshape(passes, n):
        assert np.array_equal(np.sort(one), np.arange(n))


def order_by_the_rule(n, size, seed, passes):
    """The rule in words, pass by pass: what the open batch already has is put off, within the first `size` places."""
    order = []
    for which in range(passes):
        fresh = permute(np.arange(n), np.array(which), n, seed=seed).tolist()
        held = set(order[len(order) - len(order) % size :])
        if held:
            head = fresh[:size]
            fresh[:size] = [x for x in head if x not in held] + [x for x in head if x in held]
        order += fresh
    return order


@pytest.mark.parametrize(("n", "size"), COVERED)
def test_follows_the_rule(n, size):
    passes = 7
    steps = passes * n // size
    drawn = BatchIndices(n, size, seed=5).batches(0, steps)
    assert drawn.ravel().tolist() == order_by_the_rule(n, size, 5, passes)[: steps * size]


@pytest.mark.parametrize(("n", "size"), [(64, 32), (71, 32), (9, 4), (40, 32), (5003, 512), (5000, 4999)])
def test_a_batch_does_not_depend_on_where_one_starts(n, size):
    indices = BatchIndices(n, size, seed=1)
    together = indices.batches(0, 40)
    assert all(np.array_equal(indices.batches(t, t + 1)[0], together[t]) for t in range(40))
    assert np.array_equal(indices.batches(13, 29), together[13:29])
    assert np.array_equal(indices.batches(0, 40, slice(1, 4)), together[:, 1:4])


def test_far_ahead():
    indices = BatchIndices(1_000_003, 64)
    far = indices.batches(10**12, 10**12 + 2)
    assert np.array_equal(far[1], indices.batches(10**12 + 1, 10**12 + 2)[0])


@pytest.mark.parametrize(("n", "size"), [(24, 5), (7, 5)])
def test_examples_are_visited_alike_and_in_every_column(n, size):
    steps = 30_000
    batches = BatchIndices(n, size, seed=3).batches(0, steps)
    visits = np.bincount(batches.ravel(), minlength=n)
    expected = steps * size / n
    assert abs(visits - expected).max() <= (1 if n >= 2 * size else 6 * np.sqrt(expected))
    for column in batches.T:
        counts = np.bincount(column, minlength=n)
        assert chi2.sf(((counts - steps / n) ** 2 / (steps / n)).sum(), n - 1) > 1e-4


def test_streams_and_seeds_are_independent():
    n, size, steps = 50, 10, 4000
    own = BatchIndices(n, size, seed=0, purpose=2).batches(0, steps)
    for other in (BatchIndices(n, size, seed=0, purpose=3), BatchIndices(n, size, seed=1, purpose=2)):
        overlap = [len(set(a) & set(b)) for a, b in zip(own, other.batches(0, steps), strict=True)]
        # two independent subsets share size^2 / n = 2 examples on average, with variance 2 (4/5) (40/49)
        assert abs(np.mean(overlap) - 2.0) < 5 * np.sqrt(1.31 / steps)


def test_empty_batches():
    assert BatchIndices(5, 0).batches(0, 3).shape == (3, 0)
    assert BatchIndices(5, 2).batches(4, 4).shape == (0, 2)
    assert BatchIndices(5, 2).batches(0, 3, slice(2, 2)).shape == (3, 0)
