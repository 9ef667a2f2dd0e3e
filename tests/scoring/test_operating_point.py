"""From a training to decisions: which threshold a module holds, keeps, reports and predicts by."""

import csv
import math
from itertools import pairwise

import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy.stats import beta
from torch import nn

from lightning_tpauc import DecisionThreshold, PosNegDataModule, PredictionWriter, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError, TooFewExamplesError, silent
from lightning_tpauc.functional import Decisions, calibrated_probability, decision_threshold
from lightning_tpauc.scoring.thresholds import Choice, OperatingPoint
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*")


def problem():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(240, 3, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(240, generator=generator) > 0.8).long()


def make_data(**kwargs):
    x, y = problem()
    sets = {"val_dataset": (x[80:160], y[80:160]), "test_dataset": (x[160:], y[160:]), "predict_dataset": x[160:]}
    return PosNegDataModule((x[:80], y[:80]), num_pos=5, num_neg=10, batch_size=17, **{**sets, **kwargs})


def make_module(net=None):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)) if net is None else net
    return TPAUCModule(net, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


def fit(*callbacks, module=None, data=None, **kwargs):
    module, data = module or make_module(), data or make_data()
    trainer = make_trainer(**{"precision": "32-true", "max_epochs": 4, **kwargs}, callbacks=list(callbacks))
    trainer.fit(module, data)
    return trainer, module, data


def validation_rows():
    x, y = problem()
    return (x[80:160], y[80:160]), (x[160:], y[160:])


def chosen_anew(module, criterion="youden"):
    """The threshold of the weights that the module holds, on one batch without a Trainer."""
    (x, y), _ = validation_rows()
    module.eval()
    with torch.no_grad():
        scores = module.raw_scores(x)
    algorithm = module.algorithm
    with silent():
        try:
            return decision_threshold(scores, y, algorithm.min_tpr, algorithm.max_fpr, criterion, confidence=0.95)
        except TooFewExamplesError:
            return decision_threshold(scores, y, algorithm.min_tpr, algorithm.max_fpr, criterion)


def assert_fits(module, criterion="youden"):
    found, anew = module.operating_point.decisions, chosen_anew(module, criterion)
    assert found[1:5] == anew[1:5]
    assert found.guaranteed == (), "the validation data chose the weights"
    assert module.threshold == found.threshold == pytest.approx(anew.threshold, rel=1e-5)


@pytest.mark.parametrize(
    ("stages", "limits"),
    [
        pytest.param({}, {}, id="the best weights"),
        pytest.param({"keep_best": False}, {}, id="the last average"),
        pytest.param({"keep_best": False}, {"max_steps": 10, "max_epochs": -1}, id="steps that nobody validated"),
        pytest.param({}, {"check_val_every_n_epoch": 3}, id="a validation that was left out"),
    ],
)
def test_it_is_that_of_the_weights_that_training_leaves(stages, limits):
    _, module, _ = fit(StageCallback(**stages), **limits)
    assert_fits(module)


def test_every_validation_logs_what_its_threshold_does():
    trainer, module, data = fit()
    trainer.validate(module, data, verbose=False)
    decisions = chosen_anew(module)
    names = ("sensitivity", "specificity", "precision")
    logged = [float(trainer.callback_metrics[f"val/{name}_at_threshold"]) for name in names]
    assert logged == pytest.approx([getattr(decisions, name) for name in names], rel=1e-6)
    assert float(trainer.callback_metrics["val/threshold"]) == pytest.approx(decisions.threshold, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("save_weights_only", [False, True])
def test_every_checkpoint_holds_that_of_its_weights(tmp_path, save_weights_only):
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, save_weights_only=save_weights_only)
    fit(saver, DecisionThreshold(calibration="isotonic"), enable_checkpointing=True)
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == 4
    thresholds = set()
    for path in paths:
        torch.load(path, weights_only=True)
        module = TPAUCModule.load_from_checkpoint(path, backbone=make_module().backbone)
        assert_fits(module)
        assert module.operating_point.calibration is not None
        thresholds.add(module.threshold)
    assert len(thresholds) == 4, "the weights moved in between"


def test_a_resumed_run_ends_with_the_same(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    _, straight, _ = fit(saver, DecisionThreshold(calibration="sigmoid"), enable_checkpointing=True)
    module = make_module()
    trainer = make_trainer(precision="32-true", max_epochs=4, callbacks=[DecisionThreshold(calibration="sigmoid")])
    trainer.fit(module, make_data(), ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert module.operating_point == straight.operating_point


def test_the_test_reports_exact_intervals():
    trainer, module, data = fit()
    (values,) = trainer.test(module, data, verbose=False)
    _, (x, y) = validation_rows()
    with torch.no_grad():
        called = module.eval().raw_scores(x) >= module.threshold
    counts = {
        "sensitivity": (int((called & (y == 1)).sum()), int(y.sum())),
        "specificity": (int((~called & (y == 0)).sum()), int((y == 0).sum())),
        "precision": (int((called & (y == 1)).sum()), int(called.sum())),
    }
    for name, (k, n) in counts.items():
        lower = beta.ppf(0.025, k, n - k + 1) if k else 0.0
        upper = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
        found = [values[f"test/{name}_at_threshold{end}"] for end in ("", "_lower", "_upper")]
        assert found == pytest.approx([k / n, lower, upper], rel=1e-6)


@pytest.mark.parametrize("calibration", [None, "isotonic", "sigmoid"])
def test_predictions_are_decisions(tmp_path, calibration):
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    trainer, module, data = fit(DecisionThreshold(calibration=calibration), writer)
    outputs = trainer.predict(module, data)
    scores = torch.cat([output["score"] for output in outputs])
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ["example_id", "score", *(["probability"] if calibration else []), "decision"]
    assert list(rows[0]) == names
    assert [int(row["decision"]) for row in rows] == (scores >= module.threshold).long().tolist()
    assert 0 < sum(int(row["decision"]) for row in rows) < len(rows)
    if calibration:
        by_score = sorted((float(row["score"]), float(row["probability"])) for row in rows)
        assert all(a[1] <= b[1] for a, b in pairwise(by_score)), "monotone"
        probability = torch.tensor([float(row["probability"]) for row in rows], dtype=torch.float64)
        whole = calibrated_probability(scores, module.operating_point.calibration)
        assert torch.allclose(probability, whole, rtol=1e-12, atol=0)
        _, (_, y) = validation_rows()
        assert abs(float(probability.mean()) - float(y.double().mean())) < 0.1


def test_an_untrained_module_decides_nothing(tmp_path):
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    trainer, module = make_trainer(precision="32-true", callbacks=[writer]), make_module()
    assert set(trainer.predict(module, make_data())[0]) == {"example_id", "score"}
    assert module.threshold is None
    (values,) = trainer.test(module, make_data(), verbose=False)
    assert not [name for name in values if "threshold" in name]


def test_a_validation_chooses_for_the_weights_and_the_rectangle_that_the_module_has(tmp_path):
    """By the criterion of before, unless another is asked for."""
    trainer, module, data = fit(DecisionThreshold("youden", calibration="isotonic"))
    before = module.operating_point
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    make_trainer(precision="32-true").validate(module, data, verbose=False)
    assert module.operating_point.decisions == before.decisions
    with torch.no_grad():
        module.backbone[2].weight.mul_(-3)
    make_trainer(precision="32-true").validate(module, data, verbose=False)
    assert_fits(module, "youden")
    assert module.operating_point.calibration.method == "isotonic"
    make_trainer(precision="32-true", callbacks=[DecisionThreshold("max_specificity")]).validate(
        module, data, verbose=False
    )
    assert_fits(module, "max_specificity")
    (x, y), _ = validation_rows()
    with pytest.warns(match="no positive example"):  # data of one class choose nothing and leave it alone
        make_trainer(precision="32-true").validate(module, make_data(val_dataset=(x[y == 0], y[y == 0])), verbose=False)
    assert_fits(module, "max_specificity")
    net = make_module().backbone
    strict = TPAUCModule.load_from_checkpoint(tmp_path / "end.ckpt", backbone=net, algorithm=STACO(0.95, 0.04))
    assert strict.threshold is None
    make_trainer(precision="32-true").validate(strict, data, verbose=False)
    assert_fits(strict)
    assert strict.operating_point.is_for([(0.95, 0.04)])


def test_weights_that_are_loaded_by_hand_have_no_threshold_of_others(tmp_path):
    trainer, module, data = fit()
    weights = {name: value.clone() for name, value in module.state_dict().items() if "extra" not in name}
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    module.load_state_dict(weights)
    assert module.threshold is None
    trainer.validate(module, data, ckpt_path=str(tmp_path / "end.ckpt"), verbose=False)
    trainer.predict(module, data, ckpt_path=str(tmp_path / "end.ckpt"))
    assert_fits(module)
    module.load_state_dict(weights)
    assert module.threshold is None


def test_an_example_without_a_score_has_no_decision(tmp_path):
    _, module, _ = fit(DecisionThreshold(calibration="sigmoid"))
    x = validation_rows()[1][0].clone()
    x[4, 1] = x[9, 2] = math.nan
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    with pytest.warns(match="2 of 80 predictions are nan and get no decision"):
        make_trainer(precision="32-true", callbacks=[writer]).predict(module, PosNegDataModule(predict_dataset=x))
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [k for k, row in enumerate(rows) if row["decision"] == ""] == [4, 9]
    table = pd.DataFrame(x.numpy(), columns=list("abc"))
    with pytest.warns() as said:
        make_trainer(precision="32-true").predict(module, PosNegDataModule(predict_dataset=table))
    said = [str(one.message) for one in said if "nan" in str(one.message) or "empty" in str(one.message)]
    assert len(said) == 1, "a table's columns are named, in one line"
    assert "b (1), c (1)" in said[0]
    assert [rows[4][name] for name in ("score", "probability")] == ["nan", "nan"]
    assert rows[5]["decision"] in ("0", "1")


def test_another_training_begins_without():
    _, module, _ = fit()
    assert module.threshold is not None
    fit(module=module, data=make_data(val_dataset=None))
    assert module.threshold is None


def test_a_rectangle_out_of_reach_is_said_with_how_far_away_it_is(caplog):
    (x, _), _ = validation_rows()
    y = torch.zeros(len(x), dtype=torch.long)
    with torch.no_grad():
        y[(-x[:, 0]).topk(6).indices] = 1  # the training data have it the other way round
    _, module, _ = fit(data=make_data(val_dataset=(x, y)))
    scores = module.eval().raw_scores(x).detach()
    away = min(
        math.hypot(
            max(0.0, 0.5 - float((called & (y == 1)).sum()) / 6), max(0.0, float((called & (y == 0)).sum()) / 74 - 0.5)
        )
        for called in (scores >= threshold for threshold in [math.inf, *scores.tolist()])
    )
    said = [r.message for r in caplog.records if "on these data: TPR >= 0.5, FPR <= 0.5 is missed" in r.message]
    assert len(said) == 1
    assert said[0].endswith(f"by {away:.2g}.")


def test_demands_that_are_missed_and_labels_without_a_threshold_are_said():
    choice = Choice(Decisions(0.7, tp=2, fp=1, num_pos=2, num_neg=2), (0.5, 0.5))
    point = OperatingPoint((choice, None), "youden", 1, names=("liver", "lung"), min_precision=0.67, max_alert_rate=0.7)
    said = repr(point).split("\n")
    assert said[0].endswith(" It misses precision >= 0.67 and an alert rate <= 0.7: no threshold meets all demands.")
    assert said[1] == "No threshold of lung: a class has no example."
    met = OperatingPoint((choice,), "youden", 1, min_precision=0.66, max_alert_rate=0.75)
    assert "misses" not in repr(met)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_of_two_chooses_where_nobody_validated_the_last_steps(reverse):
    both = [DecisionThreshold("max_sensitivity"), DecisionThreshold("max_specificity")][:: -1 if reverse else 1]
    _, module, _ = fit(StageCallback(keep_best=False), *both, max_steps=10, max_epochs=-1)
    assert module.operating_point.criterion == both[-1].criterion


def test_scores_that_a_sigmoid_can_not_calibrate_do_not_end_the_training(caplog):
    (x, y), _ = validation_rows()
    _, module, _ = fit(DecisionThreshold(calibration="sigmoid"), data=make_data(val_dataset=(-x, y)))
    assert module.threshold is not None
    assert module.operating_point.calibration is None
    said = [r.message for r in caplog.records if "would fall (slope -" in r.message]
    assert len(said) == 1
    assert said[0].startswith("Predictions will hold no probabilities.")


def test_the_first_of_several_data_loaders_chooses():
    class Several(PosNegDataModule):
        def val_dataloader(self):
            (x, y), other = validation_rows()
            return [torch.utils.data.DataLoader(list(zip(*rows, strict=True)), 16) for rows in ((x, y), other)]

        test_dataloader = val_dataloader

    (x, y), _ = validation_rows()
    trainer, module, data = fit(data=Several((x, y), (x, y), test_dataset=(x, y), num_pos=5, num_neg=10))
    assert_fits(module)
    assert "val/threshold/dataloader_idx_0" in trainer.callback_metrics
    both = trainer.test(module, data, verbose=False)
    merged = {name: value for values in both for name, value in values.items()}
    for number, (inputs, labels) in enumerate(validation_rows()):
        called = module.raw_scores(inputs).detach() >= module.threshold
        share = float((called & (labels == 1)).sum() / labels.sum())
        assert merged[f"test/sensitivity_at_threshold/dataloader_idx_{number}"] == pytest.approx(share, rel=1e-6)


@pytest.mark.ddp
def test_ranks_agree_and_choose_what_one_process_does(tmp_path):
    saver = ModelCheckpoint(tmp_path / "one")
    _, module, data = fit(saver, module=make_module(nn.Linear(3, 1)), enable_checkpointing=True)
    folder = tmp_path / "three"
    callbacks = [ModelCheckpoint(folder), DecisionThreshold(calibration="isotonic")]
    several = make_trainer(
        precision="32-true", callbacks=callbacks, devices=3, strategy="ddp_fork", enable_checkpointing=True
    )
    several.validate(module, data, verbose=False)
    assert float(several.callback_metrics["val/threshold"]) == pytest.approx(module.threshold, rel=1e-6)
    writer = PredictionWriter(str(folder / "p.csv"))
    make_trainer(precision="32-true", callbacks=[writer], devices=3, strategy="ddp_fork").predict(
        module, data, return_predictions=False
    )
    single = PredictionWriter(str(folder / "one.csv"))
    make_trainer(precision="32-true", callbacks=[single]).predict(module, data)
    assert (folder / "p.csv").read_text() == (folder / "one.csv").read_text()
    assert "decision" in (folder / "p.csv").read_text()


def test_what_it_refuses():
    with pytest.raises(ArgumentError, match="`criterion` to be one of"):
        DecisionThreshold("gini")
    with pytest.raises(
        ArgumentError, match="`calibration` to be one of 'isotonic', 'sigmoid', 'auto', but got 'platt'"
    ):
        DecisionThreshold(calibration="platt")
