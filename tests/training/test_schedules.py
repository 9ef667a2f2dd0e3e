"""Schedulers that follow a metric, as Lightning configures them and as it does not step them."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError
from tests.helpers.problems import NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")


class Seen(ReduceLROnPlateau):
    """Notes what it is stepped with, and after how many steps."""

    def __init__(self, optimizer, mode="max"):
        super().__init__(optimizer, mode=mode, patience=0)
        self.seen = []

    def step(self, metrics):
        super().step(metrics)
        self.seen.append(metrics)


def theirs(form="dict", mode="max", **config):
    """A LightningModule with a plateau scheduler, ``config`` beside it."""

    class Theirs(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = LinearScore()

        def forward(self, inputs):
            return self.net(inputs)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            self.scheduler = Seen(optimizer, mode)
            entry = {"scheduler": self.scheduler, **config}
            return {
                "dict": {"optimizer": optimizer, "lr_scheduler": entry},
                "beside": {"optimizer": optimizer, "lr_scheduler": self.scheduler, **config},
                "lists": ([optimizer], [entry]),
                "list of dicts": [{"optimizer": optimizer, "lr_scheduler": entry}],
            }[form]

    return Theirs


def mixed(form="dict", mode="max", **config):
    class Mixed(TPAUCModule, theirs(form, mode, **config)):
        pass

    algorithm = STACO(0.6, 0.3, alpha=0.7, beta=0.2, dual_init="zeros", stage_restart="ones")
    return Mixed(algorithm=algorithm, num_positives=NUM_POS)


class Values(Callback):
    """What was logged at every validation, step and epoch."""

    def __init__(self):
        self.validated, self.losses, self.epochs = [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        pl_module.log("train/own", float(batch_idx), on_step=False, on_epoch=True)

    def on_validation_end(self, trainer, pl_module):
        self.validated.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs.append(float(trainer.callback_metrics["train/own"]))


def fit(module, epochs=4, steps=3, validates=True, **kwargs):
    batches, _ = make_batches(steps)
    values = Values()
    trainer = make_trainer(callbacks=[values], max_epochs=epochs, num_sanity_val_steps=0, **kwargs)
    trainer.fit(module, loader(batches), eval_loader() if validates else None)
    return values


@pytest.mark.filterwarnings("error:.*the keys will be ignored")
@pytest.mark.parametrize("form", ["dict", "beside", "lists", "list of dicts"])
def test_a_mixed_in_plateau_follows_the_metric_that_it_names(form):
    module = mixed(form, monitor="val/auroc")
    values = fit(module)
    assert module.scheduler.seen == [validated["val/auroc"] for validated in values.validated]
    assert module.scheduler.seen != [validated["val/tpauc"] for validated in values.validated]
    assert len(module.scheduler.seen) == 4


def test_without_a_monitor_it_follows_the_area():
    module = mixed()
    values = fit(module)
    assert module.scheduler.seen == [validated["val/tpauc"] for validated in values.validated]


def test_metrics_of_training_need_no_validation():
    module = mixed(mode="min", monitor="train/loss")
    values = fit(module, validates=False)
    assert module.scheduler.seen == pytest.approx(values.losses[2::3])
    module = mixed(mode="min", monitor="train/own")
    assert fit(module).epochs == module.scheduler.seen == [1.0] * 4
    module = mixed(mode="min", monitor="train/loss", interval="step", frequency=2)
    values = fit(module, log_every_n_steps=1)
    assert module.scheduler.seen == pytest.approx(values.losses[1::2])


class Plain(TPAUCModule):
    """A subclass that overrides what makes its optimizer and plateau scheduler."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [{"scheduler": Seen(optimizer, mode="min"), "monitor": "train/own"}]


def plain():
    return Plain(LinearScore(), STACO(dual_init="zeros"), num_positives=NUM_POS)


@pytest.mark.parametrize("make", [partial(mixed, mode="min", monitor="train/own"), plain])
def test_the_dual_step_sizes_fall_with_the_learning_rate_of_a_plateau(tmp_path, make):
    batches, _ = make_batches(2)

    def run(ckpt_path=None, **kwargs):
        module = make()
        trainer = make_trainer(max_epochs=5, enable_checkpointing=True, default_root_dir=tmp_path, **kwargs)
        trainer.fit(module, loader(batches), eval_loader(), ckpt_path=ckpt_path)
        return module.optimizers().param_groups[0]["lr"], module.algorithm.step_scale

    rate, scale = run(callbacks=[Values(), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)])
    assert rate == pytest.approx(0.05 * 0.1**4)  # what it follows stays the same
    assert scale == pytest.approx(0.1**3)  # in the last epoch, at whose end the rate fell once more
    assert run(tmp_path / "epoch=2.ckpt", callbacks=[Values()]) == (rate, scale)


@pytest.mark.parametrize(("interval", "at"), [("epoch", [1, 3]), ("step", [1, 3])])
def test_frequency_is_heeded(interval, at):
    module = mixed(monitor="val/tpauc", interval=interval, frequency=2 if interval == "epoch" else 6)
    values = fit(module)
    assert module.scheduler.seen == [values.validated[k]["val/tpauc"] for k in at]


def test_a_metric_that_nothing_logs():
    with pytest.raises(
        ArgumentError, match=r"follows 'val/tpauk', which nothing has logged.*'val/auroc', .*'val/tpauc'"
    ):
        fit(mixed(monitor="val/tpauk"))
    with pytest.raises(ArgumentError, match=r"follows 'val/tpauc', which nothing has logged.*'train/loss'"):
        fit(mixed(), validates=False)


def test_a_validation_that_is_yet_to_come_is_waited_for():
    module = mixed(monitor="val/tpauc")
    values = fit(module, check_val_every_n_epoch=3)
    assert module.scheduler.seen == [values.validated[0]["val/tpauc"]]


def test_a_plateau_may_wait_for_a_loss_to_fall_but_not_for_an_area():
    for config, name in (({"monitor": "val/auroc"}, "auroc"), ({}, "tpauc")):
        said = rf"monitor='val/{name}'\) .* the smallest value for the best; pass `mode='max'`"
        with pytest.raises(ArgumentError, match=said):
            fit(mixed(mode="min", **config))
