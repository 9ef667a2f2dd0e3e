"""Trains on two processes, of which one fails: with an exception, or with scores that are not finite.

The other one then waits for it in a collective, or does not react at all.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO


class Fail(Callback):
    """Fails on one rank before step 3."""

    def __init__(self, rank: int, how: str, others: str) -> None:
        self.rank, self.how, self.others = rank, how, others

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if trainer.global_step != 3:
            return
        if trainer.global_rank != self.rank:
            if self.others == "stuck":  # as in a collective of a backend that does not notice
                Path("here").write_text(str(os.getpid()))
                Path("here").rename("stuck")
                time.sleep(600)
            return
        while self.others == "stuck" and not Path("stuck").exists():  # the other one is to be found by its number
            time.sleep(0.05)
        if self.how == "exception":
            msg = f"rank {self.rank} is broken on purpose"
            raise ValueError(msg)
        with torch.no_grad():
            for parameter in pl_module.parameters():
                parameter.fill_(torch.nan)


def fit(strategy: str, rank: int, how: str, others: str = "go_on") -> None:
    """A run that would take minutes, and does not get that far."""
    generator = torch.Generator().manual_seed(3)
    y = (torch.arange(96) % 3 == 0).long()
    x = torch.randn(96, 5, generator=generator) + 0.5 * y[:, None]
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_steps=100_000,
        max_epochs=-1,
        callbacks=[Fail(rank, how, others)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(TPAUCModule(nn.Linear(5, 1), STACO()), PosNegDataModule((x, y), num_pos=2, num_neg=4))


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--others", choices=["go_on", "stuck"], default="go_on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    fit("ddp", args.rank, "exception", args.others)


if __name__ == "__main__":
    main()
