"""Checkpoints that a user's own callback or module saves, in any hook: the resumed run ends as the unbroken one."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.training.needed_callbacks import in_order
from tests.helpers.problems import bare_trainer
from tests.helpers.resuming import CrashError, assert_same_end, make_problem
from tests.helpers.scripts.random_runs import SAVED_AT, SAVERS, compare
from tests.helpers.tensors import flat
from tests.integration.test_random_resume import make_setting

pytestmark = pytest.mark.filterwarnings("ignore")

#: What steps schedules, stops and saves by a validation, in the middle of an epoch or at its end.
RUNS = {
    "plateau": {"scheduler": "plateau", "trainer": {"max_epochs": 4}},
    "plateau by steps, validated amid epochs": {
        "scheduler": "plateau",
        "interval": "step",
        "trainer": {"max_epochs": 4, "val_check_interval": 2},
        "watched": True,
    },
    "stopped early": {"stops_early": True, "optimizer": "SGD", "trainer": {"max_epochs": 12}, "watched": True},
    "max_steps": {"trainer": {"max_epochs": -1, "max_steps": 19, "val_check_interval": 3}},
}


def make_run(hook, saver, name):
    ends = ("on_train_end", "on_fit_end")
    every = 1 if hook in (*ends, "on_train_start") else 3 if "validation_batch" in hook else 7 if "batch" in hook else 2
    breaks = 99 if hook in ends else 5 if hook == "on_train_start" else 19 if "max_steps" in name else 21
    return make_setting(
        saved_by="hook",
        saver=saver,
        saved_at=hook,
        saved_every=every,
        killed_at=(("on_train_batch_start", breaks),),
        stages={"every_n_steps": 5, "growth": 1.5},
        seed=1,
    )._replace(**RUNS[name])


#: Every hook with every saver, each in one of the runs, so that every hook and every saver meets every run.
MET = [
    (hook, saver, list(RUNS)[(i + j) % len(RUNS)]) for i, hook in enumerate(SAVED_AT) for j, saver in enumerate(SAVERS)
]


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "saver", "name"), MET)
def test_every_hook_of_every_saver_resumes(tmp_path, hook, saver, name):
    outcome = compare(make_run(hook, saver, name), tmp_path)
    assert outcome.kind == "equal", outcome.why
    assert outcome.resumed


@pytest.mark.parametrize("hook", ["on_train_start", "on_validation_end", "on_train_epoch_end", "on_train_batch_end"])
def test_a_callback_that_comes_first_resumes(tmp_path, hook):
    outcome = compare(make_run(hook, "first callback", "plateau"), tmp_path)
    assert outcome.kind == "equal", outcome.why
    assert outcome.resumed


class Counts(Callback):
    """Stateful, and so sees a hook exactly as often in a broken run as in an unbroken one."""

    def __init__(self, name):
        self.name, self.calls = name, {"on_validation_end": 0, "on_train_epoch_end": 0}

    @property
    def state_key(self):
        return f"Counts{self.name}"

    def state_dict(self):
        return dict(self.calls)

    def load_state_dict(self, state):
        self.calls = dict(state)

    def on_validation_end(self, trainer, pl_module):
        self.calls["on_validation_end"] += not trainer.sanity_checking

    def on_train_epoch_end(self, trainer, pl_module):
        self.calls["on_train_epoch_end"] += 1


class Saves(Callback):
    def __init__(self, hook, epoch, path):
        self.epoch, self.path = epoch, path
        setattr(self, hook, self.act)

    def act(self, trainer, *args):
        if trainer.current_epoch == self.epoch and not trainer.sanity_checking:
            trainer.save_checkpoint(self.path)


class Breaks(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 3 and batch_idx == 2:
            raise CrashError


def make_tasks():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator)
    y = (x[:, :3] + 0.7 * torch.randn(90, 3, generator=generator) > 0.8).long()
    return x, y


class Logging(TPAUCModule):
    """Logs at an epoch's end, which the module does after all callbacks but those that save and stop."""

    def on_train_epoch_end(self):
        self.log("own", float(self.current_epoch))


def run(path, saver, *, breaks=False, ckpt=None, labels=False, own_loader=False, **options):
    x, y = make_tasks() if labels else make_problem()
    torch.manual_seed(0 if ckpt is None else 1)
    net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.3), nn.Linear(8, 3 if labels else 1))
    torch.manual_seed(5)
    kind = OwnLoader if own_loader else PosNegDataModule
    data = kind((x, y), (x[:40], y[:40]), num_pos=4, num_neg=8, batch_size=16)
    module = Logging(net, optimizer=lambda p: torch.optim.SGD(p, lr=0.05))
    stopping = EarlyStopping("val/auroc", mode="max", patience=50, min_delta=9.0)  # counts every look
    best = ModelCheckpoint(path / "best", monitor="val/auroc", mode="max", save_top_k=-1)
    by_validation = ModelCheckpoint(
        path / "each", monitor="val/tpauc", mode="max", save_top_k=-1, save_on_train_epoch_end=False
    )
    before, after = Counts("before"), Counts("after")
    callbacks = [before, *saver, after, stopping, best, by_validation, *([Breaks()] if breaks else [])]
    trainer = bare_trainer(callbacks=callbacks, enable_checkpointing=True, **{"max_epochs": 5, **options})
    trainer.fit(module, data, ckpt_path=ckpt)
    seen = {
        "metrics": dict(trainer.callback_metrics),
        "stopping": stopping.state_dict(),
        "best": [(c.best_model_score, len(c.best_k_models)) for c in (best, by_validation)],
        "calls": [before.calls, after.calls],
        "optimizer": trainer.optimizers[0].state_dict(),
        "generator": torch.get_rng_state(),
        "batches": trainer.fit_loop.epoch_loop._batches_that_stepped,
    }
    return SimpleNamespace(module=module, seen=flat(seen))


class OwnLoader(PosNegDataModule):
    """Validated with a loader that draws from torch's own generator whenever it begins."""

    def val_dataloader(self):
        x, y = make_problem()
        return DataLoader(TensorDataset(x[:40], y[:40]), batch_size=7)


HOOKS = [hook for hook in SAVED_AT if hook not in ("on_train_end", "on_fit_end", "on_train_start")]


def each_hook(*fast, also=""):
    """The hooks to save in, most of them for the slow lane."""
    return [pytest.param(h, marks=() if h in fast else pytest.mark.slow) for h in HOOKS if also in h]


def assert_resumes(tmp_path, hook, **options):
    saved = tmp_path / "own.ckpt"
    straight = run(tmp_path / "a", [Saves(hook, 2, tmp_path / "unused.ckpt")], **options)
    with pytest.raises(CrashError):
        run(tmp_path / "b", [Saves(hook, 2, saved)], breaks=True, **options)
    resumed = run(tmp_path / "b", [Saves(hook, 99, saved)], ckpt=saved, **options)
    assert_same_end(straight.module, resumed.module)
    assert straight.seen.keys() == resumed.seen.keys()
    different = [name for name, value in straight.seen.items() if not torch.equal(value, resumed.seen[name])]
    assert different == []


@pytest.mark.parametrize("hook", each_hook("on_train_batch_end", "on_validation_end", "on_train_epoch_end"))
def test_callbacks_before_and_after_the_saver_are_called_as_often(tmp_path, hook):
    assert_resumes(tmp_path, hook)


@pytest.mark.parametrize("hook", each_hook("on_validation_end"))
def test_several_labels_resume(tmp_path, hook):
    assert_resumes(tmp_path, hook, labels=True, val_check_interval=2, check_val_every_n_epoch=1)


@pytest.mark.parametrize("hook", each_hook("on_validation_batch_start", also="validation"))
def test_a_validation_loader_that_draws_random_numbers_resumes(tmp_path, hook):
    assert_resumes(tmp_path, hook, own_loader=True, max_epochs=5)


def test_the_needed_callbacks_come_first():
    given = [Counts("a"), ModelCheckpoint(), EarlyStopping("val/tpauc"), StageCallback(), Counts("b")]
    order = in_order(given)
    assert [type(c).__name__ for c in order] == [
        "StageCallback",
        "EarlyStopping",
        "Counts",
        "Counts",
        "ModelCheckpoint",
    ]
    assert [c.name for c in order[2:4]] == ["a", "b"]
