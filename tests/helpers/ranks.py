"""One training in one process and in several, and what each rank ends with."""

import math
from functools import partial

import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import make_trainer

DIM = 5


class Dump(Callback):
    """Every rank writes down what it holds when training ends, and what it validated."""

    def __init__(self, folder):
        self.folder = folder
        self.losses = []
        self.evaluated = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].clone())

    def on_validation_epoch_end(self, trainer, pl_module):
        self.evaluated.append([b.clone() for _, b in pl_module.named_buffers() if b.is_floating_point()])

    def on_train_end(self, trainer, pl_module):
        torch.save(
            {
                "state": {k: torch.as_tensor(v) for k, v in pl_module.algorithm.state_dict().items()},
                "weights": {n: v for n, v in pl_module.state_dict().items() if not n.endswith("_extra_state")},
                "mean": pl_module.training_state.average.mean,
                "losses": torch.stack(self.losses),
                "buffers": self.evaluated,
                "metrics": {k: v.clone() for k, v in trainer.callback_metrics.items()},
                "steps": trainer.global_step,
            },
            self.folder / f"rank{trainer.global_rank}of{trainer.world_size}.pt",
        )


def make_problem(num_pos=30, num_neg=80, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(num_pos + num_neg, DIM, generator=generator, dtype=torch.float64)
    y = torch.zeros(num_pos + num_neg, dtype=torch.int64)
    y[torch.randperm(num_pos + num_neg, generator=generator)[: num_pos - 1]] = 1
    y[-1] = 1  # the validation part holds a positive however few there are
    x[y == 1] += 0.5
    return x.to(dtype), y


def make_net(kind, dtype):
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Linear(DIM, 1).to(dtype)
    return nn.Sequential(nn.Linear(DIM, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).to(dtype)


def fit(folder, world, *, kind="linear", gamma=math.inf, precision="64-true", num_pos=12, num_neg=18, positives=30,
        algorithm=None, max_steps=50, stage=25, strategy="ddp_fork"):  # fmt: skip
    dtype = torch.float64 if precision == "64-true" else torch.float32
    x, y = make_problem(positives, dtype=dtype)
    data = PosNegDataModule(
        (x, y), val_dataset=(x[-37:], y[-37:]), num_pos=num_pos // world, num_neg=num_neg // world, batch_size=5
    )
    module = TPAUCModule(
        make_net(kind, dtype),
        algorithm or STACO(0.6, 0.4, gamma=gamma, alpha=0.3, beta=0.2, beta_prime=0.1),
        partial(torch.optim.SGD, lr=0.05, momentum=0.5),
    )
    trainer = make_trainer(
        precision=precision,
        devices=world,
        strategy=strategy if world > 1 else "auto",
        max_epochs=-1,
        max_steps=max_steps,
        callbacks=[Dump(folder), StageCallback(every_n_steps=stage)],
        num_sanity_val_steps=1,
    )
    trainer.fit(module, data)
    return [torch.load(folder / f"rank{r}of{world}.pt") for r in range(world)]
