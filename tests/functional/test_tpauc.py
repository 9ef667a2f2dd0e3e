import inspect
import math
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from lightning_tpauc import functional
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional import decision_threshold, fit_calibration, roc_polyline, two_way_partial_auroc
from lightning_tpauc.metrics import TwoWayPartialAUROC
from tests.helpers.tolerances import assert_close
from tests.reference.tpauc import naive_tpauc

RECTANGLES = [(0.5, 0.5), (0.0, 1.0), (0.0, 0.3), (0.6, 1.0), (0.25, 0.75), (0.9, 0.1), (1 / 3, 2 / 7), (0.999, 0.001)]


def joined(pos, neg, dtype=torch.float64):
    scores = torch.tensor([*pos, *neg], dtype=dtype)
    return scores, torch.tensor([1] * len(pos) + [0] * len(neg))


def normal_scores(num_pos, num_neg, shift=1.2, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.ones(num_pos, dtype=torch.int64), torch.zeros(num_neg, dtype=torch.int64)])
    scores = torch.randn(num_pos + num_neg, generator=generator, dtype=torch.float64) + shift * target
    order = torch.randperm(num_pos + num_neg, generator=generator)
    return scores[order].to(dtype), target[order]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("pos", "neg", "theta0", "theta1", "expected"),
    [
        pytest.param([7] * 4, [7] * 4, 0.5, 0.5, 0, id="collapsed model, 4 + 4"),
        pytest.param([7] * 100, [7] * 100, 0.5, 0.5, 0, id="collapsed model, 100 + 100"),
        pytest.param([7] * 100, [7] * 100, 0.3, 0.3, 0, id="collapsed model, small rectangle"),
        pytest.param([7], [7], 0.5, 0.5, 0, id="one tied pair"),
        pytest.param([0.9, 0.7, 0.5, 0.3, 0.1], [0.8, 0.6, 0.4, 0.2, 0.0], 0.5, 0.5, 0.04, id="2.5 of each"),
        pytest.param([0.9, 0.8, 0.7, 0.2, 0.1], [0.75, 0.5, 0.4, 0.05], 0.5, 0.5, 0.1, id="2.5 positives"),
        pytest.param(
            [0.9, 0.8, 0.75, 0.7, 0.6, 0.2, 0.1], [0.72, 0.5, 0.4, 0.05], 0.5, 0.5, 3 / 14, id="3.5 positives"
        ),
        pytest.param([0.95, 0.6, 0.35], [0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1], 0.5, 0.3, 1 / 63, id="2.1 negatives"),
        pytest.param([5, 5, 5, 9, 9, 5], [5, 5, 7, 1, 5, 5], 0.5, 0.5, 1 / 18, id="ties across both borders"),
        pytest.param([0.9, 0.3], [0.8, 0.1], 0.9, 0.9, 56 / 81, id="almost the square"),
        pytest.param([0.9, 0.7, 0.5, 0.3], [0.8, 0.6, 0.4, 0.2], 0.5, 1.0, 0.375, id="one-way in TPR"),
    ],
)
def test_hand_computed_cases(pos, neg, theta0, theta1, expected):
    value = two_way_partial_auroc(*joined(pos, neg), min_tpr=1 - theta0, max_fpr=theta1)
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert_close(value, expected)
    if expected == 0:
        assert float(value) == 0.0


def tied_scores(rng, levels, largest):
    return rng.integers(levels, size=rng.integers(1, largest + 1)).tolist()


@pytest.mark.slow
def test_ten_thousand_small_cases_with_ties_agree_with_the_loops():
    rng = np.random.default_rng(0)
    for _ in range(10_000):
        levels = rng.choice([1, 2, 3, 5, 100])
        pos, neg = tied_scores(rng, levels, 9), tied_scores(rng, levels, 9)
        min_tpr = float(rng.choice([0.0, 0.5, 0.25, rng.random()]))
        max_fpr = float(rng.choice([1.0, 0.5, 0.75, 1 - rng.random()]))
        value = float(two_way_partial_auroc(*joined(pos, neg), min_tpr, max_fpr, validate_args=False))
        # 1e-12, as the table's float64 row; its comparator would take most of this test's time.
        assert abs(value - naive_tpauc(pos, neg, min_tpr, max_fpr)) <= 1e-12, (pos, neg, min_tpr, max_fpr)


@pytest.mark.parametrize("decimals", [0, 1, 6], ids=["ten levels", "a hundred levels", "no ties"])
@pytest.mark.parametrize("max_fpr", [0.05, 0.3, 0.5, 1.0])
def test_one_way_equals_sklearn_without_mcclish(max_fpr, decimals):
    scores, target = normal_scores(2_000, 5_000)
    scores = scores.round(decimals=decimals)
    standardised = roc_auc_score(target.numpy(), scores.numpy(), max_fpr=max_fpr)
    # sklearn maps the partial area linearly so that chance becomes 1/2; at max_fpr = 1 that changes nothing.
    chance = max_fpr**2 / 2
    area = standardised if max_fpr == 1 else chance + (2 * standardised - 1) * (max_fpr - chance)
    assert_close(two_way_partial_auroc(scores, target, min_tpr=0.0, max_fpr=max_fpr), area / max_fpr)


def test_logits_and_probabilities_rank_alike():
    logits, target = normal_scores(100, 200)
    assert torch.equal(two_way_partial_auroc(logits, target), two_way_partial_auroc(logits.sigmoid(), target))
    # In float32 a sigmoid makes all of these 1; the logits must not pass through one.
    assert float(two_way_partial_auroc((logits + 1000).float(), target)) > 0.1


# ---------------------------------------------------------------- order, dtypes, shapes


@pytest.mark.parametrize("decimals", [1, 8], ids=["ties", "no ties"])
@pytest.mark.parametrize("thresholds", [None, [-1.0, 0.0, 0.5, 2.0]], ids=["exact", "binned"])
def test_the_order_of_samples_does_not_matter_by_a_single_bit(thresholds, decimals):
    scores, target = normal_scores(3_001, 7_003, dtype=torch.float32)
    scores = scores.round(decimals=decimals)
    first = two_way_partial_auroc(scores, target, 0.37, 0.41, thresholds=thresholds)
    for seed in range(5):
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(two_way_partial_auroc(scores[order], target[order], 0.37, 0.41, thresholds), first)


def test_float64_is_ranked_in_float64():
    pos, neg = [1 + 3e-16, 1 + 5e-16], [1.0, 1.0]
    assert float(two_way_partial_auroc(*joined(pos, neg))) == 1.0
    assert float(two_way_partial_auroc(*joined(pos, neg, torch.float32))) == 0.0


def test_infinite_scores_have_a_rank():
    assert float(two_way_partial_auroc(*joined([math.inf, 1.0], [0.0, -math.inf]))) == 1.0
    assert_close(two_way_partial_auroc(*joined([-math.inf, 1.0], [0.0, -math.inf]), 0.0, 1.0), 2.5 / 4)


def test_zero_has_no_sign():
    assert_close(two_way_partial_auroc(*joined([0.0], [-0.0]), 0.0, 1.0), 0.5)
    assert_close(two_way_partial_auroc(*joined([-0.0], [0.0]), 0.0, 1.0), 0.5)


def test_columns_are_scores_and_inputs_left_alone():
    scores, target = normal_scores(24, 36)
    scores.requires_grad_()
    before = scores.detach().clone()
    value = two_way_partial_auroc(scores[:, None], target[:, None])
    assert not value.requires_grad
    assert torch.equal(value, two_way_partial_auroc(scores, target))
    assert torch.equal(scores.detach(), before)


UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", [*UNSIGNED, *FLOAT8, torch.bool, torch.int16], ids=str)
@pytest.mark.parametrize("thresholds", [None, [0.0, 3.0, 8.0]], ids=["exact", "binned"])
def test_scores_of_every_dtype(dtype, thresholds):
    scores, target = normal_scores(24, 36)
    narrow = (scores * 2 + 8).to(dtype)
    expected = two_way_partial_auroc(narrow.double(), target, thresholds=thresholds)
    assert torch.equal(two_way_partial_auroc(narrow, target, thresholds=thresholds), expected)
    if dtype in UNSIGNED:
        assert torch.equal(two_way_partial_auroc(narrow, target.to(dtype), thresholds=thresholds), expected)


@pytest.mark.parametrize("broken", ["one positive", "one negative", "all positives", "all negatives", "all"])
@pytest.mark.parametrize("thresholds", [None, [-1.0, 0.0, 0.5, 2.0]], ids=["exact", "binned"])
def test_unchecked_nan_gives_nan_and_not_a_number(broken, thresholds):
    scores, target = normal_scores(24, 36)
    rows = {"positive": target == 1, "negative": target == 0}.get(broken.split()[-1].rstrip("s"), target >= 0)
    scores[rows.nonzero()[: 1 if broken.startswith("one") else None, 0]] = math.nan
    with pytest.warns(TPAUCWarning, match="is nan: some scores are nan"):
        assert two_way_partial_auroc(scores, target, thresholds=thresholds, validate_args=False).isnan()
    target[scores.isnan()] = -1
    if int((target == 1).sum()) > 0 and int((target == 0).sum()) > 0:
        expected = two_way_partial_auroc(scores[target >= 0], target[target >= 0], thresholds=thresholds)
        unchecked = two_way_partial_auroc(scores, target, thresholds=thresholds, ignore_index=-1, validate_args=False)
        assert torch.equal(unchecked, expected)


@pytest.mark.parametrize("ignore_index", [-1, 255, -100])
def test_ignored_rows_do_not_count(ignore_index):
    scores, target = normal_scores(40, 60)
    expected = two_way_partial_auroc(scores[:70], target[:70])
    target[70:] = ignore_index
    scores[80:] = math.nan  # no rank is needed for what is left out
    assert torch.equal(two_way_partial_auroc(scores, target, ignore_index=ignore_index), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("thresholds", [None, [-1.0, 0.0, 0.5, 2.0]], ids=["exact", "binned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_devices_agree_by_a_single_bit(dtype, thresholds, monkeypatch):
    # As under Trainer(deterministic=True): operations without a deterministic kernel raise.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    scores, target = normal_scores(3_000, 50_000, dtype=dtype)
    try:
        there = [two_way_partial_auroc(scores.cuda(), target.cuda(), *each, thresholds) for each in RECTANGLES]
    finally:
        torch.use_deterministic_algorithms(was_deterministic)
    for value, each in zip(there, RECTANGLES, strict=True):
        assert value.device.type == "cuda"
        assert torch.equal(value.cpu(), two_way_partial_auroc(scores, target, *each, thresholds))


# ---------------------------------------------------------------- a class is missing


@pytest.mark.parametrize("thresholds", [None, 5], ids=["exact", "binned"])
@pytest.mark.parametrize(
    ("target", "missing"),
    [([1, 1], "no negative example"), ([0, 0], "no positive example"), ([], "no example"), ([-1, -1], "no example")],
)
def test_a_missing_class_gives_nan_and_one_warning(target, missing, thresholds):
    scores = torch.rand(len(target), generator=torch.Generator().manual_seed(0))
    target = torch.tensor(target, dtype=torch.int64)
    with pytest.warns(TPAUCWarning, match=missing) as caught:
        value = two_way_partial_auroc(scores, target, thresholds=thresholds, ignore_index=-1)
    assert len(caught) == 1
    assert value.isnan()
    assert value.dtype == torch.float64
    assert value.shape == ()


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (None, torch.tensor([1]), "Expected `preds` to hold numbers, .* but got a NoneType"),
        (np.ma.masked_array([0.5, 9.0], [False, True]), [1, 0], "1 of 2 scores are nan"),
        (torch.tensor([0.5]), ["dead"], "Expected `target` to hold numbers, .* but got a list.*`y == 'dead'`"),
        (torch.rand(3, 1), torch.ones(3).long(), r"same shape, but got \(3, 1\) and \(3,\). Drop .* `.squeeze\(-1\)`"),
        (torch.rand(2), torch.tensor([0.0, 0.5]), r"hold only 0 and 1 but found \[0\.5\]"),
        (torch.rand(3), torch.tensor([0, 1, 2]), r"hold only 0 and 1 but found \[2\]. .*`ignore_index`"),
        (
            torch.tensor([0.5, math.nan]),
            torch.tensor([0, 1]),
            "1 of 2 scores are nan, which have no rank.*its inputs hold nan",
        ),
    ],
)
def test_malformed_tensors(preds, target, message):
    with pytest.raises(ArgumentError, match=message):
        two_way_partial_auroc(preds, target)


@pytest.mark.parametrize(
    "make",
    [
        lambda v: np.repeat(np.asarray(v), 2)[::2],
        lambda v: pd.Series(v, index=range(7, 7 + len(v))),
        lambda v: pd.DataFrame({"x": v}),
        lambda v: pd.Series(v).to_numpy(copy=False),
    ],
)
def test_numbers_come_in_whatever_scikit_learn_takes(make):
    rng = np.random.default_rng(0)
    target = rng.integers(2, size=50)
    scores = rng.normal(size=50) + target
    expected = roc_auc_score(target, scores)
    metric = TwoWayPartialAUROC(0.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(make(scores), make(target.astype(float)))
        assert_close(two_way_partial_auroc(make(scores), make(target), 0.0, 1.0), expected)
    assert_close(metric.compute(), expected)


def test_what_was_not_measured_may_be_missing_in_a_nullable_column():
    table = pd.DataFrame({"a": pd.array([1, None, 0, 0], dtype="Int64"), "b": pd.array([None, 1, 1, 0], dtype="Int64")})
    scores = pd.DataFrame({"a": [0.9, 0.1, 0.2, 0.3], "b": [9.0, 0.8, 0.7, 0.9]})
    found = two_way_partial_auroc(scores, table, 0.0, 1.0, task="multilabel", num_labels=2, average=None)
    assert found.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("axis", ["index", "columns"])
def test_scores_and_labels_of_pandas_have_their_names_at_the_same_positions(axis):
    target = pd.DataFrame({"a": [0, 1, 0, 1], "b": [1, 1, 0, 0]}, index=[4, 5, 7, 9])
    preds = pd.DataFrame({"a": [0.1, 0.8, 0.6, 0.4], "b": [0.3, 0.9, 0.5, 0.2]}, index=[4, 5, 7, 9])
    turned = preds.iloc[::-1] if axis == "index" else preds[["b", "a"]]
    several = TwoWayPartialAUROC(0.0, 1.0, task="multilabel", num_labels=2, average=None)
    calls = [several.update]
    if axis == "index":
        turned, preds, target = turned.a, preds.a, target.a
        one = partial(two_way_partial_auroc, min_tpr=0.0, max_fpr=1.0)
        calls = [one, decision_threshold, fit_calibration, roc_polyline, TwoWayPartialAUROC(0.0, 1.0).update]
        calls += [functional.tpr_at_max_fpr, partial(functional.count_decisions, threshold=0.5)]
        calls += [functional.bootstrap_interval, partial(functional.precision_at_alert_rate, alert_rate=0.5)]
        assert one(turned, target.reindex(index=turned.index)) == roc_auc_score(target, preds)
    for call in calls:
        call(preds, target)
        with pytest.raises(ArgumentError, match=f"the same {axis} at different positions"):
            call(turned, target)
        for name in [name for name in ("sample_weight", "groups") if name in inspect.signature(call).parameters][:1]:
            with pytest.raises(ArgumentError, match=f"and `{name}` have the same {axis} at different positions"):
                call(preds, target, **{name: turned})
