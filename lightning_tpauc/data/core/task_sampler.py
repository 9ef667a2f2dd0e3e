"""The rows of step t for several tasks at once, and which of them count for which task.

A pure function of (seed, t, rank, number of ranks), as for one task.

The tasks stand in a random circle, and each step takes the next T of them: these are in play. T is the number of tasks,
or a quarter of the positives of a step if that is fewer, so that a task in play gets at least four of them. Each gets
the same number of its positives, ``num_pos / T`` rounded down, or all that it has. It takes them in its own order, pass
after pass, as one task alone would. An example that is drawn for two tasks is there twice.

The negatives are drawn uniformly from all examples that are negative for at least one task. For each task, those that
were measured negative count. So they are a uniform sample of its negatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.batch_indices import BatchIndices, SampleWeights
from lightning_tpauc.data.core.datasets import TrainingPart
from lightning_tpauc.data.core.sampler import (
    BatchPlan,
    BatchSampler,
    BatchSizes,
    PlannedMasks,
    PosNegSampler,
    UniformSampler,
    World,
    make_sampler,
    shares_of,
    slice_of,
)
from lightning_tpauc.data.core.seeding import Purpose, permute
from lightning_tpauc.data.core.task_rows import TaskRows
from lightning_tpauc.errors import ArgumentError

Indices = NDArray[np.int64]

# A task in play gets at least this many positives of a step, if the step has as many.
_LEAST = 4
# Up to this many tasks have orders that are independent of each other.
_MAX_TASKS = 1 << 32


class Sized(Protocol):
    """What samplers ask of a stream of negatives."""

    @property
    def length(self) -> int | None:
        """Number of negatives of one pass; ``None`` if it is unknown."""


class _OfTasks:
    """What loaders ask of a sampler of several tasks."""

    tasks: TaskRows

    @property
    def num_positives(self) -> tuple[int, ...]:
        """How many positives each task has."""
        return self.tasks.num_positives

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return self.tasks.names


class PosNegTaskSampler(_OfTasks, PosNegSampler):
    """Draws positives of several tasks in turn, and negatives of all.

    An epoch ends when every task has seen all of its positives, and not before a pass over the negatives is complete.
    Small tasks see their positives more than once.

    Args:
        tasks: the rows of each task.
        sizes: examples per step on each rank; ``num_pos`` counts those of all tasks in play together.
        seed: other seeds give unrelated orders.

    Raises:
        DataError: if a task has no positive or no negative.

    Example:
        >>> labels = np.array([[1, 0], [0, 1], [0, -1], [0, 0], [1, 1]], dtype=np.int8)
        >>> sampler = PosNegTaskSampler(TaskRows(labels, np.arange(5), ("a", "b")), BatchSizes(8, 2))
        >>> plan = next(sampler.plans(start=0, count=1))
        >>> plan.index.shape, plan.masks.pos.sum(axis=1)
        ((2, 4), array([2, 2]))
    """

    def __init__(self, tasks: TaskRows, sizes: BatchSizes, seed: int = 0) -> None:
        tasks.require_both()
        super().__init__(tasks.some_positive, tasks.negatives, sizes, seed)
        self.tasks = tasks
        count = len(tasks.positives)
        self._circle = permute(np.arange(count), np.array(0), count, seed=seed, purpose=Purpose.TASKS)
        self._rows = np.concatenate(tasks.positives)
        self._offsets = np.cumsum([0, *tasks.num_positives[:-1]])

    def in_play(self, world_size: int) -> tuple[int, Indices]:
        """How many tasks are in play in a step, T, and how many positives each task gets then, ``(K,)``."""
        total, num_tasks = self.sizes.num_pos * world_size, len(self.num_positives)
        chosen = min(num_tasks, max(1, total // _LEAST))
        return chosen, np.minimum(total // chosen, np.array(self.num_positives))

    def global_sizes(self, world_size: int) -> BatchSizes:
        """See :meth:`BatchSampler.global_sizes`: the most positives that a step may have.

        Raises:
            DataError: if there are fewer negatives than one step takes.
        """
        chosen, sizes = self.in_play(world_size)
        most = int(np.sort(sizes)[-chosen:].sum())
        return super().global_sizes(world_size)._replace(num_pos=most)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        chosen, sizes = self.in_play(world_size)
        visits = max(-(-count // size) for count, size in zip(self.num_positives, map(int, sizes), strict=True))
        passes = -(-len(self.negatives) // self.global_sizes(world_size).num_neg)
        return max(-(-visits * len(sizes) // chosen), passes)

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:
        """See :meth:`BatchSampler.cap_message`; also says which tasks rarely meet a negative of their own."""
        chosen, sizes = self.in_play(world_size)
        share = self.sizes.num_pos * world_size // chosen
        few = [f"{self.tasks.names[k]!r} ({sizes[k]})" for k in np.flatnonzero(sizes < share)]
        num_neg = self.global_sizes(world_size).num_neg / len(self.negatives)
        rare = [repr(n) for n, c in zip(self.tasks.names, self.tasks.num_negatives, strict=True) if c * num_neg < 1]
        messages = []
        if few and asked:
            messages.append(
                f"A task gets up to {share} positives of a step. These tasks have fewer, so a step takes all of them: "
                f"{_first(few)}."
            )
        if rare:
            messages.append(
                "Not every step has a measured negative of these tasks, and leaves them out if it has none: "
                f"{_first(rare)}. "
                "Raise `num_neg`, or leave these columns out."
            )
        return " ".join(messages) or None

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        chosen, sizes = self.in_play(world.size)
        totals = self.global_sizes(world.size)
        visits, places = np.divmod(np.arange(start * chosen, stop * chosen).reshape(-1, chosen), len(sizes))
        tasks = self._circle[places]
        drawn = self._drawn(sizes, int(visits[0, 0]), int(visits[-1, -1]) + 1)[tasks, visits - visits[0, 0]]
        negatives = np.hstack(self._negatives(totals, start, stop, world))
        for step, its_tasks, index, neg in zip(range(start, stop), tasks, drawn, negatives, strict=True):
            there = index >= 0
            task = np.repeat(its_tasks, there.sum(axis=1))
            yield self._plan(step, task, index[there], neg, totals._replace(num_pos=len(task)), world)

    def _plan(
        self, step: int, task: Indices, index: Indices, neg: Indices, totals: BatchSizes, world: World
    ) -> BatchPlan:
        """This rank's plan, from the task and the position in it of all positives, and from its own negatives."""
        own = slice_of(len(task), world)
        task, index = task[own], index[own]
        where, shape = (task, np.arange(len(task))), (len(self._circle), len(task))
        positions, drawn = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
        positions[where], drawn[where] = index, True
        shares = shares_of(totals, world)
        is_neg = np.ascontiguousarray(self.tasks.labels[neg].T) == 0
        num_neg = shares[world.rank].num_neg
        dual = is_neg[:, num_neg:] if totals.num_dual_neg else None
        masks = PlannedMasks(drawn, is_neg[:, :num_neg], dual)
        rows = np.concatenate([self._rows[self._offsets[task] + index], neg])
        return BatchPlan(step, rows, positions, shares[world.rank], shares if world.size > 1 else None, masks)

    def _drawn(self, sizes: Indices, first: int, last: int) -> Indices:
        """For each task, the positions that its visits ``first .. last - 1`` draw, ``(K, visits, most)``; -1 pads."""
        drawn = np.full((len(sizes), last - first, int(sizes.max())), -1)
        for task, (count, size) in enumerate(zip(self.num_positives, sizes.tolist(), strict=True)):
            purpose = Purpose.TASK_POSITIVES * _MAX_TASKS + task
            drawn[task, :, :size] = BatchIndices(count, size, self.seed, purpose).batches(first, last)
        return drawn


class UniformTaskSampler(_OfTasks, UniformSampler):
    """Draws uniform batches of several tasks, for cross-entropy: all examples that any task was measured on.

    Every example is in the first and in the second part of the batch; the masks say for which tasks it is positive, and
    for which negative. An epoch is one pass, rounded up. Rank r takes a contiguous slice.

    Args:
        tasks: the rows of each task.
        sizes: a global batch has ``num_pos + num_neg`` times W examples.
        seed: other seeds give unrelated orders.

    Raises:
        DataError: if a task has no positive or no negative.

    Example:
        >>> labels = np.array([[1, 0], [0, 1], [0, -1], [-1, -1], [1, 1]], dtype=np.int8)
        >>> sampler = UniformTaskSampler(TaskRows(labels, np.arange(5), ("a", "b")), BatchSizes(1, 1))
        >>> plan = next(sampler.plans(start=0, count=1))
        >>> len(sampler), plan.sizes
        (2, BatchSizes(num_pos=2, num_neg=2, num_dual_neg=0))
    """

    def __init__(self, tasks: TaskRows, sizes: BatchSizes, seed: int = 0) -> None:
        tasks.require_both()
        super().__init__(tasks.some_positive, tasks.negatives, sizes, seed)
        self.tasks = tasks

    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes of the global batch as (0, all, 0), at most all examples that were measured."""
        total = (self.sizes.num_pos + self.sizes.num_neg) * world_size
        return BatchSizes(0, min(total, len(self.tasks.measured)), 0)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        return -(-len(self.tasks.measured) // self.global_sizes(world_size).num_neg)

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        total, rows = self.global_sizes(world.size).num_neg, self.tasks.measured
        numbers = BatchIndices(len(rows), total, self.seed, Purpose.ALL_EXAMPLES).batches(
            start, stop, slice_of(total, world)
        )
        shares = shares_of(BatchSizes(total, total), world)
        for step, own in zip(range(start, stop), rows[numbers], strict=True):
            labels = np.ascontiguousarray(self.tasks.labels[own].T)
            is_pos = labels == 1
            positions = np.zeros(labels.shape, dtype=np.int64)
            for task, positives in enumerate(self.tasks.positives):
                positions[task, is_pos[task]] = np.searchsorted(positives, own[is_pos[task]])
            masks = PlannedMasks(is_pos, labels == 0)
            yield BatchPlan(step, own, positions, shares[world.rank], shares if world.size > 1 else None, masks)


def sampler_of(
    training: TrainingPart,
    kind: str,
    sizes: BatchSizes,
    seed: int,
    *,
    stream: Sized | None = None,
    weights: SampleWeights | None = None,
) -> BatchSampler:
    """The sampler of a training set, by its name.

    Raises:
        ArgumentError: if the kind takes one task only, or negatives that can be indexed.

    Example:
        >>> training = TrainingPart(np.array([[1, 0], [0, 1]], dtype=np.int8))
        >>> type(sampler_of(training, "uniform", BatchSizes(1, 1), seed=0)).__name__
        'UniformTaskSampler'
    """
    tasks = training.tasks
    if tasks is None:
        positives, negatives = training.by_class
        if stream is not None:
            return make_sampler(kind, positives, None, sizes, seed, length=stream.length, weights=weights)
        return make_sampler(kind, positives, negatives, sizes, seed, weights=weights)
    if kind == "pos_neg":
        return PosNegTaskSampler(tasks, sizes, seed)
    if kind == "uniform":
        return UniformTaskSampler(tasks, sizes, seed)
    msg = (
        f"`sampling={kind!r}` takes one task, but the labels have {len(tasks.names)} columns. Choose one column, or "
        "train with an algorithm that draws batches, such as STACO."
    )
    raise ArgumentError(msg)


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
