import math

import pytest
import torch
from sklearn.metrics import auc, roc_curve

from lightning_tpauc.functional.roc import (
    polyline_vertices,
    roc_polyline,
)
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import roc_vertices


def scored(num_levels, size=120, seed=0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (size,), generator=generator)
    scores = torch.randint(num_levels, (size,), generator=generator) + target * (num_levels // 4)
    return scores.double(), target


@pytest.mark.parametrize("num_levels", [1, 4, 30, 10_000])
def test_vertices_equal_the_loops(num_levels):
    scores, target = scored(num_levels)
    fpr, tpr = roc_polyline(scores, target, drop_collinear=False)
    expected = roc_vertices(scores[target == 1].tolist(), scores[target == 0].tolist())
    assert_close(torch.stack([fpr, tpr], dim=1), expected)


@pytest.mark.parametrize("num_levels", [4, 30, 10_000])
def test_dropped_vertices_lie_on_the_curve(num_levels):
    scores, target = scored(num_levels)
    fpr, tpr = roc_polyline(scores, target)
    every_fpr, every_tpr, _ = roc_curve(target.numpy(), scores.numpy(), drop_intermediate=False)
    assert {*zip(fpr.tolist(), tpr.tolist(), strict=True)} <= {*zip(every_fpr, every_tpr, strict=True)}
    assert_close(auc(fpr.numpy(), tpr.numpy()), auc(every_fpr, every_tpr))
    if num_levels == 10_000:
        assert len(fpr) < len(every_fpr)


def test_corners_next_to_empty_segments_are_kept():
    fpr, tpr, thresholds = polyline_vertices(
        torch.tensor([2, 0, 0]), torch.tensor([0, 0, 1]), torch.tensor([3.0, 2.0, 1.0])
    )
    assert fpr.tolist() == [0.0, 0.0, 1.0]
    assert tpr.tolist() == [0.0, 1.0, 1.0]
    assert thresholds.tolist() == [math.inf, 3.0, 1.0]


def test_scores_that_are_nan_have_no_curve():
    scores, target = scored(30)
    scores[3] = math.nan
    assert all(rates.isnan().all() for rates in roc_polyline(scores, target))
    target[3] = -1
    kept = target >= 0
    assert torch.equal(torch.stack(roc_polyline(scores, target)), torch.stack(roc_polyline(scores[kept], target[kept])))
