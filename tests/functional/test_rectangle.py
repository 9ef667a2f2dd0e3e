import math
from fractions import Fraction

import numpy as np
import pytest

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import ceil_count, floor_count

HUNDREDTHS = [Fraction(k, 100) for k in range(1, 101)]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 10, 49, 100, 4990, 49_990, 3_000_000, 10**8, 10**9])
def test_counts_match_exact_arithmetic_for_both_spellings_of_theta(n):
    for theta in HUNDREDTHS:
        for as_float in (float(theta), 1.0 - float(1 - theta)):
            assert floor_count(as_float, n) == math.floor(theta * n)
            assert ceil_count(as_float, n) == math.ceil(theta * n)


def test_the_rounding_that_plain_floor_falls_for():
    assert math.floor(10 * (1 - 0.9)) == 0
    assert floor_count(1 - 0.9, 10) == 1
    assert math.ceil(10 * (0.1 + 0.2)) == 4
    assert ceil_count(0.1 + 0.2, 10) == 3


def test_tolerance_stays_far_below_real_fractions():
    assert floor_count(0.5 - 1e-6, 10) == 4
    assert ceil_count(0.5 + 1e-6, 10) == 6


@pytest.mark.parametrize("count", [floor_count, ceil_count])
@pytest.mark.parametrize("theta", [0.0, -0.5, 1.5, float("nan"), True, "0.5"])
def test_theta_outside_is_refused(count, theta):
    with pytest.raises(ArgumentError, match=r"`theta` to be a number in \(0, 1\]"):
        count(theta, 10)


@pytest.mark.parametrize("count", [floor_count, ceil_count])
@pytest.mark.parametrize("n", [-1, 2.0, True, None])
def test_counts_of_no_integer_are_refused(count, n):
    with pytest.raises(ArgumentError, match="`n` to be an integer of at least 0"):
        count(0.5, n)


@pytest.mark.parametrize("count", [floor_count, ceil_count])
def test_numbers_of_numpy_are_multiplied_as_pythons(count):
    theta, n = np.float32(0.1), np.int64(30_000_001)
    assert count(theta, n) == count(float(theta), int(n))
    assert type(count(theta, n)) is int
