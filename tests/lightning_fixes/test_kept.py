"""What a class that is subclassed or mixed in keeps of its own: the list of docs/models.md, tried entry by entry."""

import inspect
import re

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.core import hooks as lightning_hooks
from sklearn.metrics import average_precision_score
from torch import nn
from torchmetrics.classification import BinaryAveragePrecision

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.paths import ROOT

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tmp_cwd")]

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(200) % 5 == 0).long()
#: What ours stands in place of; all else of theirs is called.
REPLACED = {
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
    "on_validation_epoch_end",
    "on_test_epoch_end",
}


def make_data():
    return PosNegDataModule((X, Y), val_dataset=(X, Y), test_dataset=(X, Y), predict_dataset=X, num_pos=8, num_neg=24)


def make_trainer(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", **{**quiet, "max_epochs": 2, **options})


def fit(module, **options):
    trainer = make_trainer(enable_checkpointing=False, **options)
    trainer.fit(module, make_data())
    return trainer


# ---------------------------------------------------------------- hooks


class PlainData(pl.LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=50)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


KINDS = (lightning_hooks.ModelHooks, lightning_hooks.DataHooks, lightning_hooks.CheckpointHooks)
HOOKS = [name for kind in KINDS for name, hook in vars(kind).items() if inspect.isfunction(hook)]
HOOKS += ["configure_callbacks", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad"]
HOOKS += ["lr_scheduler_step", "backward", "clip_gradients"]
#: The second is an old name of `configure_model`, beside which Lightning refuses it.
NOT_HERE = re.compile(r"_|.*dataloader|configure_sharded_model")


class Theirs(pl.LightningModule):
    """Trains with cross-entropy; `calls` is a set that takes the names of its hooks."""

    calls: set[str]

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        self.calls.add("training_step")
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1].float())

    def validation_step(self, batch, batch_idx):
        self.calls.add("validation_step")

    def test_step(self, batch, batch_idx):
        self.calls.add("test_step")

    def predict_step(self, batch, batch_idx):
        self.calls.add("predict_step")
        return self(batch[0])

    def configure_optimizers(self):
        self.calls.add("configure_optimizers")
        optimizer = torch.optim.Adam(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def noting(name):
    """Lightning's own hook, which notes that it was called."""
    original = getattr(pl.LightningModule, name)

    def hook(self, *args, **kwargs):
        self.calls.add(name)
        return original(self, *args, **kwargs)

    return hook


def recording(calls):
    hooks = {name: noting(name) for name in HOOKS if not NOT_HERE.match(name)}
    return type("Recording", (Theirs,), {"calls": calls, **hooks})


def run_everything(cls, data):
    """Train, resume, validate, test and predict."""
    trainer = make_trainer()
    trainer.fit(cls(), data)
    other = make_trainer(max_epochs=3)
    other.fit(module := cls(), data, ckpt_path=trainer.checkpoint_callback.best_model_path)
    for evaluate in (other.validate, other.test, other.predict):
        evaluate(module, data)


def test_all_hooks_are_called_but_those_that_are_replaced():
    alone, mixed_in = set(), set()
    run_everything(recording(alone), PlainData())

    class Ours(TPAUCModule, recording(mixed_in)):
        pass

    run_everything(Ours, make_data())
    assert len(alone) > 50
    assert alone > REPLACED
    assert alone - mixed_in == REPLACED
    assert mixed_in <= alone


def test_the_page_lists_what_is_replaced():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\| replaced by ours \| (.*?) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == REPLACED


# ---------------------------------------------------------------- metrics


def test_a_metric_of_a_subclass():
    class Mine(TPAUCModule):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.average_precision = BinaryAveragePrecision()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            real = batch.target >= 0
            self.average_precision.update(self.raw_scores(batch.inputs)[real], batch.target[real])
            self.log("val/average_precision", self.average_precision, batch_size=int(real.sum()))

    module = Mine(backbone=nn.Linear(4, 1), algorithm=STACO())
    trainer = fit(module)
    found = trainer.validate(module, make_data(), verbose=False)[0]
    with torch.no_grad():
        expected = average_precision_score(Y, module.raw_scores(X).sigmoid())
    assert found["val/average_precision"] == pytest.approx(expected, abs=1e-6)
    assert 0 <= found["val/tpauc"] <= 1, "ours ran beside it"


# ---------------------------------------------------------------- weights
