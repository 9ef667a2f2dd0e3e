"""Whole training steps: STACO2 against plain cross-entropy, both in Lightning, on the same samples and backbone.

GIN (5 layers of 64) on the molecules of Tox21, and the small convolutional network on 28^3 volumes.

    python -m benchmarks.backbones
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common import (
    PlainCrossEntropy,
    Repeat,
    arguments,
    compare,
    data_folder,
    fit_seconds_per_step,
    header,
    quiet,
    verdict,
)
from lightning_tpauc import PosNegBatch, SMILESDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import CNN3D, GIN

SIZE = 32


def tox21_batches(count: int) -> tuple[list[PosNegBatch], int]:
    data = SMILESDataModule(
        "tox21.csv.gz", "NR-AR", root=str(data_folder() / "tox21"), num_pos=SIZE, num_neg=SIZE, num_dual_neg=SIZE
    )
    data.prepare_data()
    data.setup("fit")
    return list(itertools.islice(data.train_dataloader(), count)), data.num_positives


def volume_batches(count: int) -> tuple[list[PosNegBatch], int]:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        inputs = torch.randn(3 * SIZE, 1, 28, 28, 28, generator=generator)
        index = torch.randperm(300, generator=generator)[:SIZE]
        batches.append(PosNegBatch(inputs, index, SIZE, SIZE, SIZE))
    return batches, 300


def measure(
    name: str, make: Callable[[], nn.Module], batches: list[PosNegBatch], num_positives: int, steps: int, rounds: int
) -> None:
    target = torch.cat([torch.ones(SIZE), torch.zeros(2 * SIZE)])
    pairs: list[Any] = [(batch.inputs, target) for batch in batches]

    def staco() -> float:
        algorithm = STACO(gamma=500.0, dual_init="zeros", stage_restart="ones")
        module = TPAUCModule(
            make(),
            algorithm,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            score_activation="sigmoid",
            num_positives=num_positives,
        )
        return fit_seconds_per_step(module, Repeat(batches, steps), steps, warmup=3)

    def cross_entropy() -> float:
        return fit_seconds_per_step(PlainCrossEntropy(make()), Repeat(pairs, steps), steps, warmup=3)

    print(f"\n### {name}")
    sides = {"cross-entropy, Lightning": cross_entropy, "STACO2, Lightning": staco}
    clocks = compare(sides, rounds)
    names = list(sides)
    verdict("STACO2 / cross-entropy", clocks[names[1]].over(clocks[names[0]]), 1.08)


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("backbones, 96 samples a step")
    steps, rounds = (23, 3) if options.quick else (43, 9)
    measure("GIN, Tox21", GIN, *tox21_batches(10), steps, rounds)
    measure("CNN3D, 28^3", CNN3D, *volume_batches(4), steps, rounds)


if __name__ == "__main__":
    main()
