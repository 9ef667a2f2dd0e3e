"""Trains under ModelParallelStrategy (FSDP2) on two processes and writes down what came out.

Run as ``python tests/helpers/scripts/model_parallel.py FOLDER``: Lightning starts the second process itself. The test
runs :func:`fit` in one process for comparison.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, SONX, STACO, Algorithm
from lightning_tpauc.distributed import whole

DIM, STEPS, BROKEN_AT = 5, 24, 11


class Module(TPAUCModule):
    """A network of which one layer, and then the whole of it, is sharded when the strategy has a mesh."""

    batch_norm = False

    def configure_model(self) -> None:
        if hasattr(self, "backbone"):
            return
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(8) if self.batch_norm else nn.LayerNorm(8)
        self.backbone = nn.Sequential(nn.Linear(DIM, 8), norm, nn.Tanh(), nn.Linear(8, 1))
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.backbone[3], mesh=mesh)
            # the root then stays unsharded after a forward pass without a backward pass, that is, after validation
            fully_shard(self.backbone, mesh=mesh, reshard_after_forward=False)


class Record(Callback):
    """Losses, and the weights and areas of every validation."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.evaluated: list[list[torch.Tensor]] = []
        self.areas: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].clone())
        sharded = isinstance(trainer.strategy, ModelParallelStrategy)
        assert all(isinstance(p, DTensor) == sharded for p in trained(trainer))

    def on_validation_epoch_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.evaluated.append([whole(p.detach()).clone() for p in trained(trainer)])

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.areas.append(trainer.callback_metrics["val/tpauc"].clone())


def trained(trainer: Trainer) -> list[torch.Tensor]:
    """The parameters as the optimizer has them, which is always the sharded ones."""
    parameters: list[torch.Tensor] = trainer.optimizers[0].param_groups[0]["params"]
    return parameters


def staco2() -> STACO:
    """With terms that matter: clipping, proximal term and average all act within these few steps."""
    return STACO(0.6, 0.4, gamma=2.0, alpha=0.3, beta=0.2, beta_prime=0.1)


def fit(
    folder: Path,
    algorithm: Algorithm,
    *,
    devices: int = 1,
    sharded: bool = True,
    in_one_file: bool = True,
    batch_norm: bool = False,
    max_steps: int = STEPS,
    resume: bool = False,
) -> dict[str, Any]:
    """One run, or the rest of one; checkpoints go to ``folder``."""
    generator = torch.Generator().manual_seed(3)
    y = (torch.arange(96) % 3 == 0).long()
    x = torch.randn(96, DIM, generator=generator) + 0.5 * y[:, None]
    data = PosNegDataModule((x, y), val_dataset=(x, y), num_pos=4 // devices, num_neg=8 // devices, batch_size=10)
    module = Module(  # the run is broken by a smaller `max_steps`: nothing here may go by its length
        algorithm=algorithm,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        gradient_clip_val=0.2,
        warmup=0,
    )
    module.batch_norm = batch_norm
    strategy = ModelParallelStrategy(
        data_parallel_size=devices, tensor_parallel_size=1, save_distributed_checkpoint=not in_one_file
    )
    record = Record()
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="auto" if devices == 1 else strategy if sharded else "ddp",
        precision="32-true",
        max_steps=max_steps,
        max_epochs=-1,
        val_check_interval=3,  # amid a stage, and of an epoch
        check_val_every_n_epoch=None,
        callbacks=[StageCallback(every_n_steps=7, shrink_rectangle=False), record, saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data, ckpt_path=folder / "step=10.ckpt" if resume else None)
    assert module.training_state.average is not None
    return {
        "steps": trainer.global_step,
        "weights": [whole(p.detach()) for p in trained(trainer)],
        "state": module.algorithm.state_dict(),
        "training": module.training_state.state_dict(),
        "losses": torch.stack(record.losses),
        "evaluated": record.evaluated,
        "areas": torch.stack(record.areas),
        "buffers": [b.clone() for b in module.buffers()],
    }


CASES: dict[str, Any] = {"staco2": staco2, "sonx": lambda: SONX(gamma=0.1), "pauci": PAUCI}


def main(folder: Path) -> None:
    """All cases one after the other, since starting the processes is what takes time."""
    torch.set_num_threads(1)
    results = {name: fit(folder / name, make(), devices=2) for name, make in CASES.items()}
    # broken and resumed, from one file and from a folder with a file per process; statistics differ between ranks
    for in_one_file in (True, False):
        path = folder / f"norm {in_one_file}"
        run = partial(fit, algorithm=staco2(), devices=2, in_one_file=in_one_file, batch_norm=True)
        results[f"unbroken {in_one_file}"] = run(path / "unbroken")
        run(path, max_steps=BROKEN_AT)
        results[f"resumed {in_one_file}"] = run(path, resume=True)
    # batch normalisation depends on the number of processes, so the other side has two as well
    results["ddp"] = fit(folder / "ddp", staco2(), devices=2, sharded=False, batch_norm=True)
    rank = torch.distributed.get_rank()
    torch.save(results, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
