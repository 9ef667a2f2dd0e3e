"""Passes over data outside Lightning's loops show how far they are, where bars are wanted and someone sees them."""

import io
import sys

import pytest
import torch
from torch import nn

from lightning_tpauc import DecisionThreshold, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.scoring import forward
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:Only .* positives a step")

TITLES = ["Scoring the training set", "Choosing the threshold"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def fit(monkeypatch, stream, **options):
    torch.manual_seed(0)
    y = torch.arange(120) % 4 == 0
    x = torch.randn(120, 3, dtype=torch.float64) + y[:, None]
    data = PosNegDataModule((x, y), val_dataset=(x, y), num_pos=5, num_neg=15, batch_size=10)
    module = TPAUCModule(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), STACO(gamma=4.0))
    stages = StageCallback(every_n_steps=5, scores="forward", keep_best=False)
    trainer = make_trainer(max_epochs=3, check_val_every_n_epoch=2, callbacks=[stages, DecisionThreshold()], **options)
    monkeypatch.setattr(sys, "stderr", stream)
    trainer.fit(module, data)
    return stream.getvalue()


def test_a_pass_of_seconds_shows_a_bar_with_its_end(monkeypatch):
    monkeypatch.setattr(forward, "DELAY", 0.0)
    shown = fit(monkeypatch, Terminal(), enable_progress_bar=True)
    assert [title for title in TITLES if title not in shown] == []
    assert "/3 " in shown  # the positives: 30 in batches of 10
    assert "/12 " in shown  # the validation data


@pytest.mark.parametrize("why", ["no bar is wanted", "nobody sees it", "it is quick"])
def test_otherwise_there_is_no_bar(monkeypatch, why):
    if why != "it is quick":
        monkeypatch.setattr(forward, "DELAY", 0.0)
    stream = io.StringIO() if why == "nobody sees it" else Terminal()
    shown = fit(monkeypatch, stream, enable_progress_bar=why != "no bar is wanted")
    assert not any(title in shown for title in TITLES)
