"""Runs of all kinds that break off anywhere and are resumed: each ends where the unbroken run does, to the last bit."""

import pytest
import torch

from lightning_tpauc import StageCallback
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.problems import bare_trainer, make_trainer
from tests.helpers.scripts.random_runs import (
    ALGORITHMS,
    HOOKS,
    Setting,
    compare,
    draw,
    make_data,
    make_module,
    run,
    same,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: As many as take some seconds; ``benchmarks/random_resume.py`` takes more.
SEEDS = range(1036, 1062)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_run_resumes(tmp_path, seed):
    setting = draw(seed)
    outcome = compare(setting, tmp_path)
    assert outcome.kind != "differs", (outcome.why, str(setting))


def test_the_seeds_reach_all_kinds():
    settings = [draw(seed) for seed in SEEDS]
    assert {setting.algorithm for setting in settings} == set(ALGORITHMS)
    assert {setting.precision for setting in settings} >= {"32-true", "64-true", "bf16-true", "bf16-mixed", "16-true"}
    assert len({setting.net for setting in settings}) == 8
    assert len({setting.scheduler for setting in settings}) > 8
    assert len({hook for setting in settings for hook, _ in setting.killed_at}) > 0.7 * len(HOOKS)


def make_setting(**changes):
    """8 steps an epoch, 32 in all, validated after each epoch; changed in what a case is about."""
    plain = Setting(
        seed=0,
        algorithm="STACO2",
        optimizer="Adam",
        scheduler="step",
        interval="epoch",
        precision="32-true",
        net="dropout",
        data="tensors",
        workers=0,
        activation="identity",
        clip=None,
        stages={"every_n_steps": 5},
        trainer={"max_epochs": 4},
        stops_early=False,
        saved_by="steps",
        saved_every=3,
        saved_at="on_train_batch_start",
        killed_at=(("on_train_batch_start", 15),),
    )
    return plain._replace(**changes)


UNVALIDATED = {"limit_val_batches": 0}
CASES = {
    "an epoch's last batch, below the loader's length": {
        "trainer": {"max_epochs": 3, "limit_train_batches": 5, **UNVALIDATED},
        "saved_every": 5,
        "killed_at": (("on_train_batch_start", 7),),
    },
    "the same, validated every other epoch": {
        "trainer": {"max_epochs": 3, "limit_train_batches": 0.5, "check_val_every_n_epoch": 2},
        "saved_every": 4,
        "killed_at": (("on_train_batch_start", 6),),
    },
    "the same, up to max_steps": {
        "trainer": {"max_epochs": -1, "max_steps": 13, "limit_train_batches": 5, **UNVALIDATED},
        "saved_every": 5,
        "killed_at": (("on_train_epoch_end", 2),),
    },
    "saved where a batch starts": {"saved_by": "hook", "saved_every": 7},
    "saved by an exception of a validation": {"saved_by": "exception", "killed_at": (("on_validation_batch_end", 5),)},
    "saved by an exception after all of a validation": {
        "saved_by": "exception",
        "killed_at": (("on_validation_epoch_end", 2),),
    },
    "saved by an exception at a validation's end": {
        "saved_by": "exception",
        "scheduler": "plateau",
        "killed_at": (("on_validation_start", 3), ("on_validation_batch_start", 1)),
    },
    "saved by an exception at a batch's end": {"saved_by": "exception", "killed_at": (("on_train_batch_end", 4),)},
    "saved by an exception where a batch starts": {"saved_by": "exception"},
    "killed after the last epoch": {"saved_by": "epoch", "killed_at": (("on_fit_end", 1),)},
    "tied weights in 64-true, saved at a stage's end": {
        "net": "tied",
        "precision": "64-true",
        "data": "numpy",
        "killed_at": (("on_train_batch_start", 17),),
    },
    "batch norm of STACO1, a worker, the best checkpoint": {
        "algorithm": "STACO1",
        "net": "batch norm",
        "precision": "64-true",
        "stages": {"every_n_steps": 5, "batch_norm": "keep"},
        "workers": 1,
        "saved_by": "validation",
        "killed_at": (("on_train_epoch_start", 3),),
    },
    "batch norm of STACO2, a cycle of momentum": {
        "net": "batch norm",
        "optimizer": "momentum",
        "scheduler": "cyclic",
        "interval": "step",
        "trainer": {"max_epochs": -1, "max_steps": 13},
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
        for optimizer in ("NAdam", "ASGD")
        for precision in ("bf16-true", "16-true", "64-true")
    },
    **{f"{name} in 64-true": {"algorithm": name, "precision": "64-true", "net": "batch norm"} for name in ALGORITHMS},
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_resumes(tmp_path, name):
    setting = make_setting(**CASES[name])
    if setting.algorithm == "full batch":
        setting = setting._replace(trainer={"max_epochs": 20})
    outcome = compare(setting, tmp_path)
    assert outcome.kind == "equal", outcome.why
    assert outcome.resumed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_double_precision_is_not_rounded_when_a_fresh_module_is_tested(tmp_path, algorithm):
    setting = make_setting(algorithm=algorithm, precision="64-true", net="batch norm", trainer={"max_epochs": 2})
    torch.manual_seed(0)
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
    setting = make_setting(saved_by="epoch")
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
    outcome = compare(make_setting(), tmp_path)
    assert outcome.kind == "differs"
    assert any("/module/" in name for name in outcome.why)
