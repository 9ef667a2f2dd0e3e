"""How many scores a rectangle covers, in exact arithmetic."""

import math
from fractions import Fraction

import pytest

from lightning_tpauc.functional.pairwise import ceil_count, floor_count


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 10, 49, 100, 4990, 49_990, 3_000_000, 10**8, 10**9])
def test_counts_match_exact_arithmetic_for_both_spellings_of_theta(n):
    for theta in (Fraction(k, 100) for k in range(1, 101)):
        for as_float in (float(theta), 1.0 - float(1 - theta)):
            assert floor_count(as_float, n) == math.floor(theta * n)
            assert ceil_count(as_float, n) == math.ceil(theta * n)


def test_the_tolerance_stays_far_below_real_fractions():
    assert floor_count(0.5 - 1e-6, 10) == 4
    assert ceil_count(0.5 + 1e-6, 10) == 6
