"""Random numbers of augmentations."""

import random

import numpy as np
import pytest
import torch

from lightning_tpauc.data.seeding import seeded_items
from tests.data.items import draw


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
