"""Resuming a Trainer continues with the batch that would have come next."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc.data.datamodule import PosNegDataModule
from tests.helpers.items import Items, X, Y, noisy
from tests.helpers.recorder import Recorder, make_trainer


def fit(*, counts=True, workers=0, ckpt_path=None, dataset=None, **kwargs):
    torch.manual_seed(0)
    module = Recorder(counts=counts)
    dataset = (X, Y) if dataset is None else dataset
    datamodule = PosNegDataModule(dataset, num_pos=2, num_neg=5, val_fraction=0.2, num_workers=workers)
    trainer = make_trainer(enable_checkpointing="callbacks" in kwargs, **kwargs)
    trainer.fit(module, datamodule, ckpt_path=ckpt_path)
    return module


def data_of(log):
    return [entry[2:] for entry in log]


# 38 negatives validate not: 8 steps an epoch
SAVES = {
    "in the middle": ({"every_n_train_steps": 3}, {}, 3),
    "after the last batch": ({"every_n_train_steps": 8}, {}, 8),
    "at the end of the epoch": ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {}, 8),
    "after validation": ({"every_n_epochs": 1, "save_on_train_epoch_end": False}, {}, 8),
    "after validation in the middle": ({"save_on_train_epoch_end": False}, {"val_check_interval": 3}, 3),
    "in the middle, shortened epochs": ({"every_n_train_steps": 3}, {"limit_train_batches": 5}, 3),
    "at the end, steps counted": (
        {"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"max_steps": 20, "max_epochs": -1}, 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("counts", [True, False], ids=["module counts", "fit loop counts"])
@pytest.mark.parametrize("name", SAVES)
def test_resume_equals_straight(name, counts, tmp_path):
    when, flags, saved_at = SAVES[name]
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **when)
    straight = fit(counts=counts, callbacks=[checkpoint], **flags)
    path = tmp_path / f"step={saved_at}.ckpt"
    resumed = fit(counts=counts, ckpt_path=path, **flags)
    assert len(resumed.train_log) == len(straight.train_log) - saved_at > 0
    assert data_of(resumed.train_log) == data_of(straight.train_log[saved_at:])
    assert torch.equal(resumed.linear.weight, straight.linear.weight)


@pytest.mark.filterwarnings("ignore:The items of `train_dataset` are random")
@pytest.mark.parametrize("name", ["in the middle", "at the end of the epoch"])
def test_resume_with_workers_and_augmentation(name, tmp_path):
    when, flags, saved_at = SAVES[name]
    straight = fit(dataset=Items(noisy), **flags)
    checkpoint = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **when)
    fit(dataset=Items(noisy), workers=2, callbacks=[checkpoint], max_epochs=1)
    resumed = fit(dataset=Items(noisy), workers=2, ckpt_path=tmp_path / f"step={saved_at}.ckpt", **flags)
    assert data_of(resumed.train_log) == data_of(straight.train_log[saved_at:])


class Onlooker(Recorder):
    """Iterates training batches of its own at the end of each epoch."""

    def on_train_epoch_end(self):
        loader = self.trainer.train_dataloader
        again = [batch.index.tolist() for batch in loader.next_batches(10)]
        assert again == [batch.index.tolist() for batch in self.trainer.datamodule.train_dataloader()]
        self.aside = [*getattr(self, "aside", []), again]


def test_whole_epochs_beside_the_fit_loop():
    module = Onlooker()
    make_trainer(max_epochs=3).fit(module, PosNegDataModule((X, Y), num_pos=2, num_neg=5))
    steps = [entry[2] for entry in module.train_log]
    assert module.aside[:2] == [steps[10:20], steps[20:30]]


def test_a_second_fit_goes_on():
    straight = fit(max_epochs=2)
    module = Recorder()
    for _ in range(2):
        datamodule = PosNegDataModule((X, Y), num_pos=2, num_neg=5, val_fraction=0.2)
        make_trainer(max_epochs=1).fit(module, datamodule)
    assert data_of(module.train_log) == data_of(straight.train_log)
