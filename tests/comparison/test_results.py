"""Values against scikit-learn and loops, intervals against scipy's bootstrap, verdicts by their words."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap
from sklearn.metrics import average_precision_score, roc_auc_score

from lightning_tpauc.comparison.resampling import Evaluated, num_resamples_for, resampled_areas
from lightning_tpauc.comparison.results import Difference, difference, measures, short, verdict
from lightning_tpauc.errors import ArgumentError
from tests.reference.tpauc import naive_tpauc

CORNER = (0.5, 0.4)


def scored(seed, shift=1.0, n_pos=30, n_neg=80, digits=None):
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.ones(n_pos), torch.zeros(n_neg)]).long()
    scores = torch.randn(n_pos + n_neg, generator=generator) + shift * target
    return Evaluated(scores if digits is None else scores.round(decimals=digits), target)


def reached(run, min_tpr, max_fpr):
    """(TPR at max_fpr, FPR at min_tpr) by walking the vertices of the polyline."""
    points = [(0.0, 0.0)]
    for t in sorted(set(run.scores.tolist()), reverse=True):
        above = run.scores >= t
        points.append(tuple(float(above[run.target == k].float().mean(dtype=torch.float64)) for k in (0, 1)))
    tpr, fpr = 0.0, math.inf
    for (f0, t0), (f1, t1) in itertools.pairwise(points):
        if f1 <= max_fpr:
            tpr = max(tpr, t1)
        elif f0 <= max_fpr:
            tpr = max(tpr, t0 + (t1 - t0) * (max_fpr - f0) / (f1 - f0))
        if t0 < min_tpr <= t1:
            fpr = min(fpr, f0 + (f1 - f0) * (min_tpr - t0) / (t1 - t0))
    return tpr, fpr


@pytest.mark.parametrize("digits", [None, 0])
def test_values(digits):
    run = scored(0, digits=digits)
    found = measures(run, [CORNER, (0.25, 0.75)])
    pos, neg = (run.scores[run.target == k].double().numpy() for k in (1, 0))
    tpr, fpr = reached(run, *CORNER)
    expected = {
        "tpauc 0": naive_tpauc(pos, neg, *CORNER),
        "tpauc 1": naive_tpauc(pos, neg, 0.25, 0.75),
        "auroc": roc_auc_score(run.target, run.scores),
        "average_precision": average_precision_score(run.target, run.scores),
        "tpr_at_max_fpr": tpr,
        "fpr_at_min_tpr": fpr,
    }
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-9)


@pytest.mark.slow
def test_paired_intervals_are_those_of_scipy():
    """scipy draws rows of each class with replacement, the same rows for both methods."""
    ours, theirs = scored(1, shift=1.5), scored(2, shift=1.0)
    is_pos = ours.target == 1

    def statistic(pos, neg):
        areas = [
            naive_tpauc(run.scores[is_pos].double().numpy()[pos], run.scores[~is_pos].double().numpy()[neg], *CORNER)
            for run in (ours, theirs)
        ]
        return float(areas[0] - areas[1])

    rows = np.arange(30), np.arange(80)
    theirs_interval = bootstrap(
        rows, statistic, vectorized=False, method="percentile", n_resamples=600, rng=np.random.default_rng(0)
    ).confidence_interval
    areas = resampled_areas({"ours": [ours], "theirs": [theirs]}, [CORNER], num_resamples=3000)
    found = difference(statistic(*rows), areas["ours"][:, 0], areas["theirs"][:, 0])
    width = theirs_interval.high - theirs_interval.low
    assert found.lower == pytest.approx(theirs_interval.low, abs=0.1 * width)
    assert found.upper == pytest.approx(theirs_interval.high, abs=0.1 * width)


def test_methods_that_rank_alike_differ_by_nothing():
    """Resamples are the same for all methods, so a monotone transform changes none of them."""
    run = scored(3)
    areas = resampled_areas({"a": [run], "b": [Evaluated(run.scores.exp(), run.target)]}, [CORNER], num_resamples=50)
    assert torch.equal(areas["a"], areas["b"])
    assert areas["a"].std() > 0.01


def test_resamples_are_a_function_of_the_seed():
    runs = {"a": [scored(4)]}
    one, again, other = (resampled_areas(runs, [CORNER], 20, seed=seed)["a"] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_runs_on_the_same_examples_do_not_count_as_more_examples():
    run, other = scored(5), scored(5, n_pos=31)
    one, same = (resampled_areas({"a": runs}, [CORNER], 600)["a"].std() for runs in ([run], [run] * 4))
    apart = resampled_areas({"a": [run, other] * 2}, [CORNER], 600)["a"].std()
    assert float(same) == pytest.approx(float(one), rel=0.15)
    assert float(apart) < 0.85 * float(one)


def test_runs_are_drawn_as_well():
    """Of a perfect and a useless run, no resample of examples changes either: what varies is which runs are drawn."""
    target = torch.tensor([1, 1, 0, 0])
    perfect, useless = Evaluated(target.float(), target), Evaluated(-target.float(), target)
    areas = resampled_areas({"a": [perfect, useless]}, [CORNER], num_resamples=2000)["a"][:, 0]
    values, counts = areas.unique(return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    assert (counts / 2000).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.05)


def test_methods_on_other_examples_are_refused():
    with pytest.raises(ArgumentError, match="'b' were evaluated on other examples"):
        resampled_areas({"a": [scored(0)], "b": [scored(0, n_pos=31)]}, [CORNER], 2)
    with pytest.raises(ArgumentError, match="'b' were evaluated on other examples"):
        resampled_areas({"a": [scored(0)], "b": [scored(0), scored(1)]}, [CORNER], 2)
    alone = Evaluated(torch.zeros(3), torch.zeros(3).long())
    with pytest.raises(ArgumentError, match="lack a class"):
        resampled_areas({"a": [alone]}, [CORNER], 2)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((0.04, 0.02, 0.06), "ahead by .040, 95% interval .020 to .060"),
        ((0.04, 0.0, 0.06), "level: keep CE (+.040, 95% interval .000 to .060)"),
        ((-0.01, -0.02, 0.01), "level: keep CE (-.010, 95% interval -.020 to .010)"),
        ((-0.04, -0.06, -0.02), "behind by .040, 95% interval .020 to .060: keep CE"),
        ((1.0, 1.0, 1.0), "ahead by 1.000, 95% interval 1.000 to 1.000"),
    ],
)
def test_verdicts(found, text):
    assert verdict(Difference(*found), "CE") == text


def test_there_is_no_verdict_on_untrained_methods():
    found = Difference(0.4, 0.3, 0.5)
    text = "open (+.400, 95% interval .300 to .500): "
    assert verdict(found, "CE", ["CE"]) == f"{text}CE never validated better than its first weights"
    assert verdict(found, "CE", ["CE", "A"]) == f"{text}CE and A never validated better than their first weights"


def test_small_numbers_have_no_sign_of_nothing():
    assert [short(value) for value in (-0.0001, 0.9996, -0.9996, 10.05)] == [".000", "1.000", "-1.000", "10.050"]


def test_huge_data_get_fewer_resamples():
    assert [num_resamples_for(n) for n in (0, 10**6, 2 * 10**6, 10**9)] == [1000, 1000, 500, 200]
