"""What K tasks cost in one step, time and memory: the algorithm beside that of one task, and the step with a backbone.

python -m benchmarks.tasks --tasks 1 14
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

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
    print(
        "MiB that a process grows by, and milliseconds of CPU time, median: the algorithm with its backward pass, and"
    )
    print("the whole step with a 3-D CNN")
    kinds: list[Callable[[int | None], Callable[[], object]]] = [bare_step]
    if arguments.side:
        kinds.append(partial(whole_step, side=arguments.side))
    counts = [None, *arguments.tasks]
    # memory first: what this process has used and given back would serve its children
    memory = [[added_memory(partial(make, count)) for make in kinds] for count in counts]
    first: list[float] = []
    for count, grown in zip(counts, memory, strict=True):
        spent = [median(make(count), repeats) for make, repeats in zip(kinds, (arguments.repeats, 3), strict=False)]
        first = first or [*grown, *spent]
        cells = [f"{value:.2f} ({value / one:.2f} x)" for value, one in zip([*grown, *spent], first, strict=True)]
        print(f"{'one task' if count is None else f'K = {count}'}: {', '.join(cells)}", flush=True)


def added_memory(make: Callable[[], Callable[[], object]]) -> float:
    """By how many MiB a process grows at most that sets up a step and takes it three times."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report_memory, args=(make, sender))
    child.start()
    grown: float = receiver.recv()
    child.join()
    return grown


def _report_memory(make: Callable[[], Callable[[], object]], sender: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = make()
    for _ in range(3):
        step()
    sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


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
