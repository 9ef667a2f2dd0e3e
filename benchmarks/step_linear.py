"""A linear model on 22 features, 32 + 32 + 32 samples: whatever a step costs beside the model shows here.

Sides: cross-entropy in Lightning as one writes it, on the same 96 samples a step; STACO1 and STACO2 through
``TPAUCModule``; a bare loop with LibAUC's loss and optimizer on 32 + 32 samples, ready-made or from LibAUC's sampler.

    python -m benchmarks.step_linear
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.common import (
    PlainCrossEntropy,
    Repeat,
    arguments,
    compare,
    fit_seconds_per_step,
    header,
    import_libauc,
    now,
    quiet,
    verdict,
)
from lightning_tpauc import PosNegBatch, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO

FEATURES, SIZE, NUM_POS, NUM_NEG = 22, 32, 4853, 45137


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.cat([torch.ones(NUM_POS), torch.zeros(NUM_NEG)])
    return torch.randn(NUM_POS + NUM_NEG, FEATURES, generator=generator) + 0.3 * target[:, None], target


def staco(x: torch.Tensor, y: torch.Tensor, steps: int, gamma: float, share: bool = False) -> float:
    """Through the data module, the whole way."""
    num_dual = 0 if share else SIZE
    data = PosNegDataModule((x, y), num_pos=SIZE, num_neg=SIZE, num_dual_neg=num_dual)
    algorithm = STACO(gamma=gamma, share_negatives=share)
    module = TPAUCModule(nn.Linear(FEATURES, 1), algorithm, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    return fit_seconds_per_step(module, data, steps)


def cross_entropy(x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """With torch's data loader, the whole way."""
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, batch_size=3 * SIZE, shuffle=True)
    return fit_seconds_per_step(PlainCrossEntropy(nn.Linear(FEATURES, 1)), loader, steps)


def ready_batches(x: torch.Tensor, count: int) -> list[PosNegBatch]:
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        index = torch.randperm(NUM_POS, generator=generator)[:SIZE]
        negatives = torch.randint(NUM_POS, NUM_POS + NUM_NEG, (2 * SIZE,), generator=generator)
        batches.append(PosNegBatch(x[torch.cat([index, negatives])], index, SIZE, SIZE, SIZE))
    return batches


def staco_ready(batches: list[PosNegBatch], steps: int, gamma: float) -> float:
    algorithm = STACO(gamma=gamma, dual_init="zeros", stage_restart="ones")
    module = TPAUCModule(
        nn.Linear(FEATURES, 1), algorithm, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), num_positives=NUM_POS
    )
    return fit_seconds_per_step(module, Repeat(batches, steps), steps)


def cross_entropy_ready(batches: list[PosNegBatch], steps: int) -> float:
    target = torch.cat([torch.ones(SIZE), torch.zeros(2 * SIZE)])
    pairs = [(batch.inputs, target) for batch in batches]
    return fit_seconds_per_step(PlainCrossEntropy(nn.Linear(FEATURES, 1)), Repeat(pairs, steps), steps)


def libauc_batches(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Endless batches of LibAUC's sampler, whose data sets yield the index with each example."""
    _, _, sampler_class = import_libauc()
    index = torch.cat([torch.arange(NUM_POS), torch.full((NUM_NEG,), -1)])
    dataset = torch.utils.data.TensorDataset(x, y[:, None], index)
    sampler = sampler_class(dataset, 2 * SIZE, labels=y.numpy(), sampling_rate=0.5)
    while True:
        yield from torch.utils.data.DataLoader(dataset, batch_size=2 * SIZE, sampler=sampler)


def bare_libauc(x: torch.Tensor, y: torch.Tensor, steps: int, loader: bool = False) -> float:
    loss_class, optimizer_class, _ = import_libauc()
    model = nn.Linear(FEATURES, 1)
    loss_function = loss_class(data_length=NUM_POS, device="cpu")
    optimizer = optimizer_class(model.parameters(), mode="sgd", lr=0.1, momentum=0, device="cpu")
    batches = ready_batches(x, 64)
    target = torch.cat([torch.ones(SIZE, 1), torch.zeros(SIZE, 1)])
    ready = [(b.inputs[: 2 * SIZE], torch.cat([b.index, torch.full((SIZE,), -1)])) for b in batches]
    source = libauc_batches(x, y) if loader else itertools.cycle((a, target, b) for a, b in ready)
    next(source)
    start = now()
    for inputs, labels, index in itertools.islice(source, steps):
        loss = loss_function(model(inputs), labels, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (now() - start) / steps


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    quiet()
    header("step_linear")
    x, y = make_data()
    batches = ready_batches(x, 64)
    steps, rounds = (300, 3) if options.quick else (500, 11)
    sides: dict[str, Any] = {
        "cross-entropy, Lightning, ready batches": lambda: cross_entropy_ready(batches, steps),
        "STACO1, Lightning, ready batches": lambda: staco_ready(batches, steps, math.inf),
        "STACO2, Lightning, ready batches": lambda: staco_ready(batches, steps, 500.0),
        "cross-entropy, Lightning, DataLoader": lambda: cross_entropy(x, y, steps),
        "STACO1, Lightning, PosNegDataModule": lambda: staco(x, y, steps, math.inf),
        "STACO2, Lightning, PosNegDataModule": lambda: staco(x, y, steps, 500.0),
        "STACO2, 32 + 32 shared, PosNegDataModule": lambda: staco(x, y, steps, 500.0, share=True),
        "LibAUC's STACO, bare loop, ready batches": lambda: bare_libauc(x, y, steps),
        "LibAUC's STACO, bare loop, DualSampler": lambda: bare_libauc(x, y, steps, loader=True),
    }
    clocks = compare(sides, rounds, unit=1e6, name="us")
    keys = list(sides)
    for k in (1, 2):
        verdict(f"{keys[k]} / cross-entropy", clocks[keys[k]].over(clocks[keys[0]]), 1.5)
    for k in (4, 5, 6):
        verdict(f"{keys[k]} / cross-entropy", clocks[keys[k]].over(clocks[keys[3]]), 1.5)
        verdict(f"{keys[k]} / {keys[-1]}", clocks[keys[k]].over(clocks[keys[-1]]), 1.0)
        verdict(f"{keys[k]} / {keys[-2]}", clocks[keys[k]].over(clocks[keys[-2]]), 1.0)


if __name__ == "__main__":
    main()
