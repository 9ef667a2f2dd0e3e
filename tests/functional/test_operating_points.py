import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.functional.roc import clip_polyline, roc_polyline
from tests.helpers.tolerances import assert_close


def scored(rng, levels, num_pos, num_neg):
    target = np.array([1] * num_pos + [0] * num_neg)
    return rng.integers(levels, size=target.size) + target * (levels // 4), target


def by_sklearn(scores, target, min_tpr, max_fpr):
    """numpy.interp takes the last of several vertices at one abscissa: the highest, and mirrored the leftmost."""
    fpr, tpr, _ = roc_curve(target, scores, drop_intermediate=False)
    return np.interp(max_fpr, fpr, tpr), np.interp(-min_tpr, -tpr[::-1], fpr[::-1])


def ours(scores, target, min_tpr, max_fpr):
    tensors = torch.as_tensor(scores), torch.as_tensor(target)
    return float(tpr_at_max_fpr(*tensors, max_fpr)), float(fpr_at_min_tpr(*tensors, min_tpr))


@pytest.mark.parametrize("levels", [1, 2, 5, 30, 100_000])
def test_both_equal_scikit_learns_curve_between_its_vertices(levels):
    rng = np.random.default_rng(levels)
    for _ in range(100):
        scores, target = scored(rng, levels, *rng.integers(1, 40, size=2))
        bounds = rng.random(), 1 - rng.random()
        assert ours(scores, target, *bounds) == pytest.approx(by_sklearn(scores, target, *bounds), abs=1e-12)


@pytest.mark.parametrize("levels", [1, 2, 5, 30, 100_000])
def test_both_take_the_better_end_of_a_step_that_lies_on_the_bound(levels):
    rng = np.random.default_rng(levels)
    for _ in range(100):
        num_pos, num_neg = rng.integers(1, 40, size=2)
        scores, target = scored(rng, levels, num_pos, num_neg)
        bounds = rng.integers(num_pos) / num_pos, rng.integers(1, num_neg + 1) / num_neg
        assert ours(scores, target, *bounds) == pytest.approx(by_sklearn(scores, target, *bounds), abs=1e-12)


def test_rounding_of_the_bound_does_not_lose_a_step():
    target = torch.tensor([0] * 3 + [1] * 10 + [0] * 7)
    scores = torch.arange(20, 0, -1)  # after 3 of 10 negatives the curve rises from 0 to 1
    assert float(tpr_at_max_fpr(scores, target, max_fpr=0.1 * 3 - 1e-16)) == 1.0
    assert float(tpr_at_max_fpr(scores, target, max_fpr=1 - 0.7)) == 1.0
    assert float(tpr_at_max_fpr(scores, target, max_fpr=0.299)) == 0.0
    swapped = 1 - target  # after 3 of 10 positives the curve runs right from 0 to 1
    assert float(fpr_at_min_tpr(scores, swapped, min_tpr=0.1 * 3)) == 0.0  # 0.30000000000000004
    assert float(fpr_at_min_tpr(scores, swapped, min_tpr=0.301)) == 1.0


def test_they_are_the_ends_of_the_clipped_curve():
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (200,), generator=generator)
    scores = torch.randn(200, generator=generator) + 2 * target
    fpr, tpr = clip_polyline(*roc_polyline(scores, target), 0.613, 0.377)
    assert_close(tpr_at_max_fpr(scores, target, 0.377), tpr[-1])
    assert_close(fpr_at_min_tpr(scores, target, 0.613), fpr[0])


def test_the_borders_of_the_square():
    scores, target = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 0])
    assert float(tpr_at_max_fpr(scores, target, max_fpr=1)) == 1.0
    assert float(fpr_at_min_tpr(scores, target, min_tpr=0)) == 0.0


@pytest.mark.parametrize("compute", [tpr_at_max_fpr, fpr_at_min_tpr])
def test_ignored_rows_missing_classes_and_nan(compute):
    scores, target = torch.tensor([0.9, float("nan"), 0.8, 0.7]), torch.tensor([1, -1, 0, 1])
    kept = target >= 0
    assert torch.equal(compute(scores, target, ignore_index=-1), compute(scores[kept], target[kept]))
    with pytest.warns(TPAUCWarning, match=r"(TPR|FPR) at .* is nan: there was no negative example"):
        assert compute(scores[kept], torch.ones(3, dtype=torch.int64)).isnan()
    with pytest.raises(ArgumentError, match="1 of 4 scores are nan"):
        compute(scores, target.clamp(min=0))
    with pytest.warns(TPAUCWarning, match=r"(TPR|FPR) at .* is nan: some scores are nan"):
        assert compute(scores, target.clamp(min=0), validate_args=False).isnan()


@pytest.mark.parametrize("bound", [1.5, -0.1, True, "0.5", None, float("nan")])
def test_bounds_out_of_range(bound):
    scores, target = torch.tensor([0.9, 0.8]), torch.tensor([1, 0])
    with pytest.raises(ArgumentError, match="`max_fpr` to be a number in"):
        tpr_at_max_fpr(scores, target, bound)
    with pytest.raises(ArgumentError, match="`min_tpr` to be a number in"):
        fpr_at_min_tpr(scores, target, bound)
