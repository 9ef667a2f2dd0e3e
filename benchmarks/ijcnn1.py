"""Seconds of training on ijcnn1 until the test TPAUC(0.5, 0.5) reaches 0.72, and what batch sizes buy.

LibAUC's STACO runs in a bare loop on raw features at its best settings found (learning rate 0.5 or 2, dual steps 1, no
momentum, 32 + 32 samples, all step sizes times 0.1 after 500, 1500 and 2500 steps) with ready-made batches, so that its
sampler isn't timed. STACO2 runs through Lightning on raw features with the same schedule and stages of 100 steps, the
full-batch mode on standardised ones; loading and the exact start are part of their time. Evaluation is off the clock.

The iterates jump about, so a run may touch any value early; "to stay" is the time from which it never falls below the
goal again.

    python -m benchmarks.ijcnn1
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks.common import arguments, bare_trainer, data_folder, header, import_libauc, now, quiet, verdict
from lightning_tpauc import LIBSVMDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, FullBatch
from lightning_tpauc.functional import tpauc_objective, two_way_partial_auroc

GOAL = 0.72


class Part(NamedTuple):
    """Features and labels."""

    x: Tensor
    y: Tensor


class Trace(NamedTuple):
    """Seconds of training and test TPAUC, one entry per evaluation."""

    seconds: list[float]
    tpauc: list[float]

    def touched(self) -> float:
        """When the goal was reached first."""
        return next((s for s, value in zip(self.seconds, self.tpauc, strict=True) if value >= GOAL), math.inf)

    def stayed(self) -> float:
        """From when on the run stayed at the goal."""
        below = [k for k, value in enumerate(self.tpauc) if value < GOAL]
        first = below[-1] + 1 if below else 0
        return self.seconds[first] if first < len(self.seconds) else math.inf


def load(standardize: bool) -> tuple[LIBSVMDataModule, Part, Part]:
    data = LIBSVMDataModule(
        str(data_folder() / "ijcnn1"), "ijcnn1.bz2", "ijcnn1.t.bz2", standardize=standardize, num_pos=32, num_neg=32
    )
    parts = []
    for stage in ("fit", "test"):
        data.setup(stage)
    for loader in (*data.scoring_dataloaders(), data.test_dataloader()):
        batches = list(loader)
        parts.append(Part(torch.cat([b.inputs for b in batches]), torch.cat([b.target for b in batches])))
    train = Part(torch.cat([parts[0].x, parts[1].x]), torch.cat([parts[0].y, parts[1].y]))
    return data, train, parts[2]


@torch.no_grad()
def tpauc(model: nn.Module, test: Part) -> float:
    return two_way_partial_auroc(model(test.x).reshape(-1), test.y, 0.5, 0.5).item()


class Evaluate(Callback):
    """Evaluates the returned solution every few steps with the clock stopped."""

    def __init__(self, test: Part, every: int) -> None:
        self.test, self.every = test, every
        self.trace = Trace([], [])
        self.training = self.resumed = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.resumed = now()  # before the dual variables are started, which is part of training

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % self.every:
            return
        self.training += now() - self.resumed
        shown = pl_module.training_state.show_average()
        self.trace.seconds.append(self.training)
        self.trace.tpauc.append(tpauc(pl_module.backbone, self.test))
        if shown:
            pl_module.training_state.restore_last_iterate()
        self.resumed = now()


def fit(data: LIBSVMDataModule, test: Part, module: TPAUCModule, steps: int, every: int) -> Trace:
    stages = StageCallback(every_n_steps=100)
    evaluate = Evaluate(test, every)
    trainer = bare_trainer(
        max_epochs=-1,
        max_steps=steps,
        limit_val_batches=0,
        callbacks=[evaluate, stages],
    )
    trainer.fit(module, data)
    return evaluate.trace


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [500, 1500, 2500])


def staco(
    data: LIBSVMDataModule, test: Part, seed: int, num_pos: int = 32, num_neg: int = 32, share: bool = False,
    lr: float = 0.5, dual: float = 0.1, steps: int = 3000, every: int = 50,
) -> Trace:  # fmt: skip
    data.num_pos, data.num_neg, data.num_dual_neg, data.seed = num_pos, num_neg, None, seed
    torch.manual_seed(seed)
    algorithm = STACO(alpha=dual, beta=dual, beta_prime=dual, gamma=500.0, share_negatives=share)
    module = TPAUCModule(
        nn.Linear(22, 1),
        algorithm,
        optimizer=lambda p: torch.optim.SGD(p, lr=lr),
        lr_scheduler=decay,
        lr_scheduler_interval="step",
    )
    return fit(data, test, module, steps, every)


def full_batch(data: LIBSVMDataModule, test: Part, optimizer: Any, steps: int, every: int) -> tuple[Trace, nn.Module]:
    torch.manual_seed(0)
    module = TPAUCModule(nn.Linear(22, 1), FullBatch(surrogate="squared_hinge", margin=0.5), optimizer)
    return fit(data, test, module, steps, every), module.backbone


def libauc(train: Part, test: Part, seed: int, lr: float, steps: int = 3000) -> Trace:
    torch.manual_seed(seed)
    loss_class, optimizer_class, _ = import_libauc()
    model = nn.Linear(22, 1)
    num_pos = int(train.y.sum())
    loss = loss_class(data_length=num_pos, alpha=1.0, beta_0=1.0, beta_1=1.0, device="cpu")
    optimizer = optimizer_class(model.parameters(), mode="sgd", lr=lr, momentum=0, device="cpu")
    generator = np.random.default_rng(seed)
    target = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    trace, training = Trace([], []), 0.0
    for step in range(steps):
        if step in (500, 1500, 2500):
            loss.alpha, loss.beta_0, loss.beta_1 = 0.1 * loss.alpha, 0.1 * loss.beta_0, 0.1 * loss.beta_1
            optimizer.param_groups[0]["lr"] *= 0.1
        index = torch.from_numpy(generator.choice(num_pos, 32, replace=False))
        negatives = torch.from_numpy(generator.integers(num_pos, len(train.y), 32))
        inputs, index = train.x[torch.cat([index, negatives])], torch.cat([index, torch.full((32,), -1)])
        start = now()
        optimizer.zero_grad()
        loss(model(inputs), target, index).backward()
        optimizer.step()
        training += now() - start
        if (step + 1) % 50 == 0:
            trace.seconds.append(training)
            trace.tpauc.append(tpauc(model, test))
    return trace


def report(name: str, traces: list[Trace]) -> tuple[float, float]:
    """Print a row; return the medians of the seconds to touch the goal and to stay there."""
    touched = statistics.median(t.touched() for t in traces)
    stayed = statistics.median(t.stayed() for t in traces)
    last = [t.tpauc[-1] for t in traces]
    spread = f" +- {statistics.stdev(last):.4f}" if len(last) > 1 else ""
    total = statistics.median(t.seconds[-1] for t in traces)
    best = statistics.median(max(t.tpauc) for t in traces)
    numbers = f"{touched:.3g} | {stayed:.3g} | {total:.3g} | {best:.4f} | {statistics.fmean(last):.4f}{spread}"
    print(f"| {name} | {numbers} |")
    return touched, stayed


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("ijcnn1, linear")
    raw, raw_train, raw_test = load(standardize=False)
    data, train, test = load(standardize=True)
    seeds = range(1 if options.quick else 5)
    print(f"| side | seconds to touch {GOAL} | to stay | of the whole run | best TPAUC | last TPAUC |")
    print("|---|---|---|---|---|---|")
    slow = [
        report(f"LibAUC's STACO, bare loop, lr {lr:g}", [libauc(raw_train, raw_test, k, lr) for k in seeds])
        for lr in (0.5, 2.0)
    ]
    sides: dict[str, Callable[[int], Trace]] = {
        "STACO2, 32 + 32 + 32": lambda k: staco(raw, raw_test, k),
        "STACO2, 32 + 32, shared": lambda k: staco(raw, raw_test, k, share=True),
        "STACO2, 128 + 128, shared": lambda k: staco(raw, raw_test, k, 128, 128, share=True),
        "STACO2, 32 + 256, shared": lambda k: staco(raw, raw_test, k, 32, 256, share=True),
        "STACO2, 256 + 32, shared": lambda k: staco(raw, raw_test, k, 256, 32, share=True),
        "STACO2, 256 + 1024, shared": lambda k: staco(raw, raw_test, k, 256, 1024, share=True),
        "STACO2, 256 + 1024, shared, lr 2": lambda k: staco(raw, raw_test, k, 256, 1024, share=True, lr=2.0),
    }
    if options.quick:
        sides = dict(list(sides.items())[:2])
    ours = [report(name, [side(k) for k in seeds]) for name, side in sides.items()]
    # four iterations a step, so that the clock stops every 0.04 s and not every 0.15
    short = partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe")
    lbfgs, model = full_batch(data, test, short, 15, 1)
    adam, _ = full_batch(data, test, partial(torch.optim.Adam, lr=0.1), 150, 10)
    exact = [report("FullBatch, LBFGS", [lbfgs]), report("FullBatch, Adam", [adam])]
    with torch.no_grad():
        scores = model(train.x).reshape(-1)
        objective = tpauc_objective(
            scores[train.y == 1], scores[train.y == 0], surrogate="squared_hinge", margin=0.5
        ).item()
    print(f"objective after {lbfgs.seconds[-1]:.2f} s of LBFGS: {objective:.6f}")
    for side, times in (("STACO2", ours), ("FullBatch", exact)):
        for k, goal in enumerate(("touch", "stay at")):
            ratio = min(t[k] for t in slow) / min(t[k] for t in times)
            verdict(f"LibAUC / {side}, seconds to {goal} {GOAL}", ratio, 3.0, at_least=True)


if __name__ == "__main__":
    main()
