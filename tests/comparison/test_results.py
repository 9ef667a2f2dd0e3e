"""Values against scikit-learn and loops, intervals against loops, verdicts by their words."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp
from sklearn.metrics import average_precision_score, roc_auc_score

from lightning_tpauc.comparison import results
from lightning_tpauc.comparison.results import (
    Difference,
    Outcome,
    evaluate,
    measures,
    period_of,
    resampled_areas,
    short,
    strata,
    verdict,
)
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr
from tests.reference.tpauc import naive_tpauc

pytestmark = pytest.mark.usefixtures("few_resamples")
CORNER, WIDE, OWN = (0.5, 0.4), (0.25, 0.75), (0.5, 0.2)


@pytest.fixture
def few_resamples(monkeypatch):
    monkeypatch.setattr(results, "_DRAWS", 0)  # 200 in place of 1000


def scored(seed, shift=1.0, n_pos=30, n_neg=80, digits=None):
    """Of one label."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.ones(n_pos), torch.zeros(n_neg)]).long()
    scores = torch.randn(n_pos + n_neg, generator=generator) + shift * target
    return Outcome((scores if digits is None else scores.round(decimals=digits))[:, None], target[:, None])


def scored_labels(seed, count=70, shift=1.0, missing=0.3):
    """Three labels of falling frequency, which overlap."""
    generator = torch.Generator().manual_seed(7)
    common = torch.rand(count, generator=generator)
    target = (common[:, None] + 0.3 * torch.rand(count, 3, generator=generator) > torch.tensor([0.7, 0.9, 1.1])).long()
    target[torch.rand(count, 3, generator=generator) < missing] = -1
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return Outcome(noise + shift * (target == 1), target)


def naive_value(scores, target, rectangle):
    pos, neg = (scores[target == value].astype(float) for value in (1, 0))
    return naive_tpauc(pos, neg, *rectangle) if len(pos) and len(neg) else math.nan


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("digits", [None, 0])
def test_values(digits):
    run = scored(0, digits=digits)
    ((scores, target),) = run.of_labels()
    found = evaluate({"x": [run]}, "x", [CORNER, WIDE], [("", CORNER)]).values["x"]
    assert found.shape == (1, 1, 6)
    tpr, fpr = tpr_at_max_fpr(scores, target, CORNER[1]), fpr_at_min_tpr(scores, target, CORNER[0])
    expected = {
        "tpauc": naive_value(scores.double().numpy(), target.numpy(), CORNER),
        "tpauc_0.25_0.75": naive_value(scores.double().numpy(), target.numpy(), WIDE),
        "auroc": roc_auc_score(target, scores),
        "average_precision": average_precision_score(target, scores),
        "tpr_at_max_fpr": tpr,
        "fpr_at_min_tpr": fpr,
    }
    named = dict(zip(measures([CORNER, WIDE]), found[0, 0].tolist(), strict=True))
    assert named == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-9)


def test_values_of_labels_are_means_of_each():
    runs = [scored_labels(5), scored_labels(6)]
    labels = list(zip("abc", (OWN, CORNER, CORNER), strict=True))
    found = evaluate({"x": runs, "y": runs[::-1]}, "y", [CORNER, WIDE], labels)
    areas = np.array(
        [
            [
                naive_value(scores.double().numpy(), target.numpy(), r)
                for (scores, target), (_, r) in zip(run.of_labels(), labels, strict=True)
            ]
            for run in runs
        ]
    )
    np.testing.assert_allclose(found.values["x"][..., 0], areas)
    assert found.differences["x"][0].estimate == pytest.approx(0.0, abs=1e-12)
    for k, label in enumerate(found.labels):
        assert label.tpauc["x"] == pytest.approx(areas[:, k].mean())
        counts = tuple(int((runs[0].target[:, k] == value).sum()) for value in (1, 0))
        assert (label.num_positives, label.num_negatives) == counts
        assert label.differences["x"].estimate == pytest.approx(0.0, abs=1e-12)
        assert "y" not in label.differences


def test_folds_in_which_a_label_lacks_a_class():
    whole = scored_labels(8, count=160)
    first, second = (Outcome(whole.scores[rows], whole.target[rows].clone()) for rows in (slice(80), slice(80, 160)))
    second.target[second.target[:, 2] == 1, 2] = 0  # no positive of the last label here
    labels = list(zip("abc", [CORNER] * 3, strict=True))
    worse = [Outcome(-fold.scores, fold.target) for fold in (first, second)]
    found = evaluate({"x": [first, second], "y": worse}, "y", [CORNER], labels, folds=2)
    areas = {name: own[..., 0] for name, own in found.values.items()}
    assert areas["x"].isnan().tolist() == [[False] * 3, [False, False, True]]
    means = {name: np.mean([own[0].mean(), own[1, :2].mean()]) for name, own in areas.items()}
    assert found.differences["x"][0].estimate == pytest.approx(means["x"] - means["y"])
    assert [label.tpauc["x"] for label in found.labels] == pytest.approx(np.nanmean(areas["x"], axis=0))
    counts = [sum(int((fold.target[:, k] == 1).sum()) for fold in (first, second)) for k in range(3)]
    assert [label.num_positives for label in found.labels] == counts


# ---------------------------------------------------------------- resamples


def naive_strata(target):
    counts = [int((target[:, k] == 1).sum()) for k in range(target.shape[1])]
    groups = {}
    for row, labels in enumerate(target.tolist()):
        own = [k for k, value in enumerate(labels) if value == 1]
        groups.setdefault(min(own, key=lambda k: (counts[k], k)) if own else len(counts), []).append(row)
    return [groups[k] for k in sorted(groups)]


@pytest.mark.parametrize("num_labels", [1, 5])
def test_each_example_is_of_its_rarest_label(num_labels):
    target = torch.randint(-1, 2, (40, num_labels), generator=torch.Generator().manual_seed(0))
    found = strata(target)
    assert sorted((found == k).nonzero().flatten().tolist() for k in found.unique()) == sorted(naive_strata(target))


def test_intervals_of_labels_are_those_of_a_loop_over_examples():
    """Independent draws of numpy, strata and areas of plain Python: the same distribution, so nearly the same ends."""
    rectangles = [OWN, CORNER, CORNER]
    ours, theirs = scored_labels(1, shift=1.6), scored_labels(2, shift=0.8)
    target, generator = ours.target.numpy(), np.random.default_rng(0)
    groups = [np.array(rows) for rows in naive_strata(ours.target)]
    drawn = []
    for _ in range(500):
        rows = np.concatenate([generator.choice(rows, len(rows)) for rows in groups])
        both = [
            [naive_value(run.scores.numpy()[rows, k], target[rows, k], rectangles[k]) for k in range(3)]
            for run in (ours, theirs)
        ]
        drawn.append([np.nanmean(both[0]) - np.nanmean(both[1]), *(a - b for a, b in zip(*both, strict=True))])
    labels = list(zip("abc", rectangles, strict=True))
    found = evaluate({"ours": [ours], "theirs": [theirs]}, "theirs", [CORNER], labels)
    differences = [found.differences["ours"][0], *(label.differences["ours"] for label in found.labels)]
    for got, values in zip(differences, np.array(drawn).T, strict=True):
        half = 1.96 * np.nanstd(values)
        ends = got.estimate - half, got.estimate + half
        assert (got.lower, got.upper) == pytest.approx(ends, abs=0.24 * half)
        assert math.isnan(got.training_error)


@pytest.mark.parametrize("make", [scored, scored_labels])
def test_all_methods_and_labels_see_the_same_draws(make):
    """So a monotone transform changes no resample, and a column that is there twice has the same values twice."""
    run = make(3)
    twice = Outcome(run.scores.repeat(1, 2), run.target.repeat(1, 2))
    wanted = [[CORNER]] * twice.scores.shape[1]
    areas = resampled_areas({"a": [twice], "b": [Outcome(twice.scores.exp(), twice.target)]}, wanted, 40)
    assert torch.equal(areas["a"].nan_to_num(-1), areas["b"].nan_to_num(-1))
    half = len(wanted) // 2
    assert torch.equal(areas["a"][..., 1 : 1 + half].nan_to_num(-1), areas["a"][..., 1 + half :].nan_to_num(-1))
    torch.testing.assert_close(areas["a"][..., 0], areas["a"][..., 1:].nanmean(-1))
    assert areas["a"][..., 0].std() > 0.01


def test_resamples_are_a_function_of_the_seed():
    one, again, other = (resampled_areas({"a": [scored(4)]}, [[CORNER]], 20, seed=seed)["a"] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_runs_on_the_same_examples_do_not_count_as_more_examples():
    run, other = scored(5), scored(5, n_pos=31)
    one, same = (resampled_areas({"a": runs}, [[CORNER]], 600)["a"].std() for runs in ([run], [run] * 4))
    apart = resampled_areas({"a": [run, other] * 2}, [[CORNER]], 600, period=2)["a"].std()
    assert [period_of([r.target for r in runs], 2) for runs in ([run] * 4, [run, other] * 2, [run, other, other])] == [
        1,
        2,
        3,
    ]
    assert float(same) == pytest.approx(float(one), rel=0.15)
    assert float(apart) < 0.85 * float(one)


@pytest.mark.parametrize("shared", [True, False])
def test_where_resamples_change_nothing_the_interval_is_that_of_students_t_test(shared):
    """Of perfect and useless runs, no resample of examples changes either: what varies is the training."""
    values, runs = [1.0, 0.0, 1.0, 1.0], {"a": [], "b": []}
    for k, value in enumerate(values):
        target = torch.tensor([[1], [1], *[[0]] * (2 if shared else 2 + k)])
        runs["a"].append(Outcome((2 * value - 1) * target.float(), target))
        runs["b"].append(Outcome(-target.float(), target))
    found = evaluate(runs, "b", [CORNER], [("", CORNER)]).differences["a"][0]
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))
    assert found.data_error == 0.0
    assert found.training_error == pytest.approx(np.std(values, ddof=1) / 2)


def test_errors_of_data_and_training_add_up():
    """Runs that differ by nothing but noise on their scores, on the same examples."""
    run, generator = scored(6, n_pos=60), torch.Generator().manual_seed(1)
    noisy = [Outcome(run.scores + torch.randn(140, 1, generator=generator), run.target) for _ in range(12)]
    found = evaluate({"a": noisy, "b": [run] * 12}, "b", [CORNER], [("", CORNER)]).differences["a"][0]
    values = [naive_value(r.scores[:, 0].double().numpy(), r.target[:, 0].numpy(), CORNER) for r in noisy]
    assert found.training_error == pytest.approx(np.std(values, ddof=1) / 12**0.5)
    half = (found.upper - found.lower) / 2
    assert 1.96 < half / math.hypot(found.data_error, found.training_error) < 2.2


def test_a_label_that_lacks_a_class_in_a_resample_counts_in_no_mean_there():
    target = torch.zeros(60, 2, dtype=torch.long)
    target[:10, 0], target[5:15, 1] = 1, 1
    target[15:, 1] = target[:5, 1] = -1
    target[20, 1] = 0  # the only negative of this label: 1 of 45 examples of the last stratum
    run = Outcome(torch.randn(60, 2, generator=torch.Generator().manual_seed(0)) + target, target)
    areas = resampled_areas({"a": [run]}, [[CORNER]] * 2, 1500)["a"][:, 0]
    lost = areas[:, 2].isnan()
    assert float(lost.double().mean()) == pytest.approx((1 - 1 / 45) ** 45, abs=0.04)
    assert torch.equal(areas[lost, 0], areas[lost, 1])


def test_what_cant_be_compared_is_refused():
    for others in ([scored(0, n_pos=31)], [scored(0), scored(1)]):
        with pytest.raises(ArgumentError, match="'b' were evaluated on other examples"):
            resampled_areas({"a": [scored(0)], "b": others}, [[CORNER]], 2)
    for target in (torch.zeros(3, 1).long(), torch.tensor([[1, 0], [1, -1], [-1, 0]])):
        with pytest.raises(ArgumentError, match="data of one class"):
            resampled_areas({"a": [Outcome(torch.zeros(target.shape), target)]}, [[CORNER]] * 2, 2)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ((0.04, 0.02, 0.06), "ahead by .040, 95% interval .020 to .060"),
        ((-0.04, -0.06, -0.02), "behind by .040, 95% interval .020 to .060: keep CE"),
        ((1.0, 1.0, 1.0), "ahead by 1.000, 95% interval 1.000 to 1.000"),
        ((0.0, 0.0, 0.0), "level within .010: keep CE (+.000, 95% interval .000 to .000)"),
        ((-0.001, -0.01, 0.01), "level within .010: keep CE (-.001, 95% interval -.010 to .010)"),
        ((0.005, 0.002, 0.008), "level within .010: keep CE (+.005, 95% interval .002 to .008)"),
        ((0.008, 0.002, 0.011), "ahead by .008, 95% interval .002 to .011"),
        ((0.035, -0.012, 0.083), "can't tell: +.035, 95% interval -.012 to .083"),
        ((0.04, 0.0, 0.06), "can't tell: +.040, 95% interval .000 to .060"),
        ((-0.01, -0.02, 0.01), "can't tell: -.010, 95% interval -.020 to .010"),
    ],
)
def test_verdicts(found, text):
    assert verdict(Difference(*found, data_error=0.02, training_error=0.0), "CE", (), 100, 3).startswith(text)


def test_a_single_run_is_provisional():
    for lower in (-0.1, 0.0, 0.02):
        assert verdict(Difference(0.04, lower, 0.06), "CE").startswith("provisional (+.040, 95% interval")


@pytest.mark.parametrize(("estimate", "data", "training"), [(0.004, 0.008, 0.001), (0.03, 0.01, 0.02), (0.0, 0.1, 0.1)])
def test_as_many_more_positives_or_seeds_as_it_says_would_tell(estimate, data, training):
    """Errors fall with the root of the number; then an interval of two of them leaves 0 out or keeps to the margin."""
    half = 2 * math.hypot(data, training)
    text = verdict(Difference(estimate, estimate - half, estimate + half, data, training), "CE", (), 200, 4)
    more = {name: int(number.replace(",", "")) for number, name in re.findall(r"([\d,]+) more (positives|seeds)", text)}
    for name, number in more.items():
        grown = (data * (200 / (200 + number)) ** 0.5, training) if name == "positives" else None
        half = 2 * math.hypot(*(grown or (data, training * (4 / (4 + number)) ** 0.5)))
        assert half <= max(abs(estimate), 0.01 - abs(estimate)) + 1e-9
    assert ("together would" in text) == (not more)


def test_there_is_no_verdict_on_untrained_methods():
    text = "open (+.400, 95% interval .300 to .500): "
    for names, words in ((["CE"], "CE never validated better than its"), (["CE", "A"], "CE and A never validated bet")):
        assert verdict(Difference(0.4, 0.3, 0.5), "CE", names).startswith(text + words)


def test_small_numbers_have_no_sign_of_nothing():
    assert [short(value) for value in (-0.0001, 0.9996, -0.9996, 10.05)] == [".000", "1.000", "-1.000", "10.050"]
