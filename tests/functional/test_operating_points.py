"""Points of the ROC curve, and the chosen threshold against a loop over all of them."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_curve

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional import fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.functional.calibration import calibrated_probability, fit_calibration
from lightning_tpauc.functional.operating_points import CRITERIA, count_decisions, decision_threshold


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
def test_both_equal_scikit_learns_curve_between_its_vertices_and_on_them(levels):
    """Of a step that lies on the bound they take the better end."""
    rng = np.random.default_rng(levels)
    for _ in range(100):
        num_pos, num_neg = rng.integers(1, 40, size=2)
        scores, target = scored(rng, levels, num_pos, num_neg)
        between = rng.random(), 1 - rng.random()
        on_them = rng.integers(num_pos) / num_pos, rng.integers(1, num_neg + 1) / num_neg
        for bounds in (between, on_them):
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


def counts(scores, labels, threshold):
    called = [s >= threshold for s in scores]
    tp = sum(c and y == 1 for c, y in zip(called, labels, strict=True))
    return tp, sum(c and y == 0 for c, y in zip(called, labels, strict=True))


def naive(scores, labels, min_tpr, max_fpr, criterion, ratio):
    """Every distinct score and infinity; what each criterion asks for, in its own words."""
    n_pos, n_neg = labels.count(1), labels.count(0)
    points = [(*counts(scores, labels, t), t) for t in sorted({*scores, math.inf}, reverse=True)]

    def away(point):
        low, high = max(0.0, min_tpr - point[0] / n_pos), max(0.0, point[1] / n_neg - max_fpr)
        return round(math.hypot(low, high), 12)

    few = [p for p in points if p[1] / n_neg <= max_fpr + 1e-12]
    if criterion == "max_sensitivity":
        few = few or [p for p in points if away(p) == min(map(away, points))]
        return max(few, key=lambda p: (p[0], -p[1]))[:2]
    if criterion == "max_specificity":
        points = [p for p in points if p[0] / n_pos >= min_tpr - 1e-12]
        return max(points, key=lambda p: (-p[1], p[0]))[:2]
    nearest = min(map(away, points))
    points = [p for p in points if away(p) == nearest]
    value = {
        "youden": lambda p: p[0] * n_neg - p[1] * n_pos,
        "f1": lambda p: 2 * p[0] / (2 * p[0] + p[1] + n_pos - p[0]),
        "min_cost": lambda p: ratio * p[0] - p[1],
    }[criterion]
    return max(points, key=lambda p: (value(p), -p[1]))[:2]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("rectangle", [(0.5, 0.5), (0.8, 0.2), (0.9, 0.1), (0.0, 1.0), (0.25, 0.01)])
def test_it_is_the_best_of_all_thresholds(criterion, rectangle):
    generator = torch.Generator().manual_seed(1)
    for trial in range(80):
        n = int(torch.randint(2, 30, (), generator=generator))
        scores = torch.randn(n, generator=generator).mul(2).round(decimals=trial % 3)  # with ties
        if trial % 2:  # infinite ones, too
            scores = scores.masked_fill(scores > 2, math.inf).masked_fill(scores < -2, -math.inf)
        labels = (torch.rand(n, generator=generator) < 0.4).long()
        labels[0], labels[1] = 1, 0
        ratio = 3.5 if criterion == "min_cost" else 1.0
        chosen = decision_threshold(scores, labels, *rectangle, criterion, ratio)
        expected = naive(scores.tolist(), labels.tolist(), *rectangle, criterion, ratio)
        assert (chosen.tp, chosen.fp) == expected
        assert count_decisions(scores, labels, chosen.threshold) == chosen, "the widened threshold decides the same"
        assert chosen.sensitivity == chosen.tp / int(labels.sum())
        inside = any(
            tp / chosen.num_pos >= rectangle[0] - 1e-12 and fp / chosen.num_neg <= rectangle[1] + 1e-12
            for tp, fp in (counts(scores.tolist(), labels.tolist(), t) for t in {*scores.tolist(), math.inf})
        )
        assert chosen.lies_in(*rectangle) == inside, "in the rectangle wherever any threshold is"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_neighbouring_numbers_are_told_apart(dtype):
    low = torch.tensor([1], dtype=dtype)
    high = low + 1 if dtype == torch.int64 else torch.nextafter(low.float(), torch.tensor([2.0])).to(torch.float64)
    scores = torch.cat([high.to(torch.float64), low.to(torch.float64)])
    scores = scores if dtype in (torch.float64, torch.int64) else scores.float()
    chosen = decision_threshold(scores, torch.tensor([1, 0]))
    assert (chosen.tp, chosen.fp) == (1, 0)
    assert (scores.double() >= chosen.threshold).tolist() == [True, False]


INF = math.inf


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([INF, 3.0, -INF, 1.0], [1, 1, 0, 0], (2.0, 2, 0)),
        ([INF, INF, 1.0, 0.0], [0, 0, 1, 0], (0.5, 1, 2)),  # no threshold leaves out the infinite negatives
        ([INF, INF, 1.0, 0.0], [1, 0, 1, 0], (0.5, 2, 1)),
        ([INF, 2.0, 1.0, 0.0], [1, 0, 0, 1], (INF, 1, 0)),
        ([-INF, 0.0, 1.0], [1, 0, 0], (INF, 0, 0)),
        ([-INF, 0.0, -INF, -INF], [1, 0, 0, 0], (INF, 0, 0)),
        ([5.0, 5.0, 5.0], [1, 0, 0], (INF, 0, 0)),
        ([INF, INF, INF], [1, 0, 0], (INF, 1, 2)),
        ([-INF, -INF], [1, 0], (INF, 0, 0)),
    ],
)
def test_infinite_and_equal_scores_are_decided_as_score_reaches_threshold(scores, labels, expected):
    chosen = decision_threshold(scores, labels, 0.5, 0.5, "max_sensitivity")
    assert chosen[:3] == expected
    assert counts(scores, labels, chosen.threshold) == (chosen.tp, chosen.fp)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"criterion": "best"}, "`criterion` to be one of 'youden'"),
        ({"criterion": "min_cost", "cost_ratio": 0.0}, r"`cost_ratio` to be a number in \(0, inf\), but got 0.0"),
        ({"confidence": 1.0}, r"`confidence` to be a number in \(0, 1\), but got 1.0"),
        ({"min_precision": 0.0}, r"`min_precision` to be a number in \(0, 1\], but got 0.0"),
        ({"max_alert_rate": "few"}, r"`max_alert_rate` to be a number in \(0, 1\], but got 'few'"),
        ({"cost_ratio": 2.0}, "not used by criterion='youden'"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        decision_threshold(**{"preds": torch.tensor([0.5, 1.0]), "target": torch.tensor([0, 1]), **arguments})


def problem(n=400, seed=3):
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(n, generator=generator) < 0.3).long()
    return (torch.randn(n, generator=generator) + 1.5 * labels).round(decimals=2), labels


def test_isotonic_probabilities_are_those_of_scikit_learn():
    scores, labels = problem()
    new = torch.linspace(-6, 6, 501, dtype=torch.float64)
    found = calibrated_probability(new, fit_calibration(scores, labels, "isotonic"))
    x = np.append(scores.double().numpy(), [scores.min(), scores.max()])
    reference = IsotonicRegression(out_of_bounds="clip").fit(x, np.append(labels.numpy(), [1, 0]))
    assert torch.allclose(found, torch.tensor(reference.predict(new.numpy())), rtol=0, atol=1e-6)
    assert bool((found.diff() >= 0).all())
    assert 0 < float(found.min()) < float(found.max()) < 1


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_sigmoid_probabilities_are_platts_whatever_unit_scores_have(unit):
    scores, labels = problem()
    x, y = scores.double().numpy(), labels.numpy()
    high, low = (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2)
    target = np.where(y == 1, high, low)

    def loss(parameters):
        z = parameters[0] * x + parameters[1]
        return (np.logaddexp(0, z) - target * z).sum()

    a, b = minimize(loss, [1.0, 0.0], method="BFGS", options={"gtol": 1e-9}).x
    found = calibrated_probability(scores.double() * unit, fit_calibration(scores.double() * unit, labels, "sigmoid"))
    assert torch.allclose(found, torch.tensor(1 / (1 + np.exp(-(a * x + b)))), rtol=0, atol=1e-6)


def test_a_perfect_ranking_has_finite_probabilities():
    scores, labels = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 0, 1, 1])
    found = calibrated_probability(scores, fit_calibration(scores, labels, "sigmoid"))
    assert bool(((found > 0) & (found < 1)).all())
    constant = torch.zeros(4)
    assert calibrated_probability(constant, fit_calibration(constant, labels, "isotonic")).tolist() == [0.5] * 4


@pytest.mark.parametrize(("num_pos", "num_neg", "expected"), [(67, 5000, "sigmoid"), (1000, 1000, "isotonic")])
def test_few_examples_of_a_class_get_a_sigmoid(num_pos, num_neg, expected):
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([1] * num_pos + [0] * num_neg)
    scores = torch.randn(len(labels), generator=generator) + 6 * labels  # nearly perfect
    found = fit_calibration(scores, labels)
    assert found.method == expected
    for method in ("auto", "isotonic"):
        probability = calibrated_probability(scores, fit_calibration(scores, labels, method))
        assert 0 < float(probability.min()) < float(probability.max()) < 1


@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        ([0.0, 1.0], [1, 1], "a class has no example"),
        ([0.0, math.inf], [1, 0], "not finite"),
        ([3.0, 2.0, 1.0, 0.0], [0, 0, 1, 1], r"would fall \(slope -"),
    ],
)
def test_what_can_not_be_calibrated(scores, labels, words):
    with pytest.raises(ArgumentError, match=words):
        fit_calibration(torch.tensor(scores), torch.tensor(labels), "sigmoid")


@pytest.mark.parametrize("method", ["isotonic", "sigmoid"])
def test_a_calibration_does_not_repeat_the_warnings_of_others(method):
    """Python forgets what it has shown once whenever anything enters ``warnings.catch_warnings``."""
    scores, labels = problem()
    fit_calibration(scores, labels, method)  # imports warn by themselves
    own = {"__name__": "somewhere", "warnings": warnings}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            exec("warnings.warn('once')", own)  # noqa: S102  # a module with a registry of its own
            fit_calibration(scores, labels, method)
    assert [str(warning.message) for warning in caught] == ["once"]
