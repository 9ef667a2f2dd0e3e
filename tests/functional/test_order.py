"""Counting, splitting and selecting scores, and how many of them a rectangle covers."""

import math
from fractions import Fraction

import pytest
import torch

from lightning_tpauc.functional.checks import rankable
from lightning_tpauc.functional.pairwise import ceil_count, floor_count
from lightning_tpauc.functional.roc import between, count_above, count_pairs, sorted_ranks, split_classes


def levels(size, seed, num_levels=7):
    return torch.randint(num_levels, (size,), generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bool, torch.int64),
        (torch.uint8, torch.int64),
        (torch.int64, torch.int64),
    ],
)
def test_scores_are_never_narrowed(given, kept):
    scores = torch.tensor([0, 1], dtype=given)
    assert rankable(scores).dtype == kept
    assert rankable(scores).tolist() == scores.tolist()


def test_rows_of_neither_class_are_left_out():
    scores, labels = torch.arange(6.0).view(2, 3), torch.tensor([[1, 0, -1], [0, 2, 1]])
    pos, neg = split_classes(scores, labels)
    assert pos.tolist() == [0.0, 5.0]
    assert neg.tolist() == [1.0, 3.0]


@pytest.mark.parametrize("size", [1, 2, 17, 200])
def test_sorted_ranks_are_a_slice_of_the_sorted_values(size):
    values = levels(size, seed=size)
    before = values.clone()
    for start in range(0, size, max(1, size // 9)):
        for stop in range(start + 1, size + 1, max(1, size // 7)):
            assert sorted_ranks(values, start, stop).tolist() == sorted(values.tolist())[start:stop]
    assert torch.equal(values, before)


@pytest.mark.parametrize(("num_pos", "num_neg"), [(0, 5), (5, 0), (1, 1), (9, 40), (40, 9), (30, 30)])
def test_pairs_are_counted_as_by_two_loops(num_pos, num_neg):
    pos, neg = levels(num_pos, seed=1).sort().values, levels(num_neg, seed=2).sort().values
    expected = sum(2 * (n > p) + (n == p) for p in pos.tolist() for n in neg.tolist())
    assert count_pairs(pos, neg) == expected


def test_counts_and_slices_at_ties():
    values = torch.tensor([1.0, 2.0, 2.0, 3.0, 3.0, 5.0])
    assert count_above(values, 3.0) == (1, 3)
    assert count_above(values, 6.0) == (0, 0)
    assert between(values, 1.0, 3.0).tolist() == [2.0, 2.0]
    assert between(values, 2.0, 3.0).tolist() == []


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 10, 49, 100, 4990, 49_990, 3_000_000, 10**8, 10**9])
def test_counts_match_exact_arithmetic_for_both_spellings_of_theta(n):
    for theta in (Fraction(k, 100) for k in range(1, 101)):
        for as_float in (float(theta), 1.0 - float(1 - theta)):
            assert floor_count(as_float, n) == math.floor(theta * n)
            assert ceil_count(as_float, n) == math.ceil(theta * n)


def test_the_tolerance_stays_far_below_real_fractions():
    assert floor_count(0.5 - 1e-6, 10) == 4
    assert ceil_count(0.5 + 1e-6, 10) == 6
