"""Metrics of one's own beside ours: what they are fed with, and which decisions they judge."""

import math
import warnings
from statistics import NormalDist

import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryCalibrationError,
    BinaryF1Score,
    BinaryStatScores,
    MultilabelF1Score,
    MultilabelStatScores,
)

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.metrics import TPRAtMaxFPR
from lightning_tpauc.metrics.reporting import Report, Scored

INF = math.inf


class Mine(Metric):
    """Calls positive what is above 0.5, and says so nowhere."""

    def __init__(self):
        super().__init__()
        self.add_state("called", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.called += (preds > 0.5).sum()

    def compute(self):
        return self.called.float()


def scored(columns=None):
    generator = torch.Generator().manual_seed(1)
    shape = (60,) if columns is None else (60, columns)
    target = torch.randint(2, shape, generator=generator)
    scores = torch.randn(shape, generator=generator) + target - 3  # a sigmoid is above 0.5 for hardly any
    return scores, target.where(torch.rand(shape, generator=generator) > 0.2, -1)


def values(metrics, scores, target, cuts=None, keys=None):
    scored = Scored(*(part.reshape(len(part), -1) for part in (scores, target, scores)))
    count = scored.raw.shape[1]
    return Report(metrics=metrics).values(scored, [(0.5, 0.5)] * count, cuts or [None] * count, keys)


def collected(metric, scores, target, cuts=None):
    return float(values({"it": metric}, scores, target, cuts)["it"])


@pytest.mark.parametrize("wrap", [lambda metric: metric, lambda metric: metric.set_dtype(torch.float32)])
@pytest.mark.parametrize("cut", [-2.5, 0.0, -20.0, INF, -INF])
def test_metrics_that_decide_judge_the_threshold(cut, wrap):
    scores, target = scored()
    kept = target >= 0
    decided = scores[kept].double() >= cut
    assert collected(wrap(BinaryF1Score()), scores, target, [cut]) == pytest.approx(
        f1_score(target[kept], decided, zero_division=0)
    )
    assert collected(Mine(), scores, target, [cut]) == int(decided.sum())


@pytest.mark.filterwarnings("ignore:.*there was no negative example")
def test_a_score_that_equals_the_threshold_is_decided_to_be_positive():
    scores, target = torch.tensor([1.0, math.nextafter(1.0, 0.0), INF, -INF, 1e-300]).double(), torch.ones(5).long()
    for cut in (*scores.tolist(), 0.1, 1e308):
        assert collected(Mine(), scores, target, [cut]) == int((scores >= cut).sum())


@pytest.mark.parametrize("cuts", [None, [None], [-2.5]])
def test_metrics_of_ranks_and_of_probabilities_get_the_sigmoid(cuts):
    scores, target = scored()
    kept = target >= 0
    probabilities = scores[kept].double().sigmoid()
    assert collected(BinaryAUROC(), scores, target, cuts) == pytest.approx(roc_auc_score(target[kept], scores[kept]))
    expected = float(BinaryCalibrationError()(probabilities, target[kept]))
    assert collected(BinaryCalibrationError(), scores, target, cuts) == pytest.approx(expected)
    expected = float(BinaryF1Score(threshold=0.03)(probabilities, target[kept]))
    assert collected(BinaryF1Score(threshold=0.03), scores, target, cuts) == pytest.approx(expected)
    assert collected(TPRAtMaxFPR(0.3), scores + 40, target, cuts) == pytest.approx(
        float(TPRAtMaxFPR(0.3)(scores[kept] + 40, target[kept]))
    )


def test_labels_have_a_threshold_each():
    scores, target = scored(3)
    given = {"f1": BinaryF1Score(), "all": MultilabelF1Score(3, ignore_index=-1, average="micro")}
    cuts = [-2.5, None, -1.0]
    found = values(given, scores, target, cuts, "abc")
    decided = torch.stack([scores[:, k] >= (cut or 0.0) for k, cut in enumerate(cuts)], 1)
    for k, name in enumerate("abc"):
        kept = target[:, k] >= 0
        assert found[f"f1/{name}"] == pytest.approx(f1_score(target[kept, k], decided[kept, k], zero_division=0))
    kept = target >= 0
    assert found["all"] == pytest.approx(f1_score(target[kept], decided[kept]))
    for wrong in (MultilabelF1Score(3), MultilabelStatScores(3, ignore_index=-1)):
        with pytest.raises(ArgumentError, match=r"would count .*`ignore_index=-1`|gave shape"):
            values({"all": wrong}, scores, target, cuts, "abc")


def test_values_of_labels_keep_quiet_and_make_python_repeat_no_warning():
    """A label without a positive is named by the module, not by each metric; the warnings' filters stay as they are."""
    scores, target = torch.randn(4, 2), torch.tensor([[0, 1], [0, 0], [0, 1], [0, 0]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            found = values({}, scores, target, keys="ab")
            warnings.warn("shown once per place", FutureWarning, stacklevel=1)
        assert [str(one.message) for one in caught] == ["shown once per place"]
        with pytest.warns(TPAUCWarning, match="is nan"):
            values({}, scores[:, 0], target[:, 0])  # alone it warns as ever
    assert found["tpauc/a"].isnan()
    assert found["tpauc"] == found["tpauc/b"]


def test_no_example_is_nan_and_several_numbers_are_refused():
    with pytest.warns(TPAUCWarning, match="no example"):
        assert math.isnan(collected(BinaryF1Score(), torch.randn(3), torch.full((3,), -1)))
    with pytest.raises(ArgumentError, match=r"one number, but BinaryStatScores gave shape \(5,\)"):
        collected(BinaryStatScores(), *scored())


# ---------------------------------------------------------------- intervals of rates


def rates(scores, target, groups=None):
    report = Report().values(Scored(*(part[:, None] for part in (scores, target, scores)), groups), [(0.5, 0.5)], [1.0],
                             intervals=True)  # fmt: skip
    ends = [[float(report[f"{name}_at_threshold{end}"]) for end in ("_lower", "_upper")]
            for name in ("sensitivity", "specificity", "precision")]  # fmt: skip
    return torch.tensor(ends)


def patients(seed, count=80, rows=8):
    """Scores of rows, most of which patients share; a row is called positive above 1."""
    generator = torch.Generator().manual_seed(seed)
    ill, who = torch.arange(count) % 2, torch.arange(count).repeat_interleave(rows)
    own, noise = torch.randn(count, generator=generator), torch.randn(count * rows, generator=generator)
    return (1.5 * ill + 0.8**0.5 * own)[who] + 0.2**0.5 * noise, ill[who], who


def test_rows_of_their_own_have_the_exact_intervals_and_copies_count_once():
    scores, target, _ = patients(0, count=200, rows=1)
    expected = rates(scores, target)
    assert torch.allclose(rates(scores, target, torch.arange(200).flip(0)), expected)
    thrice = [part.repeat_interleave(3) for part in (scores, target, torch.arange(200))]
    assert torch.allclose(rates(*thrice), expected, atol=0.003)
    assert ((rates(*thrice[:2]) - expected).abs() > 0.01).all()


@pytest.mark.slow
def test_intervals_by_patient_hold_the_rates_where_those_by_row_do_not():
    normal = NormalDist()
    truth = torch.tensor([normal.cdf(0.5), normal.cdf(1.0)])  # precision depends on the share of the ill
    covered = {"patients": torch.zeros(2), "rows": torch.zeros(2)}
    for seed in range(200):
        scores, target, who = patients(seed)
        for unit, groups in (("patients", who), ("rows", None)):
            low, high = rates(scores, target, groups)[:2].T
            covered[unit] += (low <= truth) & (truth <= high)
    # 190 are expected; the standard deviation of a binomial count is 3.1
    assert (covered["patients"] >= 181).all()
    assert (covered["rows"] < 150).all()
