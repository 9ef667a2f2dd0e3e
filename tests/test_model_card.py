"""The model card says what the model, its data and its test say."""

import re

import pytest
import torch
from torch import nn

from lightning_tpauc import STACO, PosNegDataModule, TPAUCModule, model_card
from tests.helpers.problems import bare_trainer, noisy_labels


def table(card, heading):
    rows = re.search(rf"## {heading}\n(?:.*\n)*?\|.*\n\|.*\n((?:\|.*\n)+)", card)[1].splitlines()
    return {name: cells for name, *cells in ([c.strip() for c in row.strip("|").split("|")] for row in rows)}


@pytest.mark.parametrize("num_labels", [1, 2])
def test_it_has_rectangles_counts_thresholds_and_exact_intervals(num_labels, tmp_path):
    x, y = noisy_labels(600, 4, 0.5)
    y = y if num_labels == 1 else torch.stack([y, x[:, 1] > 0.5], 1).long()
    data = PosNegDataModule((x, y), test_dataset=(x, y), val_fraction=0.5, num_pos=16, num_neg=32)
    module = TPAUCModule(nn.Linear(4, num_labels), STACO(0.5, 0.4))
    trainer = bare_trainer(max_epochs=1)
    trainer.fit(module, data)
    tested = trainer.test(module, data, verbose=False)[0]
    card = model_card(module, data, tested, title="Ours", use="A test.")
    assert card.startswith("# Ours\n\nA test.\n")
    assert f"{data.num_negatives} negatives" in card
    assert list(table(card, "Training").values()) == [["0.5", "0.4"]] * num_labels
    thresholds = re.findall(r"^- Threshold .*?(-?\d\.?[\de-]*) \(youden\): sensitivity", card, re.MULTILINE)
    expected = [choice.decisions.threshold for choice in module.operating_point.choices]
    assert [float(each) for each in thresholds] == pytest.approx(expected, rel=1e-5)
    suffix = "/0" if num_labels > 1 else ""
    value, interval = table(card, "Test")[f"test/sensitivity_at_threshold{suffix}"]
    ends = [tested[f"test/sensitivity_at_threshold_{end}{suffix}"] for end in ("lower", "upper")]
    assert float(value) == pytest.approx(tested[f"test/sensitivity_at_threshold{suffix}"], abs=1e-4)
    assert [float(end) for end in interval.split(" to ")] == pytest.approx(ends, abs=1e-4)

    trainer.save_checkpoint(tmp_path / "model.ckpt")
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "model.ckpt", backbone=nn.Linear(4, num_labels))
    assert model_card(loaded, data, tested, title="Ours", use="A test.") == card


def test_a_model_without_a_threshold_says_so():
    assert "None was chosen." in model_card(TPAUCModule(nn.Linear(4, 1)))
