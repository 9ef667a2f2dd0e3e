import math

import numpy as np
import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_binned_tpauc

RECTANGLES = [(0.5, 0.5), (0.0, 1.0), (0.0, 0.3), (0.6, 1.0), (0.25, 0.75), (1 / 3, 2 / 7)]


def scored(size=500, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (size,), generator=generator)
    scores = torch.randn(size, generator=generator, dtype=torch.float64) + 1.2 * target
    return scores.to(dtype), target


@pytest.mark.parametrize(("min_tpr", "max_fpr"), RECTANGLES)
@pytest.mark.parametrize(
    "thresholds", [[0.3], [1.0, -0.5, 0.0], torch.linspace(-3, 4, 40), (0, 1), torch.tensor([math.inf, 0.5])]
)
def test_lines_through_the_bins_equal_the_loops(thresholds, min_tpr, max_fpr):
    scores, target = scored()
    value = two_way_partial_auroc(scores, target, min_tpr, max_fpr, thresholds=thresholds)
    expected = naive_binned_tpauc(
        scores[target == 1].tolist(), scores[target == 0].tolist(), [float(t) for t in thresholds], min_tpr, max_fpr
    )
    assert_close(value, expected)


@pytest.mark.parametrize(("min_tpr", "max_fpr"), RECTANGLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_scores_on_the_grid_lose_nothing(dtype, min_tpr, max_fpr):
    scores, target = scored()
    grid = torch.linspace(0, 1, 11)
    # 0.7 is three different numbers in three precisions; it has to reach the threshold 0.7 in each.
    scores = grid[(scores * 2 + 4).round().long().clamp(0, 10)]
    if dtype is torch.int64:
        scores, thresholds = (scores * 10).round().to(dtype), list(range(11))
    else:
        scores, thresholds = scores.double().to(dtype), 11 if dtype is torch.float32 else grid.to(dtype)
    exact = two_way_partial_auroc(scores, target, min_tpr, max_fpr)
    assert_close(two_way_partial_auroc(scores, target, min_tpr, max_fpr, thresholds=thresholds), exact)


def test_an_integer_needs_scores_in_the_unit_interval():
    target = torch.tensor([0, 1])
    with pytest.raises(ArgumentError, match=r"Expected `preds` in \[0, 1\].* from -2 to 0.5.* thresholds themselves"):
        two_way_partial_auroc(torch.tensor([-2.0, 0.5]), target, thresholds=10)
    with pytest.raises(ArgumentError, match=r"from 0\.5 to 1\.5"):
        two_way_partial_auroc(torch.tensor([0.5, 1.5]), target, thresholds=10)
    assert float(two_way_partial_auroc(torch.tensor([0.0, 1.0]), target, thresholds=10)) == 1.0
    ignored = torch.tensor([math.nan, 0.0, 1.0])
    assert float(two_way_partial_auroc(ignored, torch.tensor([-1, 0, 1]), thresholds=10, ignore_index=-1)) == 1.0


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda t: np.array(t, np.float16)])
@pytest.mark.parametrize("thresholds", [[-math.inf, 0.0, math.inf], [0.5, math.inf], [0.25, 0.5]], ids=str)
def test_thresholds_in_any_container(thresholds, make):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (50,), generator=generator)
    scores = torch.randn(50, generator=generator) + target
    expected = naive_binned_tpauc(scores[target == 1].tolist(), scores[target == 0].tolist(), thresholds, 0.3, 0.8)
    assert_close(two_way_partial_auroc(scores, target, 0.3, 0.8, make(thresholds)), expected)


@pytest.mark.parametrize(
    "thresholds",
    [
        *([], [0.1, "x"], [0.1, math.nan], [True]),
        *(torch.full((2, 2), 0.5), torch.tensor(0.5), torch.tensor([math.nan]), torch.empty(0), torch.tensor([True])),
    ],
    ids=repr,
)
def test_thresholds_that_are_no_numbers(thresholds):
    with pytest.raises(ArgumentError, match=r"Expected `thresholds` to .* numbers"):
        two_way_partial_auroc(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]), thresholds=thresholds)
