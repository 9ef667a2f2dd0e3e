"""Two gloo processes against one, with the same batch per process: GIN on molecules, one collective beside DDP's own.

On a busy machine with two cores the wall clock says little: each process's processor time is reported as well. Beside
them stand two processes that train at the same time and know nothing of each other, which is the machine's part of the
ratio, and two with cross-entropy in plain Lightning on the same molecules, which adds DDP's part.

    python -m benchmarks.distributed
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.backbones import SIZE
from benchmarks.common import PlainCrossEntropy, arguments, bare_trainer, data_folder, header, quiet, verdict
from lightning_tpauc import SMILESDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import GIN


class Report(Callback):
    """Writes the median seconds of a step, on both clocks, of every process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.times: list[tuple[float, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = list(zip(self.times[3:], self.times[4:], strict=False))
        medians = [statistics.median(b[k] - a[k] for a, b in steps) for k in (0, 1)]
        Path(self.folder, f"{trainer.global_rank}.json").write_text(json.dumps(medians))


class OnTheSame(PlainCrossEntropy):
    """Cross-entropy on the batches of a ``PosNegDataModule``."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        target = torch.zeros(batch.num_pos + batch.num_neg + batch.num_dual_neg)
        target[: batch.num_pos] = 1.0
        return super().training_step((batch.inputs, target), batch_idx)


def seconds_per_step(processes: int, steps: int, plain: bool = False) -> tuple[float, float]:
    data = SMILESDataModule(
        "tox21.csv.gz", "NR-AR", root=str(data_folder() / "tox21"), num_pos=SIZE, num_neg=SIZE, num_dual_neg=SIZE
    )
    module: LightningModule = OnTheSame(GIN())
    if not plain:
        algorithm = STACO(gamma=500.0, dual_init="zeros", stage_restart="ones")
        module = TPAUCModule(GIN(), algorithm, lambda p: torch.optim.SGD(p, lr=0.1), score_activation="sigmoid")
    with tempfile.TemporaryDirectory() as folder:
        trainer = bare_trainer(
            devices=processes,
            strategy="ddp_fork" if processes > 1 else "auto",
            max_steps=steps,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=[Report(folder)],
        )
        trainer.fit(module, data)
        clocks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]
    return max(c[0] for c in clocks), max(c[1] for c in clocks)


def side_by_side(steps: int) -> tuple[float, float]:
    """Two processes without a word between them, at the same time."""
    with ProcessPoolExecutor(2, mp_context=get_context("fork"), initializer=quiet) as pool:
        clocks = list(pool.map(seconds_per_step, (1, 1), (steps, steps)))
    return max(c[0] for c in clocks), max(c[1] for c in clocks)


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("distributed, 96 molecules a process")
    steps, rounds = (20, 3) if options.quick else (60, 7)
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "one process": lambda: seconds_per_step(1, steps),
        "two": lambda: seconds_per_step(2, steps),
        "two apart": lambda: side_by_side(steps),
        "two, cross-entropy": lambda: seconds_per_step(2, steps, plain=True),
    }
    results = [{name: side() for name, side in sides.items()} for _ in range(rounds)]
    for k, clock in enumerate(("wall-clock", "processor")):
        medians = {name: statistics.median(result[name][k] for result in results) for name in sides}
        print(f"{clock} time of a step: " + ", ".join(f"{name} {1e3 * t:.1f} ms" for name, t in medians.items()))
        for other in ("one process", "two apart", "two, cross-entropy"):
            ratio = statistics.median(result["two"][k] / result[other][k] for result in results)
            verdict(f"two / {other}, {clock} time", ratio, 1.25)


if __name__ == "__main__":
    main()
