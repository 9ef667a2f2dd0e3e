"""Runs of all kinds that break off anywhere and are resumed: each ends where the unbroken run does, to the last bit."""

import pytest
import torch

from lightning_tpauc import StageCallback
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.problems import bare_trainer, make_trainer
from tests.helpers.scripts.random_runs import (
    ALGORITHMS,
    Setting,
    compare,
    draw,
    make_data,
    make_module,
    run,
    same,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: As many as take some seconds, all of them resumed; ``benchmarks/random_resume.py`` takes more.
SEEDS = (1, 8, 14, 20)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_run_resumes(tmp_path, seed):
    setting = draw(seed)
    outcome = compare(setting, tmp_path)
    assert outcome.kind == "equal", (outcome.why, str(setting))
    assert outcome.resumed


DOUBLE = {"precision": "64-true", "net": "batch norm", "trainer": {"max_epochs": 3}}
CASES = {
    "an epoch's last batch, below the loader's length": {
        "trainer": {"max_epochs": 3, "limit_train_batches": 5, "limit_val_batches": 0},
        "saved_every": 5,
        "killed_at": (("on_train_batch_start", 7),),
    },
    "the same, validated every other epoch": {
        "trainer": {"max_epochs": 3, "limit_train_batches": 0.5, "check_val_every_n_epoch": 2},
        "saved_every": 4,
        "killed_at": (("on_train_batch_start", 6),),
    },
    "saved by an exception of a validation": {"saved_by": "exception", "killed_at": (("on_validation_batch_end", 5),)},
    "saved by an exception at a validation's end": {
        "saved_by": "exception",
        "scheduler": "plateau",
        "killed_at": (("on_validation_start", 3), ("on_validation_batch_start", 1)),
    },
    "saved by an exception at a batch's end": {"saved_by": "exception", "killed_at": (("on_train_batch_end", 4),)},
    "saved by an exception where a batch starts": {"saved_by": "exception"},
    "saved by a callback of the user's own": {"saved_by": "hook", "saved_every": 7, "scheduler": "plateau"},
    "killed after the last epoch": {"saved_by": "epoch", "killed_at": (("on_fit_end", 1),)},
    "validation follows the last batch's checkpoint": {
        "saved_every": 8,
        "scheduler": "plateau",
        "killed_at": (("on_validation_batch_start", 5),),
    },
    "an epoch's checkpoint, max_epochs and max_steps": {
        "saved_by": "epoch",
        "trainer": {"max_epochs": 4, "max_steps": 1000},
        "killed_at": (("on_train_batch_start", 20),),
    },
    "EarlyStopping, killed before it stops": {
        "stops_early": True,
        "optimizer": "SGD",
        "trainer": {"max_epochs": 12},
        "killed_at": (("on_validation_start", 2),),
    },
    "tied weights in 64-true, saved at a stage's end": {
        "net": "tied",
        "precision": "64-true",
        "saved_every": 5,
        "killed_at": (("on_train_batch_start", 17),),
    },
    "batch norm of STACO1, a worker, the best checkpoint": {
        "algorithm": "STACO1",
        "net": "batch norm",
        "precision": "64-true",
        "workers": 1,
        "trainer": {"max_epochs": 3},
        "saved_by": "validation",
        "killed_at": (("on_train_epoch_start", 3),),
    },
    "batch norm of STACO2, a cycle of momentum, max_steps": {
        "net": "batch norm",
        "optimizer": "momentum",
        "scheduler": "cyclic",
        "interval": "step",
        "trainer": {"max_epochs": -1, "max_steps": 29},
        "killed_at": (("on_train_epoch_end", 2),),
    },
    "AUCM without stages on a stateful stream": {
        "algorithm": "AUCM without stages",
        "precision": "64-true",
        "data": "stream",
        "killed_at": (("on_validation_start", 2),),
    },
    **{
        f"{optimizer} in {precision}": {"optimizer": optimizer, "precision": precision, "algorithm": "cross-entropy"}
        for optimizer, precision in (("NAdam", "bf16-true"), ("ASGD", "16-true"), ("NAdam", "16-mixed"))
    },
    **{f"{name} in 64-true": {"algorithm": name, **DOUBLE} for name in ALGORITHMS},
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_resumes(tmp_path, name):
    setting = Setting(**CASES[name])
    if setting.algorithm == "full batch":
        setting = setting._replace(trainer={"max_epochs": 20})
    outcome = compare(setting, tmp_path)
    assert outcome.kind == "equal", outcome.why
    assert outcome.resumed


def test_double_precision_is_not_rounded_when_a_fresh_module_is_tested(tmp_path):
    setting = Setting(precision="64-true", net="batch norm", trainer={"max_epochs": 2})
    module, data = make_module(setting), make_data(setting)
    trainer = make_trainer(max_epochs=2)
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    assert not torch.equal(saved["backbone.0.weight"], saved["backbone.0.weight"].float().double())
    fresh = make_module(setting._replace(seed=1))
    make_trainer().validate(fresh, data, tmp_path / "a.ckpt", verbose=False)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_a_run_that_is_over_can_be_saved_again_and_trained_on(tmp_path):
    """Resumed without a step left, it still holds all that training needs."""
    setting = Setting(saved_by="epoch")
    unbroken = run(tmp_path / "unbroken", setting._replace(trainer={"max_epochs": 6}))
    run(tmp_path / "broken", setting)
    module, data = make_module(setting), make_data(setting)
    trainer = bare_trainer(max_epochs=4, callbacks=[StageCallback(every_n_steps=5)])
    trainer.fit(module, data, ckpt_path=tmp_path / "broken" / "last.ckpt")
    assert trainer.current_epoch == 4
    trainer.save_checkpoint(tmp_path / "broken" / "last.ckpt")
    assert KEY in torch.load(tmp_path / "broken" / "last.ckpt", weights_only=True)
    resumed = run(tmp_path / "broken", setting._replace(trainer={"max_epochs": 6}))
    assert [name for name in unbroken if not same(unbroken[name], resumed[name])] == []


def test_a_difference_is_noticed(tmp_path, monkeypatch):
    """The comparison is able to fail: without the generators that a checkpoint holds, dropout draws other masks."""
    monkeypatch.setattr("lightning_tpauc.training.checkpoint.restore_random_states", lambda states: None)
    outcome = compare(Setting(), tmp_path)
    assert outcome.kind == "differs"
    assert any("/module/" in name for name in outcome.why)
