"""Weights of examples: whole ones against repeated rows, any others against scikit-learn; and a budget of alerts."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_auc_score, roc_curve

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import (
    count_decisions,
    decision_threshold,
    fpr_at_min_tpr,
    precision_at_alert_rate,
    roc_polyline,
    tpr_at_max_fpr,
    two_way_partial_auroc,
)
from lightning_tpauc.functional.operating_points import CRITERIA
from tests.helpers.tolerances import assert_close


def problem(seed=0, size=120, levels=25):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (size,), generator=generator)
    scores = torch.randint(levels, (size,), generator=generator) + target * (levels // 3)
    return scores.double(), target, torch.randint(4, (size,), generator=generator)


def chosen(criterion):
    def call(scores, target, **weights):
        demands = {"min_precision": 0.6, "max_alert_rate": 0.6}
        return torch.tensor(decision_threshold(scores, target, 0.5, 0.4, criterion, **demands, **weights)[:5]).double()

    return call


CALLS: dict[str, Any] = {
    "area": partial(two_way_partial_auroc, min_tpr=0.55, max_fpr=0.35),
    "AUROC": partial(two_way_partial_auroc, min_tpr=0.0, max_fpr=None),
    "curve": lambda *own, **w: torch.stack(roc_polyline(*own, **w)),
    "TPR": partial(tpr_at_max_fpr, max_fpr=0.23),
    "FPR": partial(fpr_at_min_tpr, min_tpr=0.61),
    "precision": partial(precision_at_alert_rate, alert_rate=0.37),
    "counts": lambda own, target, **w: torch.tensor(count_decisions(own, target, 14.0, **w)[:5]).double(),
    **{criterion: chosen(criterion) for criterion in CRITERIA},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seed", range(5))
def test_a_whole_weight_is_so_many_rows(name, seed):
    scores, target, weight = problem(seed)
    found = CALLS[name](scores, target, sample_weight=weight.numpy())
    repeated = CALLS[name](scores.repeat_interleave(weight), target.repeat_interleave(weight))
    if name in CRITERIA:  # rows of weight 0 lie between scores: the threshold may lie elsewhere between its neighbours
        found, repeated = found[1:], repeated[1:]
    assert_close(found, repeated)


def test_any_weights_as_in_scikit_learn():
    scores, target, _ = problem()
    weight = torch.rand(len(target), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    arrays = target.numpy(), scores.numpy()
    area = two_way_partial_auroc(scores, target, 0.0, 1.0, sample_weight=weight)
    assert_close(area, roc_auc_score(*arrays, sample_weight=weight.numpy()))
    fpr, tpr, _ = roc_curve(*arrays, sample_weight=weight.numpy(), drop_intermediate=False)
    ours = roc_polyline(scores, target, drop_collinear=False, sample_weight=weight.tolist())
    assert_close(torch.stack(ours), np.stack([fpr, tpr]))
    assert_close(tpr_at_max_fpr(scores, target, 0.2, sample_weight=weight), np.interp(0.2, fpr, tpr))
    assert_close(fpr_at_min_tpr(scores, target, 0.7, sample_weight=weight), np.interp(0.7, tpr, fpr))
    grid = np.linspace(0, 0.3, 200_001)  # fpr <= 0.3, and the height above 0.5
    height = np.clip(np.interp(grid, fpr, tpr) - 0.5, 0, None)
    area = two_way_partial_auroc(scores, target, 0.5, 0.3, sample_weight=weight)
    assert float(area) == pytest.approx(auc(grid, height) / 0.15, abs=1e-6)
    several = two_way_partial_auroc(
        torch.stack([scores, -scores], 1),
        torch.stack([target, 1 - target], 1),
        task="multilabel",
        num_labels=2,
        average=None,
        sample_weight=weight,
    )
    one = two_way_partial_auroc(scores, target, sample_weight=weight)
    assert_close(
        several, torch.stack([one, one * 0 + two_way_partial_auroc(-scores, 1 - target, sample_weight=weight)])
    )


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([1.0, 2.0], r"one number for each of the 4 examples, but got shape \(2,\)"),
        ([1.0, 2.0, -1.0, 0.0], "finite and at least 0, but found -1.0"),
        ([1.0, 2.0, math.nan, 0.0], "finite and at least 0, but found nan"),
        ([1.0, 0.0, 1.0, 0.0], "all of one class weigh 0"),
    ],
)
@pytest.mark.parametrize("call", [roc_polyline, two_way_partial_auroc, decision_threshold])
def test_weights_that_are_none(call, weight, words):
    with pytest.raises(ArgumentError, match=words):
        call([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], sample_weight=weight)


def test_bins_have_no_weights():
    with pytest.raises(ArgumentError, match="leave out `thresholds`"):
        two_way_partial_auroc([0.1, 0.9], [0, 1], thresholds=5, sample_weight=[1, 1])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.75, 1.0])
def test_a_budget_takes_tied_examples_in_no_order(rate):
    """The mean over all orders; between two whole numbers of alerts on a line."""
    scores, target = np.array([3, 2, 2, 2, 1, 0]), np.array([1, 0, 1, 1, 1, 0])
    found = []
    for order in map(list, itertools.permutations(range(len(scores)))):
        ranked = target[order][np.argsort(-scores[order], kind="stable")]
        found.append(np.interp(rate * len(scores), np.arange(len(scores) + 1), np.append(0, ranked.cumsum())))
    assert float(precision_at_alert_rate(scores, target, rate)) == pytest.approx(np.mean(found) / (rate * len(scores)))


@pytest.mark.parametrize(
    "demand", [{"min_precision": 0.7}, {"max_alert_rate": 0.2}, {"min_precision": 0.6, "max_alert_rate": 0.3}]
)
def test_further_demands_are_met_where_any_threshold_meets_them(demand):
    least, most = demand.get("min_precision", 0.0), demand.get("max_alert_rate", 1.0)
    for seed in range(40):
        scores, target, _ = problem(seed, size=60)
        chosen = decision_threshold(scores, target, 0.2, 0.8, "youden", **demand)
        every = [count_decisions(scores, target, cut) for cut in [math.inf, *scores.unique().tolist()]]
        fits = [d for d in every if d.lies_in(0.2, 0.8) and not d.precision < least and d.alert_rate <= most]
        if fits:
            best = max(d.sensitivity + d.specificity for d in fits)
            assert chosen.sensitivity + chosen.specificity == pytest.approx(best, abs=1e-12)
            assert chosen.precision >= least
            assert chosen.alert_rate <= most
        assert seed or fits, "there are such thresholds"


def test_small_weights_still_mean_the_fewest_false_alarms():
    """Of weights below 1 a false alarm weighs less than the positives that it finds."""
    scores, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
    weight = torch.where(target == 1, 0.9, 0.01)
    for given in (None, weight):
        chosen = decision_threshold(scores, target, 0.3, 1.0, "max_specificity", sample_weight=given)
        assert (chosen.sensitivity, chosen.specificity) == pytest.approx((1 / 3, 1.0))
