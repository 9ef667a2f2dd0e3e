"""Examples that chose nothing before choose the threshold, and what is said of new examples."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import DecisionThreshold, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.functional import calibrated_probability, decision_threshold, fit_calibration
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*use of fork.*", "ignore:Only"
)


def problem():
    """Four rows of each of 300 patients, half of them with rows of both classes."""
    generator = torch.Generator().manual_seed(5)
    patient = torch.arange(300).repeat_interleave(4)
    x = torch.randn(1200, 3, generator=generator) + 0.7 * torch.randn(300, 3, generator=generator)[patient]
    return x, (x[:, 0] + 1.0 * torch.randn(1200, generator=generator) > 0.9).long(), patient


def make_data(grouped=False, **kwargs):
    x, y, patient = problem()
    groups = {"groups": patient} if grouped else {}
    parts = {"val_fraction": 0.2, "calibration_fraction": 0.5} | kwargs
    return PosNegDataModule((x, y), num_pos=8, num_neg=16, batch_size=64, **groups, **parts)


def fit(*callbacks, data=None, **kwargs):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    module = TPAUCModule(net, STACO(0.3, 0.2))
    trainer = make_trainer(**{"precision": "32-true", "max_epochs": 3, **kwargs}, callbacks=list(callbacks))
    data = data or make_data()
    trainer.fit(module, data)
    return trainer, module, data


def expected(module, data, rule="youden", **kwargs):
    """What the rows of the calibration part give, in one batch."""
    loader = data.calibration_dataloader()
    batches = list(loader)
    rows = torch.cat([batch.example_id for batch in batches])
    with torch.no_grad():
        scores = module.eval().raw_scores(torch.cat([batch.inputs for batch in batches]))
    target = torch.cat([batch.target for batch in batches])
    groups = None if loader.groups is None else loader.groups[rows]
    return decision_threshold(scores, target, 0.3, 0.2, rule, confidence=0.95, groups=groups, **kwargs), scores, target


def assert_is(found, wanted):
    assert found[1:] == wanted[1:]
    assert found.threshold == pytest.approx(wanted.threshold, rel=1e-5)


@pytest.mark.parametrize("grouped", [False, True])
def test_they_choose_threshold_and_probabilities_and_are_believed(grouped, tmp_path):
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    choose = DecisionThreshold("max_sensitivity", calibration="auto")
    _, module, data = fit(saver, choose, data=make_data(grouped), enable_checkpointing=True)
    wanted, scores, target = expected(module, data, "max_sensitivity")
    point = module.operating_point
    assert_is(point.decisions, wanted)
    assert point.held_out
    assert point.decisions.guaranteed == ("max_fpr", "min_tpr")
    assert (
        decision_threshold(scores, target, 0.3, 0.2, "max_sensitivity", confidence=0.95)[1:] == wanted[1:]
    ) != grouped
    fitted = calibrated_probability(scores, fit_calibration(scores, target))
    torch.testing.assert_close(calibrated_probability(scores, point.calibration), fitted, rtol=1e-4, atol=1e-5)
    make_trainer(precision="32-true").validate(module, data, verbose=False)
    assert_is(module.operating_point.decisions, wanted)
    for epoch in range(3):
        saved = TPAUCModule.load_from_checkpoint(tmp_path / f"epoch={epoch}.ckpt", backbone=module.backbone)
        assert_is(saved.operating_point.decisions, expected(saved, data, "max_sensitivity")[0])


def test_a_run_says_what_its_threshold_does_and_what_it_costs(caplog):
    _, module, data = fit(DecisionThreshold("max_sensitivity"))
    wanted, scores, target = expected(module, data, "max_sensitivity")
    plain = decision_threshold(scores, target, 0.3, 0.2, "max_sensitivity")
    (said,) = [r.message for r in caplog.records if r.message.startswith("Threshold ")]
    assert said == repr(module.operating_point)
    first, second = said.split("\n")
    assert f"(max_sensitivity): sensitivity {wanted.sensitivity:.3f} (" in first
    assert first.endswith("with exact 95% intervals.")
    assert second == (
        "TPR >= 0.3 and FPR <= 0.2 for new examples at 95% confidence. The room for new examples has a price: "
        f"sensitivity {wanted.sensitivity:.3f} instead of {plain.sensitivity:.3f}, FPR {1 - wanted.specificity:.3f} "
        f"instead of {1 - plain.specificity:.3f}."
    )


@pytest.mark.parametrize(
    ("parts", "confidence", "words"),
    [
        (
            {"calibration_fraction": None},
            0.95,
            "No guarantee for new examples. These examples chose the weights as well",
        ),
        ({"calibration_fraction": None}, None, "No guarantee for new examples."),
        ({"calibration_fraction": 0.01}, 0.95, "No guarantee for new examples: FPR <= 0.2 at 95% confidence takes 17"),
        (
            {"calibration_fraction": 0.02},
            0.95,
            "TPR >= 0.3 for new examples at 95% confidence. No guarantee of FPR <= 0.2: ask for less",
        ),
    ],
)
def test_otherwise_less_is_guaranteed_or_nothing(parts, confidence, words, caplog):
    _, module, _ = fit(DecisionThreshold(confidence=confidence), data=make_data(**parts))
    (said,) = [r.message for r in caplog.records if r.message.startswith("Threshold ")]
    assert said.split("\n")[1].startswith(words)
    assert module.operating_point.decisions.guaranteed == (("min_tpr",) if words.startswith("TPR") else ())
    assert module.threshold is not None


def test_a_resumed_run_ends_with_the_same(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    _, straight, _ = fit(saver, enable_checkpointing=True)
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    module = TPAUCModule(net, STACO(0.3, 0.2))
    make_trainer(precision="32-true", max_epochs=3).fit(module, make_data(), ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert module.operating_point == straight.operating_point
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), straight.parameters(), strict=True))


def test_a_class_that_calibration_lacks_is_named(caplog):
    x, y, _ = problem()
    _, module, _ = fit(data=make_data(calibration_fraction=None, calibration_dataset=(x[y == 0], y[y == 0])))
    assert module.operating_point is None
    assert "`calibration_dataset` lacks a class" in caplog.text
    assert "No validation gave a value" not in caplog.text


def test_rows_of_unknown_groups_are_said_to_count_as_independent():
    x, y, _ = problem()
    data = make_data(grouped=True, calibration_fraction=None, calibration_dataset=(x[1:], y[1:]))
    data.setup("fit")
    with pytest.warns(TPAUCWarning, match="rows of `calibration_dataset` count as independent"):
        assert data.calibration_dataloader().groups is None


@pytest.mark.ddp
def test_ranks_choose_what_one_process_does_by_groups():
    _, module, data = fit(data=make_data(grouped=True))
    several = make_trainer(precision="32-true", devices=3, strategy="ddp_fork")
    several.validate(module, data, verbose=False)
    assert float(several.callback_metrics["val/threshold"]) == pytest.approx(module.threshold, rel=1e-6)
