"""What K tasks cost in one step: the pairwise work beside one step of one task, and the whole step with a backbone.

python -m benchmarks.tasks --tasks 1 14
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from lightning_tpauc.algorithms import STACO
from lightning_tpauc.functional import TaskMasks
from lightning_tpauc.models import CNN3D

NUM_POS, NUM_NEG, COUNT = 64, 192, 1000


def main(args: list[str] | None = None) -> None:
    """Print a line for each number of tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4, 8, 14, 32])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--side", type=int, default=28, help="voxels along each side of the 3-D images; 0: no backbone")
    arguments = parser.parse_args(args)
    torch.set_num_threads(1)
    print("milliseconds of CPU time, median: the algorithm with its backward pass, and the whole step with a 3-D CNN")
    alone = median(bare_step(None), arguments.repeats)
    whole = median(whole_step(None, arguments.side), 3) if arguments.side else float("nan")
    print(f"one task: {alone:.2f}, whole {whole:.0f}")
    for num_tasks in arguments.tasks:
        own = median(bare_step(num_tasks), arguments.repeats)
        print(f"K = {num_tasks}: {own:.2f} ({own / alone:.1f} x)", end="")
        if arguments.side:
            both = median(whole_step(num_tasks, arguments.side), 3)
            print(f", whole {both:.0f} ({both / whole:.3f} x)", end="")
        print(flush=True)


def median(step: Callable[[], object], repeats: int) -> float:
    step()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def take_step(algorithm: STACO, scores: torch.Tensor, batch: tuple[torch.Tensor, TaskMasks] | None) -> None:
    if batch is None:
        index = torch.arange(NUM_POS)
        torch.autograd.backward(algorithm(scores[:NUM_POS, 0], scores[NUM_POS:, 0], index=index))
        return
    index, masks = batch
    torch.autograd.backward(algorithm(scores[:NUM_POS].T, scores.T, index=index, masks=masks))


def batch_of(num_tasks: int) -> tuple[torch.Tensor, TaskMasks]:
    """A tenth of the examples are positive for a task, three tenths are not measured; each task has some positives."""
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(num_tasks, NUM_POS + NUM_NEG, generator=generator)
    pos = chance < 0.1
    pos[:, :NUM_POS] |= torch.arange(NUM_POS) % num_tasks == torch.arange(num_tasks)[:, None]
    index = torch.stack([torch.randperm(COUNT, generator=generator)[:NUM_POS] for _ in range(num_tasks)])
    return index, TaskMasks(pos[:, :NUM_POS], ~pos & (chance < 0.7))


def bare_step(num_tasks: int | None) -> Callable[[], None]:
    algorithm = STACO(0.5, 0.5)
    algorithm.setup(COUNT if num_tasks is None else [COUNT] * num_tasks)
    batch = None if num_tasks is None else batch_of(num_tasks)
    scores = torch.randn(NUM_POS + NUM_NEG, num_tasks or 1, generator=torch.Generator().manual_seed(1))
    scores.requires_grad_()
    return lambda: take_step(algorithm, scores, batch)


def whole_step(num_tasks: int | None, side: int) -> Callable[[], None]:
    torch.manual_seed(0)
    backbone = CNN3D()
    backbone.head = torch.nn.Linear(backbone.head.in_features, num_tasks or 1)
    algorithm = STACO(0.5, 0.5)
    algorithm.setup(COUNT if num_tasks is None else [COUNT] * num_tasks)
    batch = None if num_tasks is None else batch_of(num_tasks)
    optimizer = torch.optim.Adam(backbone.parameters(), lr=0.003)
    images = torch.randn(NUM_POS + NUM_NEG, 1, side, side, side)

    def step() -> None:
        optimizer.zero_grad()
        take_step(algorithm, backbone(images).reshape(len(images), -1), batch)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
