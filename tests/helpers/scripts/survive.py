"""A run that goes on from its last checkpoint if there is one, and writes its curves and its end to files.

``tests/integration/test_kill.py`` and ``benchmarks/kill_resume.py`` kill it and compare it with one left alone.
Dropout, batch normalisation, random augmentation, momentum, a scheduler, stages and validation are all in it.
"""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import Dataset

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.tensors import flat

DIM, NUM_POS, NUM_NEG = 5, 24, 60


class Setting(NamedTuple):
    """How a run is set up; 24 positives by 4 and 60 negatives by 8 are 8 steps an epoch."""

    workers: int = 0
    #: Steps between checkpoints; 0 saves at the end of every epoch, -1 after every validation, the best one too.
    every: int = 3
    #: What ends the run: ``max_epochs``, ``max_steps`` amid an epoch, or ``max_epochs`` before ``max_steps``.
    ends: Literal["epochs", "steps", "both"] = "epochs"
    #: Whether the optimizer asks for ``estimated_stepping_batches``, which loads the data early.
    steps_known: bool = False
    ranks: int = 1
    epochs: int = 4
    #: Steps between validations; 0 validates at the end of every epoch, -1 never.
    validate_every: int = 0
    #: Whether the learning rate follows the validation metric.
    plateau: bool = False


class Noisy(Dataset[Tensor]):
    """Examples with fresh noise each time they are read."""

    def __init__(self, x: Tensor, targets: Tensor) -> None:
        self.x, self.targets = x, targets

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Tensor:
        return self.x[row] + 0.1 * torch.randn(DIM)


class Module(TPAUCModule):
    """Reads the number of steps before training, as schedulers with a warm-up do."""

    steps_known = False

    def configure_optimizers(self) -> Any:
        if self.steps_known:
            assert self.trainer.estimated_stepping_batches > 0
        return super().configure_optimizers()


class Curves(Logger):
    """Appends each value to a file at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    name, version = "curves", 0

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with self.path.open("a") as file:
            for name, value in metrics.items():
                file.write(json.dumps([name, step, float(value).hex()]) + "\n")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


class Kill(Callback):
    """SIGKILL at a chosen point of a chosen step, to this process alone."""

    def __init__(self, where: str, step: int) -> None:
        self.where, self.step = where, step

    def _kill(self, trainer: Trainer, where: str, step: int) -> None:
        if where == self.where and step == self.step and not trainer.sanity_checking:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self._kill(trainer, "step", trainer.global_step)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._kill(trainer, "stage", trainer.global_step)  # after StageCallback, before the checkpoint

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        self._kill(trainer, "validation", trainer.global_step)

    def setup(self, trainer, pl_module, stage):
        self.trainer = trainer
        if self.where == "save":
            self.save, torch.save = torch.save, self._save_half
        if self.where == "saved":
            self.rename, Path.replace = Path.replace, lambda *names: self._replace(*names)

    def _replace(self, source: Path, target: Path) -> Any:
        renamed = self.rename(source, target)
        if target.name == "last.ckpt":
            self._kill(self.trainer, "saved", self.trainer.global_step)
        return renamed

    def _save_half(self, content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if self.trainer.global_step == self.step and isinstance(file, io.BufferedWriter):
            file.write(b"PK half of a checkpoint")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.save(content, file, *args, **kwargs)


class End(Callback):
    """What each rank ends with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        parts = {
            "module": pl_module.state_dict(),
            "algorithm": pl_module.algorithm.state_dict(),
            "iterates": pl_module.training_state.average.state_dict(),
            "memory": pl_module.training_state.memory.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
            "position": [pl_module.training_state.batches_seen, trainer.global_step, trainer.current_epoch],
            "generator": torch.get_rng_state(),
        }
        torch.save(flat(parts), self.folder / f"end{trainer.global_rank}.pt")


def checkpoint_of(folder: Path) -> Path | None:
    """The last checkpoint, if the run got that far."""
    path = folder / "checkpoints" / "last.ckpt"
    return path if path.exists() else None


def step_decay(optimizer: torch.optim.Optimizer) -> Any:
    """Halves the learning rate every other epoch."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def reduce_on_plateau(optimizer: torch.optim.Optimizer) -> Any:
    """Takes every validation after the first for a disappointment."""
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.8, patience=0, threshold=10.0)


def make_module(setting: Setting) -> Module:
    """The model and its training."""
    torch.manual_seed(0)
    module = Module(
        nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)),
        STACO(0.6, 0.4, gamma=4.0, alpha=0.3, beta=0.2, beta_prime=0.1),
        lambda p: torch.optim.Adam(p, lr=0.02),
        reduce_on_plateau if setting.plateau else step_decay,
    )
    module.steps_known = setting.steps_known
    return module


def make_data(setting: Setting) -> PosNegDataModule:
    """Noisy examples, validated on clean ones."""
    generator = torch.Generator().manual_seed(3)
    y = torch.zeros(NUM_POS + NUM_NEG, dtype=torch.int64)
    y[torch.randperm(len(y), generator=generator)[:NUM_POS]] = 1
    x = torch.randn(len(y), DIM, generator=generator) + 0.5 * y[:, None]
    return PosNegDataModule(
        Noisy(x, y),
        val_dataset=(x[:40], y[:40]),
        num_pos=4 // setting.ranks,
        num_neg=8 // setting.ranks,
        num_workers=setting.workers,
        batch_size=16,
    )


def run(folder: Path, setting: Setting, extra: tuple[Callback, ...] = ()) -> None:
    """Start the run, or go on with it."""
    saver = ModelCheckpoint(
        folder / "checkpoints",
        save_last=True,
        monitor="val/tpauc" if setting.every < 0 else None,
        mode="max",
        every_n_train_steps=setting.every if setting.every > 0 else None,
        save_on_train_epoch_end={0: True, -1: False}.get(setting.every),
    )
    checkpoint = checkpoint_of(folder)
    if checkpoint is not None:
        torch.manual_seed(99)  # no luck with generators that nobody restores
    trainer = Trainer(
        accelerator="cpu",
        devices=setting.ranks,
        strategy="ddp_fork" if setting.ranks > 1 else "auto",
        max_epochs=-1 if setting.ends == "steps" else setting.epochs,
        max_steps={"epochs": -1, "steps": 8 * setting.epochs - 3, "both": 1000}[setting.ends],
        val_check_interval=setting.validate_every if setting.validate_every > 0 else None,
        check_val_every_n_epoch=None if setting.validate_every > 0 else 1,
        limit_val_batches=0 if setting.validate_every < 0 else None,
        callbacks=[StageCallback(every_n_steps=5), LearningRateMonitor(), *extra, End(folder), saver],
        logger=Curves(folder / "curves.jsonl"),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(make_module(setting), make_data(setting), ckpt_path=checkpoint)


def curves(folder: Path) -> dict[tuple[str, int], str]:
    """The logged value of each name at each step; where a step was taken twice, the later one."""
    lines = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
    return {(name, step): value for name, step, value in lines}


def differences(folder: Path, unbroken: Path, ranks: int = 1) -> list[str]:
    """What a run in ``folder`` ended with that the unbroken one did not, bit for bit."""
    found = []
    for rank in range(ranks):
        ours, theirs = (torch.load(path / f"end{rank}.pt") for path in (folder, unbroken))
        same = {name: name in ours and torch.equal(ours[name], value) for name, value in theirs.items()}
        found += [f"rank {rank}: {name}" for name, equal in same.items() if not equal]
        found += [f"rank {rank}: {name}" for name in ours.keys() - theirs.keys()]
    logged, expected = curves(folder), curves(unbroken)
    keys = sorted(logged.keys() | expected.keys(), key=lambda key: (key[1], key[0]))
    found += [
        f"curve {name} at {step}" for name, step in keys if logged.get((name, step)) != expected.get((name, step))
    ]
    return found
