"""Batches of 256 items that are fetched one by one, against torch's DataLoader, in this process and with two workers.

The items are rows of a table as tuples (x, y), about the cheapest there are, so that what comes on top shows. A second
pair of sides draws a random number in each item, and is then seeded for each.

    python -m benchmarks.items
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.common import arguments, compare, header, quiet, verdict
from lightning_tpauc.data.examples import fetcher_for
from lightning_tpauc.data.loader import PosNegLoader
from lightning_tpauc.data.parts import TrainingPart
from lightning_tpauc.data.sampler import BatchSizes, PosNegSampler

ROWS, FEATURES, NUM_POS, NUM_NEG = 100_000, 20, 64, 192


class Rows(Dataset[Any]):
    """Rows of a table; if ``noisy``, one feature is random."""

    def __init__(self, noisy: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(ROWS, FEATURES, generator=generator)
        self.y = (torch.arange(ROWS) % 10 == 0).long()
        self.noisy = noisy

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[row]
        return (x + random.random() if self.noisy else x), self.y[row]  # noqa: S311  # no secrets


def sides(steps: int, workers: int, noisy: bool) -> dict[str, Callable[[], float]]:
    """Seconds of one batch, ours and theirs."""
    data = Rows(noisy)
    labels = data.y.numpy().astype(np.int8)
    sampler = PosNegSampler(TrainingPart(labels, {"train": np.arange(ROWS)}), BatchSizes(NUM_POS, NUM_NEG))
    sampler.epoch_steps = steps
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True} if workers else {}
    ours = PosNegLoader(sampler, fetcher_for(data), **options)
    batches = [plan.rows.tolist() for plan in sampler.plans(0, steps)]
    theirs = DataLoader(data, batch_sampler=batches, **options)

    def clock(loader: Any) -> Callable[[], float]:
        def side() -> float:
            start = time.perf_counter()
            for _ in loader:
                pass
            return (time.perf_counter() - start) / steps

        return side

    return {"ours": clock(ours), "DataLoader": clock(theirs)}


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    steps, rounds = (100, 5) if options.quick else (400, 9)
    for noisy in (False, True):
        for workers in (0, 2):
            header(f"items one by one{', each draws a number' if noisy else ''}, {workers} workers")
            clocks = compare(sides(steps, workers, noisy), rounds, 1e3, "ms")
            ratio = clocks["ours"].over(clocks["DataLoader"])
            if noisy:
                print(f"a batch, ours / DataLoader, which repeats no random number after a resume: {ratio:.3g}")
            else:
                verdict("a batch, ours / DataLoader", ratio, 1.3)


if __name__ == "__main__":
    main()
