"""Training on 10^8 negatives that are generated as they are read: memory, and negatives a second.

A generator makes random rows; a linear model is trained by STACO1 with the exact start, through Lightning.
Each negative is used once. Resident memory is read after 1, 50 and 100 percent of the steps.

    python -m benchmarks.stream
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from benchmarks.common import arguments, bare_trainer, header, now, quiet, verdict
from lightning_tpauc import NegativeStream, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO

FEATURES = 22
NUM_POS, NUM_NEG = 64, 4096


class Generated(IterableDataset[Tensor]):
    """Random rows without end; the generator's state says where it stands."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.from_numpy(self.generator.standard_normal(FEATURES, dtype=np.float32))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.bit_generator.state = state


class Memory(Callback):
    """Resident memory in MiB and seconds at some steps."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps
        self.seen: list[tuple[float, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in self.steps:
            self.seen.append((resident(), now()))


def resident() -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def train(negatives: int, workers: int) -> list[tuple[float, float]]:
    steps = negatives // (2 * NUM_NEG)
    torch.manual_seed(0)
    positives = torch.randn(10_000, FEATURES) + 0.3
    stream = NegativeStream(Generated())
    data = PosNegDataModule(positives, negatives=stream, num_pos=NUM_POS, num_neg=NUM_NEG, num_workers=workers)
    module = TPAUCModule(nn.Linear(FEATURES, 1), STACO(), optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
    memory = Memory([max(1, steps // 100), steps // 2, steps])
    trainer = bare_trainer(
        max_epochs=-1,
        max_steps=steps,
        callbacks=[memory, StageCallback()],
    )
    trainer.fit(module, data)
    return memory.seen


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, workers=0)
    quiet()
    negatives = 5 * 10**6 if options.quick else 10**8
    header(f"{negatives:.0e} generated negatives, {NUM_POS} + 2 x {NUM_NEG} a step, {options.workers} workers")
    start = time.perf_counter()
    seen = train(negatives, options.workers)
    elapsed = time.perf_counter() - start
    for share, (mib, _) in zip((1, 50, 100), seen, strict=True):
        print(f"resident after {share}%: {mib:.1f} MiB")
    seconds = seen[-1][1] - seen[0][1]
    print(f"negatives a second: {0.99 * negatives / seconds:.3g} ({elapsed:.0f} s in all on the wall clock)")
    print(f"the same rows held in memory: {negatives * FEATURES * 4 / 2**20:.0f} MiB")
    verdict("growth of resident memory from 1% to 100%", seen[-1][0] - seen[0][0], 16.0, unit=" MiB")


if __name__ == "__main__":
    main()
