"""A training that breaks off and is resumed: its data, its module, what breaks it, and what is compared."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.multiprocessing.spawn import ProcessRaisedException

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import make_trainer
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close

DIM, NUM_POS, NUM_NEG = 5, 24, 60


class CrashError(Exception):
    """Stands for whatever kills a run."""


class Crash(Callback):
    def __init__(self, at_step):
        self.at_step = at_step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.at_step:
            raise CrashError


class Losses(Callback):
    def __init__(self):
        self.by_step = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.by_step[trainer.global_step] = outputs["loss"].clone()


def make_problem(num_pos=NUM_POS, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_pos + NUM_NEG, DIM, generator=generator)
    y = torch.zeros(num_pos + NUM_NEG, dtype=torch.int64)
    y[torch.randperm(num_pos + NUM_NEG, generator=generator)[:num_pos]] = 1
    return x + 0.5 * y[:, None], y


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def make_module(gamma=4.0, touch_steps=False, **kwargs):
    net = make_net()

    class Module(TPAUCModule):
        def configure_optimizers(self):
            if touch_steps:
                assert self.trainer.estimated_stepping_batches > 0
            return super().configure_optimizers()

    return Module(
        net,
        STACO(0.6, 0.4, gamma=gamma, alpha=0.3, beta=0.2, beta_prime=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02),
        lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5),
        **kwargs,
    )


def make_datamodule(workers=0, **kwargs):
    x, y = make_problem(**kwargs)
    return PosNegDataModule(
        (x, y), val_dataset=(x[:40], y[:40]), num_pos=4, num_neg=8, num_workers=workers, batch_size=16
    )


def assert_same_end(straight, resumed):
    for (name, a), (_, b) in zip(straight.state_dict().items(), resumed.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    for name, value in straight.algorithm.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(resumed.algorithm.state_dict()[name])), name
    assert straight.training_state.average.stage == resumed.training_state.average.stage
    assert straight.training_state.average.count == resumed.training_state.average.count
    for kind in ("anchor", "mean"):
        for a, b in zip(
            getattr(straight.training_state.average, kind), getattr(resumed.training_state.average, kind), strict=True
        ):
            assert torch.equal(a, b), kind
    assert straight.training_state.batches_seen == resumed.training_state.batches_seen


class Dump(Callback):
    """Every rank writes down what it ends with; nothing else comes back from another process."""

    def __init__(self, folder):
        self.folder = folder
        self.losses = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].clone())

    def on_train_end(self, trainer, pl_module):
        parts = {
            "module": pl_module.backbone.state_dict(),
            "algorithm": pl_module.algorithm.state_dict(),
            "average": pl_module.training_state.state_dict()["average"],
            "optimizer": trainer.optimizers[0].state_dict()["state"],
            "generator": torch.get_rng_state(),
            "losses": torch.stack(self.losses),
        }
        torch.save(flat(parts), self.folder / f"rank{trainer.global_rank}of{trainer.world_size}.pt")


class OwnGenerator(Callback):
    def on_train_start(self, trainer, pl_module):
        if trainer.global_step == 0:
            torch.manual_seed(100 + trainer.global_rank)


def fit_on_ranks(module, data, folder, world, callbacks, *, steps, every=3, crash=None, ckpt=None):
    """Train on ``world`` forked ranks until the end or the crash; returns what each rank ended with."""
    # ranks would otherwise draw the same masks, and a mix-up of their generators would go unnoticed
    callbacks = [*callbacks, OwnGenerator(), Dump(folder)]
    callbacks += [ModelCheckpoint(folder, save_last=True, every_n_train_steps=every)]
    trainer = make_trainer(
        precision="32-true",
        devices=world,
        strategy="ddp_fork" if world > 1 else "auto",
        callbacks=callbacks + ([Crash(crash)] if crash is not None else []),
        enable_checkpointing=True,
        max_epochs=-1,
        max_steps=steps,
    )
    if crash is None:
        trainer.fit(module, data, ckpt_path=ckpt)
        return [torch.load(folder / f"rank{rank}of{world}.pt") for rank in range(world)]
    with pytest.raises((CrashError, ProcessRaisedException), match=None if world == 1 else "CrashError"):
        trainer.fit(module, data, ckpt_path=ckpt)
    return []


def assert_resumes_to_the_last_bit(run_ranks, folder, crash=14):
    """``run_ranks(folder, crash=, ckpt=)`` resumed equals ``run_ranks`` unbroken, on every rank."""
    unbroken = run_ranks(folder / "a")
    run_ranks(folder / "b", crash=crash)
    torch.manual_seed(99)
    resumed = run_ranks(folder / "b", ckpt=folder / "b" / "last.ckpt")
    assert not torch.equal(unbroken[0]["/generator"], unbroken[1]["/generator"])
    for ours, theirs in zip(resumed, unbroken, strict=True):
        later = ours.pop("/losses")
        assert 0 < len(later) < len(theirs["/losses"]) - 8
        assert torch.equal(later, theirs["/losses"][-len(later) :])
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name


def assert_resumes_on_other_ranks(run_ranks, folder, before, after):
    """``run_ranks(folder, world, net, crash=, ckpt=)`` broken on ``before`` ranks ends on ``after`` as on one."""

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(DIM, 8), nn.Tanh(), nn.Linear(8, 1))

    (unbroken,) = run_ranks(folder / "a", 1, net())
    run_ranks(folder / "b", before, net(), crash=14)
    for ours in run_ranks(folder / "b", after, net(), ckpt=folder / "b" / "last.ckpt"):
        later = ours.pop("/losses")
        assert_close(later, unbroken["/losses"][12:], "trajectory32")
        for name, value in ours.items():
            if name != "/generator":
                assert_close(value, unbroken[name], "trajectory32")
