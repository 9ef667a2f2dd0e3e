"""The rows that each rank loads in step t: a pure function of (seed, t, rank, number of ranks)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.batch_indices import BatchIndices, SampleWeights, WeightedIndices
from lightning_tpauc.data.core.seeding import Purpose
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
