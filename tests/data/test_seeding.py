"""Permutations that are computed entry by entry, and random numbers of augmentations."""

import random

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from lightning_tpauc.data.seeding import ItemReader, permute, random_keys, seeded_items
from tests.helpers.items import draw

# both sides of the switch between sorting and the Feistel network, squares, primes, powers of two
SIZES = (1, 2, 3, 4, 22, 97, 1024, 4095, 4096, 4097, 4099, 5041, 10_007, 65_536, 65_537, 300_000)


def chi_square_p(counts, expected):
    statistic = ((counts - expected) ** 2 / expected).sum()
    return chi2.sf(statistic, counts.size - 1)


@pytest.mark.parametrize("n", SIZES)
def test_is_a_bijection(n):
    for which in (0, 1, 12_345):
        values = permute(np.arange(n), np.array(which), n, seed=3, purpose=2)
        assert values.dtype == np.int64
        assert np.array_equal(np.sort(values), np.arange(n))


def test_reaches_beyond_a_billion():
    n = 3 * 10**9 + 7
    slots = np.linspace(0, n - 1, 50_000).astype(np.int64)
    values = permute(slots, np.array(4), n)
    assert len(np.unique(values)) == 50_000
    assert 0 <= values.min() <= values.max() < n
    # quarters of the range are hit alike
    assert chi_square_p(np.bincount(values // (n // 64 + 1), minlength=64), 50_000 / 64) > 1e-4
    assert permute(np.array([1 << 61]), np.array(0), 1 << 62).item() < 1 << 62


@pytest.mark.parametrize("n", [6, 4096, 5000])
def test_every_slot_holds_every_element_alike(n):
    passes = 60_000 // min(n, 60)
    slots = np.array([0, 1, n // 2, n - 1])
    values = permute(slots, np.arange(passes)[:, None], n, seed=11)
    bins = min(n, 60)
    for column in values.T:
        assert chi_square_p(np.bincount(column * bins // n, minlength=bins), passes / bins) > 1e-4


@pytest.mark.parametrize("n", [1000, 50_000])
@pytest.mark.parametrize("change", [{"seed": 1}, {"purpose": 1}, {"which": 1}, {"seed": -1}, {"seed": 2**64 + 5}])
def test_seed_stream_and_pass_give_unrelated_orders(n, change):
    def order(seed=0, purpose=0, which=0):
        return permute(np.arange(n), np.array(which), n, seed=seed, purpose=purpose)

    # two random permutations agree in one place on average
    assert (order() == order(**change)).sum() < 12
    assert abs(np.corrcoef(order(), order(**change))[0, 1]) < 5 / np.sqrt(n)


def test_the_order_is_part_of_the_format():
    """A changed order would silently change resumed runs: these numbers must stay."""
    assert permute(np.arange(8), np.array(0), 8, seed=0).tolist() == ORDER_OF_8
    assert permute(np.arange(4), np.array(2), 10**6, seed=1, purpose=3).tolist() == START_OF_MILLION
    assert random_keys(0, 0, np.array([0])).tolist() == [FIRST_KEY]


ORDER_OF_8 = [0, 4, 1, 2, 3, 7, 6, 5]
START_OF_MILLION = [501333, 748981, 945021, 468308]
FIRST_KEY = 3746585686858627171


def drawn(seed, step, row):
    with seeded_items(seed, step) as reseed:
        reseed(row)
        return draw()


def test_depends_on_seed_step_and_row_only():
    reference = drawn(0, 3, 7)
    random.seed(99)
    np.random.seed(98)
    torch.manual_seed(97)
    draw()
    assert drawn(0, 3, 7) == reference
    for other in (drawn(1, 3, 7), drawn(0, 4, 7), drawn(0, 3, 8), drawn(0, 7, 3), drawn(3, 0, 7)):
        assert not set(other) & set(reference)


@pytest.mark.parametrize("draws", ["random", "numpy", "torch", "all", "none"])
def test_items_that_are_read_draw_what_seeded_items_say(draws):
    """Whether or not a generator was known to be drawn from: some rows draw, late, and from another one each."""

    def item(row):
        if draws == "none" or (draws != "all" and row % 3):
            return row
        one = {"random": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(()).item()}
        return one.get(draws, draw)()

    reader, rows = ItemReader(5), [[1, 2, 4], [1, 3, 6, 2], [9, 12]]
    torch.manual_seed(1)
    state = random.getstate()
    for step, batch in enumerate(rows):
        expected = []
        with seeded_items(5, step) as reseed:
            for row in batch:
                reseed(row)
                expected.append(item(row))
        assert reader.read(item, batch, step) == expected
        assert [reader.read(item, [row], step)[0] for row in batch] == expected
    assert random.getstate() == state
    assert torch.initial_seed() == 1
