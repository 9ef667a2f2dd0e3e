"""A step with 10^8 positives against one with 10^4: state, sampling order, averages and logging, in Lightning.

Rows are made from their number, so that no features have to be held; everything else is what a real run does. Set-up
and the end of a stage cost O(n) once and are timed apart, on the wall clock.

    python -m benchmarks.scale
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common import arguments, compare, fit_seconds_per_step, header, quiet, verdict
from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO

FEATURES = 22


def make(num_pos: int) -> tuple[PosNegDataModule, float]:
    start = time.perf_counter()
    row = torch.randn(FEATURES, generator=torch.Generator().manual_seed(0)).numpy()
    y = np.zeros(num_pos + 1_000_000, dtype=np.int8)
    y[:num_pos] = 1
    data = PosNegDataModule((np.broadcast_to(row, (len(y), FEATURES)), y))  # takes the memory of one row
    data.setup("fit")
    return data, time.perf_counter() - start


def algorithm() -> STACO:
    return STACO(gamma=500.0, dual_init="zeros", stage_restart="ones")


def step(data: PosNegDataModule, steps: int) -> float:
    module = TPAUCModule(nn.Linear(FEATURES, 1), algorithm(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    return fit_seconds_per_step(module, data, steps)


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    many = 10**7 if options.quick else 10**8
    header(f"scale, {many:.0e} positives against 1e4")
    small, _ = make(10**4)
    large, setup = make(many)
    start = time.perf_counter()
    state = algorithm()
    state.setup(many)
    state.start()
    allocated = time.perf_counter() - start
    state.step_scale = 1.0
    start = time.perf_counter()
    state.finish_stage()
    state.restart()
    stage_end = time.perf_counter() - start
    tensors: list[Any] = [v for v in state.state_dict().values() if torch.is_tensor(v) and v.numel() == many]
    per_positive = sum(v.element_size() for v in tensors)
    del state, tensors
    steps, rounds = (400, 3) if options.quick else (1000, 7)
    sides = {"1e4 positives": lambda: step(small, steps), f"{many:.0e} positives": lambda: step(large, steps)}
    clocks = compare(sides, rounds, 1e6, "us")
    names = list(sides)
    verdict("step with many / with few", clocks[names[1]].over(clocks[names[0]]), 1.15)
    verdict("bytes a positive", per_positive, 20.0)
    verdict("set-up of the data module and the state", setup + allocated, 10.0, unit=" s")
    print(f"stage's end, once: {stage_end:.2f} s")


if __name__ == "__main__":
    main()
