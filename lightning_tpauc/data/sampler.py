"""The rows that each rank loads in step t: a pure function of (seed, t, rank, number of ranks)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_tpauc.data.seeding import Purpose, permute, random_keys
from lightning_tpauc.distributed import gather_objects, rank, world_size
from lightning_tpauc.errors import ArgumentError, DataError

Indices = NDArray[np.int64]
# Indices are computed for many steps at once, which makes them cheap: for this many examples, with 4 MB of temporaries.
_BLOCK = 1 << 15


class World(NamedTuple):
    """Position of this process among the processes of a run.

    Attributes:
        rank: in ``0 .. size - 1``.
        size: number of processes, W.
    """

    rank: int
    size: int


def current_world() -> World:
    """Rank and number of processes, ``World(0, 1)`` without a process group.

    Call it when an iteration starts, never when an object is built: most samplers are built before the group exists.

    Example:
        >>> current_world()
        World(rank=0, size=1)
    """
    return World(rank(), world_size())


def least_of_ranks(value: int) -> int:
    """The smallest value of all ranks; a collective where there are several.

    Example:
        >>> least_of_ranks(3)
        3
    """
    return min(int(own) for own in gather_objects(value))


def share_of(total: int, world: World) -> int:
    """Size of a rank's slice: ``total // W``, plus one on the first ``total % W`` ranks.

    Example:
        >>> [share_of(7, World(rank, 3)) for rank in range(3)]
        [3, 2, 2]
    """
    return total // world.size + (world.rank < total % world.size)


def slice_of(total: int, world: World) -> slice:
    """The rank's contiguous slice of ``total`` items; the slices of all ranks partition ``range(total)``.

    Example:
        >>> slice_of(7, World(1, 3))
        slice(3, 5, None)
    """
    start = world.rank * (total // world.size) + min(world.rank, total % world.size)
    return slice(start, start + share_of(total, world))


class BatchSizes(NamedTuple):
    """Positives, negatives and dual negatives in a batch: S, B~ and B."""

    num_pos: int
    num_neg: int
    num_dual_neg: int = 0


def usual_sizes(num_pos: int | None, num_neg: int | None, *, several: bool) -> tuple[int, int]:
    """Positives and negatives per step and rank. What is not given is 64 and 192, with several tasks 128 and 128.

    Several tasks share the positives of a step. See benchmarks/README.md.

    Example:
        >>> usual_sizes(None, None, several=False), usual_sizes(32, None, several=True)
        ((64, 192), (32, 128))
    """
    usual = (128, 128) if several else (64, 192)
    return usual[0] if num_pos is None else num_pos, usual[1] if num_neg is None else num_neg


def shares_of(totals: BatchSizes, world: World) -> tuple[BatchSizes, ...]:
    """The sizes on every rank of a global batch.

    Example:
        >>> [tuple(share) for share in shares_of(BatchSizes(3, 4), World(0, 2))]
        [(2, 2, 0), (1, 2, 0)]
    """
    if world.size == 1:
        return (totals,)
    ranks = [World(rank, world.size) for rank in range(world.size)]
    return tuple(BatchSizes(*(share_of(total, rank) for total in totals)) for rank in ranks)


class PlannedMasks(NamedTuple):
    """Which examples of a step count for which of K tasks, as bool arrays; see :class:`~lightning_tpauc.PosNegBatch`.

    Attributes:
        pos: ``(K, num_pos)``.
        neg: ``(K, num_neg)``.
        dual_neg: ``(K, num_dual_neg)``; ``None`` without dual negatives.
    """

    pos: NDArray[np.bool_]
    neg: NDArray[np.bool_]
    dual_neg: NDArray[np.bool_] | None = None


class BatchPlan(NamedTuple):
    """The examples of one step on one rank.

    Attributes:
        step: global step t.
        rows: int64 array ``(num_pos + num_neg + num_dual_neg,)``: rows of the training set, ordered
            [positives | negatives | dual negatives].
        index: int64 array ``(num_pos,)``: the positives' positions among all training positives; ``(K, num_pos)`` with
            several tasks.
        sizes: sizes on this rank.
        shares: sizes on every rank; ``None`` in one process.
        masks: with several tasks, which examples count for which; ``None`` with one.
    """

    step: int
    rows: Indices
    index: Indices  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a plan
    sizes: BatchSizes
    shares: tuple[BatchSizes, ...] | None
    masks: PlannedMasks | None = None


class BatchSampler(ABC):
    """Base of the samplers.

    Apart from the two index arrays, the memory used does not depend on their lengths.

    Args:
        positives: int array ``(n_pos,)``: rows of the positive examples. The algorithm's ``index`` counts positives in
            this order.
        negatives: int array ``(n_neg,)``: rows of the negative examples.
        sizes: examples per step **on each rank**.
        seed: seed of the order; different seeds give unrelated orders.

    Raises:
        ArgumentError: if a size is negative.
        DataError: if a class has no example.
    """

    #: Classes that must have examples.
    needed: ClassVar[tuple[str, ...]] = ("positive", "negative")
    #: Steps of an epoch if the user sets them; ``None`` leaves them to the sampler.
    epoch_steps: int | None = None
    #: What examples are drawn by; ``None`` draws all alike.
    weights: SampleWeights | None = None

    def __init__(self, positives: Indices, negatives: Indices, sizes: BatchSizes, seed: int = 0) -> None:
        for name, size in zip(BatchSizes._fields, sizes, strict=True):
            least = 0 if name == "num_dual_neg" else 1
            if size < least:
                msg = f"Expected `{name}` to be at least {least}, but got {size}."
                raise ArgumentError(msg)
        for name, rows in (("positive", positives), ("negative", negatives)):
            if len(rows) == 0 and name in self.needed:
                msg = f"Expected both classes in the training set, but got 0 {name} examples."
                raise DataError(msg)
        self.positives = positives
        self.negatives = negatives
        self.sizes = sizes
        self.seed = seed

    @property
    def num_positives(self) -> int | tuple[int, ...]:
        """Number of training positives, n+; of each task with several tasks."""
        return len(self.positives)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several tasks; ``None`` with one."""
        return None

    @abstractmethod
    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes summed over ``world_size`` ranks, after all caps."""

    @abstractmethod
    def steps_per_epoch(self, world_size: int) -> int:
        """Steps of one epoch on ``world_size`` ranks."""

    @property
    def most_positives(self) -> int:
        """How many positives a step has at most."""
        return len(self.positives) if self.weights is None else self.weights.most_positives

    def _indices(self, n: int, size: int, purpose: Purpose) -> BatchIndices | WeightedIndices:
        """The object that draws ``size`` of n examples for each step."""
        if self.weights is not None:
            return self.weights.indices(size, self.seed, purpose)
        return BatchIndices(n, size, self.seed, purpose)

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:  # noqa: ARG002
        """A message for the user if a step has fewer positives than asked for; ``None`` if it has enough.

        Args:
            world_size: number of ranks.
            asked: whether the user gave ``num_pos``. A rare class that is smaller than the usual size is no surprise.
        """
        return None

    @abstractmethod
    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """The plans of steps ``start .. stop - 1``, computed together."""

    def __len__(self) -> int:
        """Steps of one epoch with the current number of ranks."""
        return self.epoch_steps or self.steps_per_epoch(current_world().size)

    def plans(self, start: int, count: int) -> Iterator[BatchPlan]:
        """This rank's plans for ``count`` steps from global step ``start`` on."""
        world = current_world()
        steps = max(1, _BLOCK // sum(self.global_sizes(world.size)))
        for first in range(start, start + count, steps):
            yield from self.block(first, min(first + steps, start + count), world)


class PosNegSampler(BatchSampler):
    """Draws fixed numbers of positives and negatives, and optionally a second, independent batch of negatives.

    The global batch of step t has ``sizes`` times W examples. Rank r takes a contiguous slice of each of its three
    parts, ``total // W + (r < total % W)`` examples. No example occurs twice in a part. If there are fewer positives
    than S W, every step takes all of them.

    An epoch has n+/S or n-/B steps (global sizes), whichever is larger, rounded up.

    Example:
        >>> sampler = PosNegSampler(np.array([0, 5, 9]), np.array([1, 2, 3, 4, 6, 7, 8]), BatchSizes(2, 2))
        >>> len(sampler)
        4
        >>> plan = next(sampler.plans(start=0, count=1))
        >>> plan.rows.shape, plan.index.shape
        ((4,), (2,))
    """

    @property
    def most_negatives(self) -> int | None:
        """How many negatives a step has at most; ``None`` if that is unknown."""
        return len(self.negatives)

    def global_sizes(self, world_size: int) -> BatchSizes:
        """See :meth:`BatchSampler.global_sizes`; positives are capped to n+.

        Raises:
            DataError: if there are fewer negatives than one step takes.
        """
        num_pos, num_neg, num_dual_neg = (size * world_size for size in self.sizes)
        n_neg = len(self.negatives)
        for name, size in (("num_neg", num_neg), ("num_dual_neg", num_dual_neg)):
            if size > n_neg:
                msg = (
                    f"One step takes {size} negatives (`{name}`={size // world_size} on {world_size} rank(s)), but the "
                    f"training set has only {n_neg}. Set `{name}` to at most {n_neg // world_size}."
                )
                raise DataError(msg)
        return BatchSizes(min(num_pos, self.most_positives), num_neg, num_dual_neg)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        sizes = self.global_sizes(world_size)
        return max(-(-len(self.positives) // sizes.num_pos), -(-len(self.negatives) // sizes.num_neg))

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:
        """See :meth:`BatchSampler.cap_message`."""
        wanted, n_pos = self.sizes.num_pos * world_size, len(self.positives)
        if wanted <= self.most_positives or (not asked and self.most_positives == n_pos):
            return None
        if self.most_positives < n_pos:
            return (
                f"A step has {self.most_positives} positives instead of {wanted} (`num_pos`={self.sizes.num_pos} on "
                f"{world_size} rank(s)): the largest `sample_weight` of a positive is 1/{self.most_positives} of their "
                "sum or more, so in a step of more positives it would have to come twice."
            )
        return (
            f"The training set has {n_pos} positives, fewer than the {wanted} of one step "
            f"(`num_pos`={self.sizes.num_pos} on {world_size} rank(s)): every step takes all of them."
        )

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        totals = self.global_sizes(world.size)
        shares = shares_of(totals, world)
        index = self._part(len(self.positives), totals.num_pos, Purpose.POSITIVES, start, stop, world)
        rows = np.hstack([self.positives[index], *self._negatives(totals, start, stop, world)]).astype(np.int64)
        own, everyone = shares[world.rank], shares if world.size > 1 else None
        for step, its_rows, its_index in zip(range(start, stop), rows, index, strict=True):
            yield BatchPlan(step, its_rows, its_index, own, everyone)

    def _negatives(self, totals: BatchSizes, start: int, stop: int, world: World) -> list[Indices]:
        """Rows of the negatives of each step, for the weights and for the dual weights."""
        neg = self._part(len(self.negatives), totals.num_neg, Purpose.NEGATIVES, start, stop, world)
        dual = self._part(len(self.negatives), totals.num_dual_neg, Purpose.DUAL_NEGATIVES, start, stop, world)
        return [self.negatives[neg], self.negatives[dual]]

    def _part(self, n: int, size: int, purpose: Purpose, start: int, stop: int, world: World) -> Indices:
        return self._indices(n, size, purpose).batches(start, stop, slice_of(size, world))


class UniformSampler(BatchSampler):
    """Draws uniform batches from the whole training set, for cross-entropy.

    A global batch has ``num_pos + num_neg`` times W examples, sorted [positives | negatives]. The number of positives
    varies and may be 0. The last batch of a pass is filled from the next pass, so no example is dropped and all batches
    have one size. Rank r takes a contiguous slice of each class.

    An epoch is one pass, rounded up. If the training set has fewer than two batches, each batch is an independent
    subset instead.

    Example:
        >>> sampler = UniformSampler(np.array([0, 5, 9]), np.array([1, 2, 3, 4, 6, 7, 8]), BatchSizes(2, 3))
        >>> plans = list(sampler.plans(start=0, count=len(sampler)))
        >>> sorted(np.concatenate([plan.rows for plan in plans]).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes of the global batch as (0, all, 0): the classes' sizes vary; at most the whole training set."""
        total = (self.sizes.num_pos + self.sizes.num_neg) * world_size
        return BatchSizes(0, min(total, len(self.positives) + len(self.negatives)), 0)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        return -(-(len(self.positives) + len(self.negatives)) // self.global_sizes(world_size).num_neg)

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        n_pos, n_neg = len(self.positives), len(self.negatives)
        # Positives have the lowest numbers, so the number of an example gives its class.
        size = self.global_sizes(world.size).num_neg
        numbers = self._indices(n_pos + n_neg, size, Purpose.ALL_EXAMPLES).batches(start, stop)
        is_neg = numbers >= n_pos
        numbers = np.take_along_axis(numbers, np.argsort(is_neg, axis=1, kind="stable"), axis=1)
        totals = (~is_neg).sum(axis=1).tolist()
        for step, batch, num_pos in zip(range(start, stop), numbers, totals, strict=True):
            pos, neg = batch[:num_pos], batch[num_pos:]
            shares = shares_of(BatchSizes(len(pos), len(neg)), world)
            index = pos[slice_of(len(pos), world)]
            rows = np.concatenate([self.positives[index], self.negatives[neg[slice_of(len(neg), world)] - n_pos]])
            everyone = shares if world.size > 1 else None
            yield BatchPlan(step, rows.astype(np.int64), index, shares[world.rank], everyone)


class FullSampler(BatchSampler):
    """Takes all positives and all negatives in every step. An epoch is one step.

    ``sizes`` are ignored. Rank r takes a contiguous slice of each class.

    Example:
        >>> sampler = FullSampler(np.array([0, 5, 9]), np.array([1, 2, 3]), BatchSizes(1, 1))
        >>> [(plan.step, plan.rows.tolist()) for plan in sampler.plans(start=7, count=len(sampler))]
        [(7, [0, 5, 9, 1, 2, 3])]
    """

    def global_sizes(self, world_size: int) -> BatchSizes:  # noqa: ARG002
        """The numbers of positives and negatives."""
        return BatchSizes(len(self.positives), len(self.negatives))

    def steps_per_epoch(self, world_size: int) -> int:  # noqa: ARG002
        """One."""
        return 1

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        n_pos, n_neg = len(self.positives), len(self.negatives)
        shares = shares_of(BatchSizes(n_pos, n_neg), world)
        pos, neg = slice_of(n_pos, world), slice_of(n_neg, world)
        rows = np.concatenate([self.positives[pos], self.negatives[neg]]).astype(np.int64)
        index = np.arange(pos.start, pos.stop)
        for step in range(start, stop):
            yield BatchPlan(step, rows, index, shares[world.rank], shares if world.size > 1 else None)


class StreamSampler(PosNegSampler):
    """Draws positives as :class:`PosNegSampler` does. The negatives are a stream, so plans have no rows of them.

    An epoch is one pass over the positives, or one pass of the stream if its length is known and takes more steps.

    Args:
        positives: int array ``(n_pos,)``: rows of the positives.
        num_negatives: length of the stream; ``None`` if unknown.
        sizes: examples per step on each rank.
        seed: seed of the order of the positives.

    Example:
        >>> sampler = StreamSampler(np.arange(5), None, BatchSizes(2, 8, 8))
        >>> len(sampler), next(sampler.plans(start=0, count=1)).rows.shape
        (3, (2,))
    """

    needed: ClassVar[tuple[str, ...]] = ("positive",)

    def __init__(self, positives: Indices, num_negatives: int | None, sizes: BatchSizes, seed: int = 0) -> None:
        super().__init__(positives, np.empty(0, dtype=np.int64), sizes, seed)
        self.num_negatives = num_negatives

    @property
    def most_negatives(self) -> int | None:
        """The stream's length, if it has one."""
        return self.num_negatives

    def global_sizes(self, world_size: int) -> BatchSizes:
        """See :meth:`BatchSampler.global_sizes`; positives are capped to n+."""
        num_pos, num_neg, num_dual_neg = (size * world_size for size in self.sizes)
        return BatchSizes(min(num_pos, self.most_positives), num_neg, num_dual_neg)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        sizes = self.global_sizes(world_size)
        read = sizes.num_neg + sizes.num_dual_neg
        return max(-(-len(self.positives) // sizes.num_pos), -(-(self.num_negatives or 0) // read))

    def _negatives(self, totals: BatchSizes, start: int, stop: int, world: World) -> list[Indices]:  # noqa: ARG002
        return []


#: The samplers that a data module's ``sampling`` names.
SAMPLERS: dict[str, type[BatchSampler]] = {"pos_neg": PosNegSampler, "uniform": UniformSampler, "full": FullSampler}


def make_sampler(
    kind: str,
    positives: Indices,
    negatives: Indices | None,
    sizes: BatchSizes,
    seed: int,
    *,
    length: int | None = None,
    weights: SampleWeights | None = None,
) -> BatchSampler:
    """A sampler by its name.

    Args:
        kind: ``"pos_neg"``, ``"uniform"`` or ``"full"``.
        positives: int array ``(n_pos,)``: rows of the positives.
        negatives: int array ``(n_neg,)``: rows of the negatives; ``None`` if they are a stream.
        sizes: examples per step on each rank.
        seed: seed of the order.
        length: length of the stream; ``None`` if unknown.
        weights: what examples are drawn by; ``None`` draws all alike.

    Raises:
        ArgumentError: if the kind draws nothing and there are weights, or needs negatives that can be indexed.

    Example:
        >>> len(make_sampler("pos_neg", np.array([1, 4]), np.array([0, 2, 3, 5]), BatchSizes(1, 2), seed=0))
        2
    """
    if weights is not None and kind == "full":
        msg = (
            "`sample_weight` says how often an example is drawn, but FullBatch (`sampling='full'`) takes each once in "
            "every step. Train with another algorithm, such as STACO, or leave the weights out."
        )
        raise ArgumentError(msg)
    if negatives is not None or kind == "pos_neg":
        sampler = (
            StreamSampler(positives, length, sizes, seed)
            if negatives is None
            else SAMPLERS[kind](positives, negatives, sizes, seed)
        )
        sampler.weights = weights
        return sampler
    reason = {
        "uniform": "draws from positives and negatives together; set `sampling='pos_neg'` to draw them apart,",
        "full": "takes all negatives in every step; train with another algorithm, such as STACO,",
    }
    msg = (
        f"`sampling={kind!r}` {reason[kind]} or put the negatives into `train_dataset`: `negatives` is a stream, "
        "which can't be indexed."
    )
    raise ArgumentError(msg)


#: Weights become whole numbers whose sum has at most this many bits, so that no later sum is rounded.
_BITS = 60
# Added to a purpose, these give two more independent kinds of random numbers.
_STEPS, _OFFSETS = 1 << 8, 1 << 9


@dataclass(frozen=True)
class BatchIndices:
    """Batches of ``size`` distinct numbers out of ``range(n)``, pass after pass, each pass in a new random order.

    Passes follow each other without a gap, so a batch may hold the tail of one pass and the head of the next. If both
    would hold the same example, the new pass visits it later, by less than ``size`` places. Every pass still visits
    every example once. Where two batches do not fit into a pass (``n < 2 size``), each batch is an independent uniform
    subset instead.

    Args:
        n: number of examples, at least ``size``.
        size: examples per batch, at least 0.
        seed: any integer.
        purpose: a :class:`~lightning_tpauc.data.seeding.Purpose`, or any integer.

    Example:
        >>> indices = BatchIndices(n=6, size=3, seed=0)
        >>> two_batches = indices.batches(0, 2)
        >>> np.sort(two_batches, axis=None).tolist()
        [0, 1, 2, 3, 4, 5]
        >>> bool((indices.batches(1, 2) == two_batches[1:]).all())
        True
    """

    n: int
    size: int
    seed: int = 0
    purpose: int = 0

    def batches(self, start: int, stop: int, columns: slice | None = None) -> Indices:
        """Batches ``start .. stop - 1``, or some columns of each.

        Args:
            start: first step, at least 0.
            stop: one past the last step.
            columns: the columns to compute; the whole batch if ``None``.

        Returns:
            int64 array ``(stop - start, number of columns)``; the ``size`` entries of a full row are distinct.
        """
        low, high, _ = (columns or slice(None)).indices(self.size)
        steps = np.arange(start, stop, dtype=np.int64)[:, None]
        cols = np.arange(low, high, dtype=np.int64)
        if steps.size == 0 or cols.size == 0:
            return np.empty((steps.size, cols.size), dtype=np.int64)
        if self.n < 2 * self.size:
            return self._permute(cols, steps)
        position = steps * self.size + cols
        which_pass = position // self.n
        drawn = self._permute(position - which_pass * self.n, which_pass)
        self._separate_passes(drawn, start, stop, low, high)
        return drawn

    def _separate_passes(self, drawn: Indices, start: int, stop: int, low: int, high: int) -> None:
        """Reorder the first ``size`` entries of each pass that begins inside a batch, in place.

        Entries that the previous pass's tail holds move behind the others. The tail has fewer than ``size`` entries.
        Because n >= 2 size, it lies outside the previous pass's own first ``size``, which alone are reordered. So both
        windows are known without replay.
        """
        first = max(1, -(-(start - 1) * self.size // self.n))
        last = (stop * self.size - 1) // self.n
        passes = np.arange(first, last + 1, dtype=np.int64)
        tail_length = passes * self.n % self.size
        passes, tail_length = passes[tail_length > 0], tail_length[tail_length > 0]
        if passes.size == 0:
            return
        columns = np.arange(self.size, dtype=np.int64)
        head = self._permute(columns, passes[:, None])
        tail = self._permute(self.n - self.size + columns, passes[:, None] - 1)
        # Entries are tagged with their row, so that one membership test serves all passes.
        tag = np.arange(passes.size, dtype=np.int64)[:, None] * self.n
        in_tail = columns >= self.size - tail_length[:, None]
        repeated = np.isin(head + tag, (tail + tag)[in_tail])
        head = np.take_along_axis(head, np.argsort(repeated, axis=1, kind="stable"), axis=1)
        step, column = np.divmod(passes[:, None] * self.n + columns, self.size)
        wanted = (step >= start) & (step < stop) & (column >= low) & (column < high)
        drawn[step[wanted] - start, column[wanted] - low] = head[wanted]

    def _permute(self, slots: Indices, passes: Indices) -> Indices:
        return permute(slots, passes, self.n, seed=self.seed, purpose=self.purpose)


class WeightedIndices:
    """Batches of ``size`` numbers out of ``range(n)``, in which each number occurs in proportion to its weight.

    This is systematic sampling, pass after pass. A pass lays all examples in a new random order on a line, each as long
    as its weight. The ``size`` places of a batch are equally far apart on it, and the batches of a pass shift them by
    equal parts of that distance, in random order, from a random beginning. So in a pass of M batches an example of
    weight w occurs ``M size w / sum`` times, rounded up or down, and exactly so in the mean over passes. An example
    whose weight is at most ``sum / size`` occurs at most once in a batch.

    A pass costs O(n) once, as permuting the examples does, and O(n) memory.

    Args:
        weights: float array ``(n,)`` of numbers above 0.
        size: examples per batch, at least 0.
        seed: any integer.
        purpose: a :class:`~lightning_tpauc.data.seeding.Purpose`, or any integer.

    Example:
        >>> indices = WeightedIndices(np.array([1.0, 1.0, 2.0]), size=2)
        >>> np.bincount(indices.batches(0, 100).ravel()).tolist()
        [50, 50, 100]
    """

    def __init__(self, weights: NDArray[np.float64], size: int, seed: int = 0, purpose: int = 0) -> None:
        self.n, self.size, self.seed, self.purpose = len(weights), size, seed, purpose
        # a power of two leaves the ratios of the weights as they are
        exponent = _BITS - math.frexp(math.fsum(weights.tolist()))[1]
        lengths = np.maximum(np.ldexp(weights, exponent).astype(np.int64), 1)
        #: Steps of a pass, and the distances between places of a batch and between those of batches.
        self.steps = max(1, -(-self.n // max(1, size)))
        self.stride = int(lengths.sum()) // max(1, size)
        self.shift = self.stride // self.steps
        if size <= most_distinct(weights):  # rounding could make one longer than the stride
            lengths = np.minimum(lengths, self.stride)
        self._lengths = lengths
        self._pass: tuple[int, Indices, Indices] | None = None

    def batches(self, start: int, stop: int, columns: slice | None = None) -> Indices:
        """Batches ``start .. stop - 1``, or some columns of each."""
        places = np.arange(self.size, dtype=np.int64)[columns or slice(None)] * self.stride
        drawn = np.empty((max(0, stop - start), len(places)), dtype=np.int64)
        if drawn.size == 0:
            return drawn
        for number in range(start // self.steps, (stop - 1) // self.steps + 1):
            first, last = max(start, number * self.steps), min(stop, (number + 1) * self.steps)
            order, ends = self._line(number)
            which, pass_number = np.arange(first, last) - number * self.steps, np.array(number)
            turns = permute(which, pass_number, self.steps, seed=self.seed, purpose=self.purpose + _STEPS)
            key = random_keys(self.seed, self.purpose + _OFFSETS, pass_number.reshape(1))[0]
            offsets = int(key) % self.shift + turns * self.shift
            found = np.searchsorted(ends, offsets[:, None] + places, side="right")
            drawn[first - start : last - start] = order[found]
        return drawn

    def _line(self, number: int) -> tuple[Indices, Indices]:
        """The order of a pass, and where each example ends on the line. The pass that was asked for last is kept."""
        if self._pass is None or self._pass[0] != number:
            order = permute(np.arange(self.n), np.array(number), self.n, seed=self.seed, purpose=self.purpose)
            self._pass = number, order, self._lengths[order].cumsum()
        return self._pass[1:]


def most_distinct(weights: NDArray[np.float64]) -> int:
    """The largest batch in which no example has to occur twice to be as frequent as its weight says.

    Example:
        >>> most_distinct(np.array([1.0, 1.0, 2.0])), most_distinct(np.array([0.1, 0.1, 0.1]))
        (2, 3)
    """
    return int(weights.sum() / weights.max() * (1 + 1e-9))


class SampleWeights:
    """The weights of the training examples, which draw the parts of batches.

    Args:
        positives: float array ``(n_pos,)`` of numbers above 0.
        negatives: float array ``(n_neg,)`` of numbers above 0; ``None`` if the negatives are a stream.

    Example:
        >>> weights = SampleWeights(np.array([1.0, 3.0]), np.ones(4))
        >>> weights.most_positives, weights.indices(2, seed=0, purpose=Purpose.NEGATIVES).n
        (1, 4)
    """

    def __init__(self, positives: NDArray[np.float64], negatives: NDArray[np.float64] | None) -> None:
        self.positives, self.negatives = positives, negatives
        self.most_positives = most_distinct(positives)
        self._indices: dict[tuple[int, int, Purpose], WeightedIndices] = {}

    def indices(self, size: int, seed: int, purpose: Purpose) -> WeightedIndices:
        """The object that draws one part of the batches. It is made once, since it holds its present pass.

        Args:
            size: examples of the part in each batch of all ranks.
            seed: of the order.
            purpose: which part. ``ALL_EXAMPLES`` counts positives first, then negatives.
        """
        key = size, seed, purpose
        if key not in self._indices:
            neg = np.empty(0) if self.negatives is None else self.negatives
            parts = {Purpose.POSITIVES: [self.positives], Purpose.ALL_EXAMPLES: [self.positives, neg]}
            self._indices[key] = WeightedIndices(np.concatenate(parts.get(purpose, [neg])), size, seed, purpose)
        return self._indices[key]


class ScoredRows(NamedTuple):
    """Rows from whose scores the exact dual variables of several tasks are solved.

    Attributes:
        pos: int64 array: rows that are positive for some task.
        others: int64 array: rows that are needed as negatives alone.
        negatives: for each task, an int64 array of the rows of its negatives, in ``pos`` or in ``others``.
    """

    pos: Indices
    others: Indices
    negatives: tuple[Indices, ...]


class TaskRows:
    """The rows that train several tasks.

    Args:
        labels: int8 array ``(n, K)`` of the whole training set: 1, 0, or -1 where a task was not measured.
        rows: int64 array of the rows that train.
        names: names of the K tasks.

    Example:
        >>> tasks = TaskRows(np.array([[1, 0], [-1, 1], [0, -1]], dtype=np.int8), np.arange(3), ("a", "b"))
        >>> tasks.num_positives, tasks.negatives.tolist()
        ((1, 1), [0, 2])
    """

    def __init__(self, labels: NDArray[np.int8], rows: Indices, names: tuple[str, ...]) -> None:
        self.labels, self.rows, self.names = labels, np.sort(rows), names
        own = labels[self.rows]
        #: For each task, rows of its positives. The algorithm's ``index`` counts them in this order.
        self.positives = tuple(self.rows[own[:, task] == 1] for task in range(labels.shape[1]))
        #: Rows that are negative for at least one task.
        self.negatives: Indices = self.rows[(own == 0).any(axis=1)]
        #: How many negatives each task has.
        self.num_negatives: tuple[int, ...] = tuple((own == 0).sum(axis=0).tolist())

    @property
    def num_positives(self) -> tuple[int, ...]:
        """How many positives each task has."""
        return tuple(map(len, self.positives))

    @cached_property
    def some_positive(self) -> Indices:
        """Rows that are positive for at least one task."""
        return self._where(self.labels[self.rows] == 1)

    @cached_property
    def measured(self) -> Indices:
        """Rows with a label of at least one task."""
        return self._where(self.labels[self.rows] >= 0)

    def _where(self, found: NDArray[np.bool_]) -> Indices:
        return self.rows[np.flatnonzero(found.any(axis=1))]

    def require_both(self) -> None:
        """Raise :class:`DataError` if a task has no positive or no negative."""
        for kind, counts in (("positive", self.num_positives), ("negative", self.num_negatives)):
            if not all(counts):
                raise DataError(missing_class(kind, counts, self.names, f"the {len(self.rows)} training examples"))

    def scored(self, max_negatives: int | None, seed: int) -> ScoredRows:
        """Rows to score: all positives, and for each task a uniform sample of its measured negatives.

        All tasks take their samples from one random order of the rows, so that they share most of them.
        """
        order = self.negatives
        if max_negatives is not None and len(order):
            order = order[permute(np.arange(len(order)), np.array(0), len(order), seed=seed, purpose=Purpose.SCORING)]
        is_neg = self.labels[order] == 0
        negatives = tuple(np.sort(order[column][:max_negatives]) for column in is_neg.T)
        others = np.setdiff1d(np.unique(np.concatenate(negatives)), self.some_positive, assume_unique=True)
        return ScoredRows(self.some_positive, others, negatives)

    def cut_scores(self, scored: ScoredRows, pos: Tensor, others: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The scores of each task's positives, in the order of ``index``, and of its negatives.

        Args:
            scored: what :meth:`scored` returned.
            pos: tensor ``(len(scored.pos), K)`` of scores.
            others: tensor ``(len(scored.others), K)`` of scores.
        """
        scores, rows = torch.cat([pos, others.reshape(-1, pos.shape[1])]), np.concatenate([scored.pos, scored.others])
        order = np.argsort(rows)

        def of(task: int, wanted: Indices) -> Tensor:
            places = order[np.searchsorted(rows, wanted, sorter=order)]
            return scores[torch.from_numpy(places).to(scores.device), task]

        pairs = zip(self.positives, scored.negatives, strict=True)
        return [(of(task, positives), of(task, negatives)) for task, (positives, negatives) in enumerate(pairs)]


def missing_class(kind: str, counts: tuple[int, ...], names: tuple[str, ...], where: str) -> str:
    """The message that tasks lack positives or negatives.

    Example:
        >>> missing_class("positive", (3, 0), ("a", "b"), "the training set")[:77]
        "Expected both classes of every task, but 'b' has no positive among the traini"
    """
    lacking = [repr(name) for name, count in zip(names, counts, strict=True) if not count]
    shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more tasks" if len(lacking) > 5 else "")
    return (
        f"Expected both classes of every task, but {shown} {'has' if len(lacking) == 1 else 'have'} no {kind} among "
        f"{where}. Leave out such columns of the labels, or add examples."
    )


# A task in play gets at least this many positives of a step, if the step has as many.
_LEAST = 4
# Up to this many tasks have orders that are independent of each other.
_MAX_TASKS = 1 << 32


class Training(Protocol):
    """What samplers ask of a training set."""

    tasks: TaskRows | None
    by_class: tuple[Indices, Indices]


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
    training: Training,
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
