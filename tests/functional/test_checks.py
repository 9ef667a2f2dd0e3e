import numpy as np
import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import (
    check_choice,
    check_count,
    check_per_positive,
    check_rectangle,
    check_scores,
    common_dtype,
    is_real,
    is_whole,
)


@pytest.mark.parametrize("min_tpr", [0.0, 0, 0.5, 0.999])
@pytest.mark.parametrize("max_fpr", [1e-6, 0.5, 1.0, 1])
def test_rectangles_inside_the_unit_square_pass(min_tpr, max_fpr):
    check_rectangle(min_tpr, max_fpr)


@pytest.mark.parametrize("min_tpr", [-1e-9, -0.3, 1.0, 1, 1.5, float("nan"), float("inf"), True, "0.5", None])
def test_min_tpr_outside_is_refused(min_tpr):
    with pytest.raises(ArgumentError, match=r"`min_tpr` to be a number in \[0, 1\), but got"):
        check_rectangle(min_tpr, 0.5)


@pytest.mark.parametrize("max_fpr", [0.0, 0, -0.3, 1.0 + 1e-9, 2, float("nan"), float("-inf"), True, "0.5", None])
def test_max_fpr_outside_is_refused(max_fpr):
    with pytest.raises(ArgumentError, match=r"`max_fpr` to be a number in \(0, 1\], but got"):
        check_rectangle(0.5, max_fpr)


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        (["a"], "`x` to hold numbers, .* but got a list"),
        (torch.tensor([1, 2]), r"`x` to be a float tensor, but got a tensor of torch.int64.*\.float\(\)"),
        (torch.zeros(3, 1), r"one dimension, but got shape \(3, 1\).*squeeze"),
        (torch.tensor(0.5), r"one dimension, but got shape \(\)"),
        (torch.zeros(0), r"at least one score, but got shape \(0,\)"),
    ],
)
def test_malformed_scores_are_refused(scores, match):
    with pytest.raises(ArgumentError, match=match):
        check_scores(scores, "x")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            torch.zeros(2),
            r"`s` to be a float tensor with one entry per positive, shape \(3,\), but got torch.float32.*2",
        ),
        (torch.zeros(3, dtype=torch.int64), "but got torch.int64"),
        (1.0, "but got 1.0"),
    ],
)
def test_per_positive_values_need_the_shape_of_the_positives(values, match):
    with pytest.raises(ArgumentError, match=match):
        check_per_positive(values, "s", torch.zeros(3))


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([torch.float16], torch.float32),
        ([torch.bfloat16, torch.float16], torch.float32),
        ([torch.float32, torch.float64], torch.float64),
    ],
)
def test_common_dtype_is_at_least_single_precision(dtypes, expected):
    assert common_dtype(*(torch.zeros(1, dtype=dtype) for dtype in dtypes)) == expected


def test_is_real_knows_numbers_from_look_alikes():
    assert all(map(is_real, (0, 1.5, -2, np.float16(1.5), np.float32(1.5), np.float64(1.5), np.int64(2))))
    nans = float("nan"), np.float32("nan"), float("inf"), np.float64("inf")
    assert not any(map(is_real, (True, np.True_, "1", None, *nans, torch.tensor(1.0), np.ones(1))))


def test_is_whole_knows_integers_from_look_alikes():
    assert all(map(is_whole, (0, -2, np.int64(3), np.uint8(3))))
    assert not any(map(is_whole, (True, np.True_, 1.0, np.float64(1.0), "1", None, torch.tensor(1))))


def test_rectangles_come_back_as_plain_floats():
    rectangle = check_rectangle(np.float32(0.25), np.int64(1))
    assert rectangle == (0.25, 1.0)
    assert [type(bound) for bound in rectangle] == [float, float]


@pytest.mark.parametrize("value", [0, True, 1.5, "2", None, np.int64(0)])
def test_counts_are_whole_numbers(value):
    check_count(np.int64(1), "x", 1)
    with pytest.raises(ArgumentError, match="`x` to be a whole number of at least 1, but got"):
        check_count(value, "x", 1)


def test_choices():
    check_choice("a", "x", ("a", "b"))
    with pytest.raises(ArgumentError, match="`x` to be one of 'a', 'b', but got 'c'"):
        check_choice("c", "x", ("a", "b"))
