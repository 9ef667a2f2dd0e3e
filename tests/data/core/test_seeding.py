"""Random numbers of augmentations."""

import random

import numpy as np
import pytest
import torch

from lightning_tpauc.data.core.seeding import as_seed, say_what_seeds, seeded_items
from lightning_tpauc.errors import ArgumentError
from tests.helpers.items import draw


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


def drawn_then_fails():
    with seeded_items(0, 0) as reseed:
        reseed(1)
        draw()
        raise IndexError


def test_restores_the_surrounding_state():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    expected = draw(), draw()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    first = draw()
    drawn(0, 0, 0)
    with pytest.raises(IndexError):
        drawn_then_fails()
    assert (first, draw()) == expected


def test_seeds_are_spread():
    values = np.array([drawn(0, step, row) for step in range(20) for row in range(20)])
    assert len(np.unique(values)) == values.size
    assert abs(values.mean(axis=0) - 0.5).max() < 5 * 0.29 / 20
    assert abs(np.corrcoef(values.T) - np.eye(3)).max() < 5 / 20


@pytest.mark.parametrize("seed", [3, np.int8(3), np.uint64(3), np.int64(3)])
def test_seeds_of_any_kind(seed):
    assert as_seed(seed, "seed") == 3
    assert type(as_seed(seed, "seed")) is int
    assert as_seed(2**64 - 1, "seed") == 2**64 - 1


@pytest.mark.parametrize("seed", [None, 3.0, 3.5, "3", True, -1, 2**64, torch.tensor(3), [3]])
def test_refused_seeds(seed):
    with pytest.raises(ArgumentError, match=r"`seed` to be a whole number in 0 .. 2\*\*64 - 1, but got"):
        as_seed(seed, "seed")


def test_seed_everything_says_what_it_does_not_seed(monkeypatch, caplog):
    for everything, seeds, said in ((None, (0, 0), 0), ("0", (0, 0), 0), ("7", (7, 0), 0), ("7", (0, 0), 1)):
        caplog.clear()
        monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
        if everything is not None:
            monkeypatch.setenv("PL_GLOBAL_SEED", everything)
        with caplog.at_level("INFO"):
            say_what_seeds(*seeds)
        assert len(caplog.records) == said
