"""What batch sizes and shared negatives buy on Tox21 (NR-AR) with GIN: validation TPAUC against training time.

Every side starts from the same cross-entropy model and trains with STACO2 for the same number of seconds; evaluation is
off the clock. It runs on the first folds of a cross-validation, each with its own start, at two learning rates; the row
shows the rate with the better mean validation value at the end. Test values are printed beside it and choose nothing.

    python -m benchmarks.tox21
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from benchmarks.common import arguments, bare_trainer, data_folder, header, now, quiet
from lightning_tpauc import SMILESDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.models import GIN

MARKS = (0.125, 0.25, 0.5, 1.0)


class Side(NamedTuple):
    """Sizes of a step."""

    num_pos: int
    num_neg: int
    shared: bool

    def __str__(self) -> str:
        return f"{self.num_pos} + {self.num_neg}{', shared' if self.shared else f' + {self.num_neg}'}"


class Trace(NamedTuple):
    """Validation TPAUC at the marks, test TPAUC at the end, and steps made."""

    val: list[float]
    test: float
    steps: int


SIDES = (
    Side(32, 32, False),
    Side(32, 32, True),
    Side(16, 48, True),
    Side(64, 64, True),
    Side(32, 224, True),
    Side(128, 128, True),
    Side(64, 448, True),
)


class Clock(Callback):
    """Evaluates at the marks with the clock stopped, then ends the run."""

    def __init__(self, data: SMILESDataModule, seconds: float) -> None:
        self.data, self.marks = data, [mark * seconds for mark in MARKS]
        self.trace = Trace([], 0.0, 0)
        self.training = self.resumed = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.resumed = now()  # before the dual variables are started, which is part of training

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seconds = self.training + now() - self.resumed
        if seconds < self.marks[len(self.trace.val)]:
            return
        self.training = seconds
        shown = pl_module.training_state.show_average()
        last = len(self.trace.val) + 1 == len(self.marks)
        self.trace.val.append(tpauc(pl_module, self.data.val_dataloader()))
        if last:
            self.trace = Trace(self.trace.val, tpauc(pl_module, self.data.test_dataloader()), trainer.global_step)
            trainer.should_stop = True
        if shown:
            pl_module.training_state.restore_last_iterate()
        self.resumed = now()


@torch.no_grad()
def tpauc(module: TPAUCModule, loader: Any) -> float:
    """TPAUC(0.5, 0.5) in evaluation mode."""
    module.eval()
    batches = list(loader)
    scores = torch.cat([module(batch.inputs).reshape(-1) for batch in batches])
    module.train()
    return two_way_partial_auroc(scores, torch.cat([batch.target for batch in batches]), 0.5, 0.5).item()


def load(cache: str, fold: int) -> SMILESDataModule:
    data = SMILESDataModule(
        "tox21.csv.gz",
        "NR-AR",
        root=str(data_folder() / "tox21"),
        cache_dir=cache,
        train_with_val=True,
        num_folds=5,
        fold=fold,
        batch_size=256,
    )
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    return data


def pretrain(data: SMILESDataModule, fold: int, epochs: int) -> dict[str, Any]:
    data.num_pos = data.num_neg = 32
    data.num_dual_neg = None
    seed_everything(fold, verbose=False)
    module = TPAUCModule(GIN(), CrossEntropy(average=False), optimizer=lambda p: torch.optim.Adam(p, lr=1e-3))
    bare_trainer(max_epochs=epochs, limit_val_batches=0).fit(module, data)
    print(f"start of fold {fold}: validation {tpauc(module, data.val_dataloader()):.3f}", flush=True)
    return module.state_dict()


def train(
    data: SMILESDataModule, start: dict[str, Any], side: Side, lr: float, gamma: float, fold: int, seconds: float
) -> Trace:
    data.num_pos, data.num_neg, data.num_dual_neg = side.num_pos, side.num_neg, 0 if side.shared else None
    seed_everything(fold, verbose=False)
    algorithm = STACO(gamma=gamma, share_negatives=side.shared)
    module = TPAUCModule(GIN(), algorithm, lambda p: torch.optim.SGD(p, lr=lr), score_activation="sigmoid")
    module.load_state_dict(start)
    clock = Clock(data, seconds)
    bare_trainer(max_epochs=-1, limit_val_batches=0, callbacks=[clock]).fit(module, data)
    return clock.trace


def row(side: Side, traces: dict[float, list[Trace]]) -> str:
    lr = max(traces, key=lambda rate: statistics.fmean(trace.val[-1] for trace in traces[rate]))
    chosen = traces[lr]
    at_marks = [statistics.fmean(values) for values in zip(*(trace.val for trace in chosen), strict=True)]
    numbers = " | ".join(f"{value:.3f}" for value in at_marks)
    test, steps = statistics.fmean(t.test for t in chosen), statistics.median(t.steps for t in chosen)
    return f"| {side} | {lr:g} | {steps:.0f} | {numbers} | {test:.3f} |"


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, seconds=30.0, folds=3, epochs=15, gamma=500.0)
    quiet()
    header("Tox21, GIN")
    seconds, folds, epochs = (2.0, 1, 1) if options.quick else (options.seconds, options.folds, options.epochs)
    rates = (0.1,) if options.quick else (0.1, 0.5)
    with tempfile.TemporaryDirectory() as folder:
        parts = [load(str(Path(folder)), fold) for fold in range(folds)]
    starts = [pretrain(data, fold, epochs) for fold, data in enumerate(parts)]
    marks = " | ".join(f"after {mark * seconds:.3g} s" for mark in MARKS)
    print(f"| samples | lr | steps | {marks} | test |")
    print("|---|---|---|" + "---|" * (len(MARKS) + 1))
    for side in SIDES[:2] if options.quick else SIDES:
        traces = {
            lr: [train(data, starts[k], side, lr, options.gamma, k, seconds) for k, data in enumerate(parts)]
            for lr in rates
        }
        print(row(side, traces), flush=True)


if __name__ == "__main__":
    main()
