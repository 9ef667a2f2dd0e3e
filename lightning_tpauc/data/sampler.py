"""The rows that each rank loads in step t: a pure function of (seed, t, rank, number of ranks).

With several labels, these stand in a random circle, and each step takes the next T of them: they are in play. T is
the number of labels, or a quarter of the positives of a step if that is fewer, so that a label in play gets at least
four of them. Each gets the same number of its positives, ``num_pos / T`` rounded down, or all that it has, in its own
order, pass after pass. An example that is drawn for two labels is there twice. One label is always in play.

The negatives are drawn uniformly from all examples that are negative for at least one label. For each label, those that
are known to be negative count. So they are a uniform sample of its negatives.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.seeding import Indices, Purpose, permute, random_keys
from lightning_tpauc.distributed import rank, world_size
from lightning_tpauc.errors import ArgumentError, DataError

# Indices are computed for many steps at once, which makes them cheap: for this many examples, with 4 MB of temporaries.
_BLOCK = 1 << 15
# A label in play gets at least this many positives of a step, if the step has as many.
_LEAST = 4
# Up to this many labels have orders that are independent of each other.
_MAX_LABELS = 1 << 32
#: Weights become whole numbers whose sum has at most this many bits, so that no later sum is rounded.
_BITS = 60
# Added to a purpose, these give two more independent kinds of random numbers.
_STEPS, _OFFSETS = 1 << 8, 1 << 9


class World(NamedTuple):
    """Position of this process among the ``size`` processes of a run: ``rank`` is in ``0 .. size - 1``."""

    rank: int
    size: int


def current_world() -> World:
    """Rank and number of processes, ``World(0, 1)`` without a process group."""
    # Call it when an iteration starts: most samplers are built before the group exists.
    return World(rank(), world_size())


def slice_of(total: int, world: World) -> slice:
    """The rank's contiguous slice of ``total`` items; the slices of all ranks partition ``range(total)``."""
    each, more = divmod(total, world.size)
    start = world.rank * each + min(world.rank, more)
    return slice(start, start + each + (world.rank < more))


class BatchSizes(NamedTuple):
    """Positives, negatives and dual negatives in a batch: S, B~ and B."""

    num_pos: int
    num_neg: int
    num_dual_neg: int = 0


class PlannedMasks(NamedTuple):
    """Which examples of a step count for which of K labels, bool ``(K, size)``; see ``PosNegBatch``."""

    pos: NDArray[np.bool_]
    neg: NDArray[np.bool_]
    dual_neg: NDArray[np.bool_] | None = None


class BatchPlan(NamedTuple):
    """The examples of one step on one rank."""

    step: int
    #: Rows of the training set, [positives | negatives | dual negatives]. Negatives of a stream have no rows.
    rows: Indices
    #: ``(num_pos,)``: the positives' positions among all training positives; ``(K, num_pos)`` with several labels.
    index: Indices  # type: ignore[assignment]  # shadows tuple.index, which nobody calls on a plan
    sizes: BatchSizes
    #: Sizes on every rank; ``None`` in one process.
    shares: tuple[BatchSizes, ...] | None
    #: With several labels, which examples count for which; ``None`` with one.
    masks: PlannedMasks | None = None


@lru_cache(maxsize=64)
def shares_of(totals: BatchSizes, size: int) -> tuple[BatchSizes, ...]:
    """The sizes on each of ``size`` ranks of a global batch."""
    parts = [[slice_of(total, World(rank, size)) for total in totals] for rank in range(size)]
    return tuple(BatchSizes(*(part.stop - part.start for part in own)) for own in parts)


def _plan(
    step: int, rows: Indices, index: Indices, totals: BatchSizes, world: World, masks: PlannedMasks | None = None
) -> BatchPlan:
    shares = shares_of(totals, world.size)
    return BatchPlan(step, rows, index, shares[world.rank], shares if world.size > 1 else None, masks)


# ---------------------------------------------------------------- numbers of examples


def distinct_batches(
    n: int, size: int, start: int, stop: int, own: slice = slice(None), *, seed: int = 0, purpose: int = 0
) -> Indices:
    """Batches ``start .. stop - 1`` of ``size`` distinct numbers out of ``range(n)``, or the columns ``own`` of each.

    Pass after pass goes through all numbers, each in a new random order. Passes follow each other without a gap, so a
    batch may hold the tail of one pass and the head of the next. If both would hold the same number, the new pass
    visits it later, by less than ``size`` places. Where two batches do not fit into a pass (``n < 2 size``), each batch
    is an independent uniform subset instead.
    """
    order = partial(permute, n=n, seed=seed, purpose=purpose)
    entries, steps = np.arange(size), np.arange(start, stop)[:, None]
    columns = entries[own]
    if n < 2 * size or columns.size == 0:
        return order(columns, steps)
    passes, slots = np.divmod(steps * size + columns, n)
    drawn = order(slots, passes)
    # Where a pass begins inside a batch, those of its first `size` entries that the previous pass's tail holds move
    # behind the others. That tail lies outside the previous pass's own first `size`, so nothing has to be replayed.
    begun = np.arange(max(1, -(-(start - 1) * size // n)), (stop * size - 1) // n + 1)[:, None]
    head, tail, tag = order(entries, begun), order(n - size + entries, begun - 1), begun * n
    repeated = np.isin(head + tag, (tail + tag)[entries >= size - tag % size])
    head = np.take_along_axis(head, np.argsort(repeated, axis=1, kind="stable"), axis=1)
    step, column = np.divmod(tag + entries, size)
    wanted = (step >= start) & (step < stop) & (column >= columns[0]) & (column <= columns[-1])
    drawn[step[wanted] - start, column[wanted] - columns[0]] = head[wanted]
    return drawn


class WeightedIndices:
    """Batches of ``size`` numbers out of ``range(n)``, in which each number occurs in proportion to its weight.

    This is systematic sampling, pass after pass. A pass lays all examples in a new random order on a line, each as long
    as its weight. The ``size`` places of a batch are equally far apart on it, and the batches of a pass shift them by
    equal parts of that distance, in random order, from a random beginning. So in a pass of M batches an example of
    weight w occurs ``M size w / sum`` times, rounded up or down, and exactly so in the mean over passes. An example
    whose weight is at most ``sum / size`` occurs at most once in a batch.

    A pass costs O(n) once, as permuting the examples does, and O(n) memory.
    """

    def __init__(self, weights: NDArray[np.float64], size: int, seed: int = 0, purpose: int = 0) -> None:
        self.size, self.seed, self.purpose = size, seed, purpose
        # a power of two leaves the ratios of the weights as they are
        exponent = _BITS - math.frexp(math.fsum(weights.tolist()))[1]
        lengths = np.maximum(np.ldexp(weights, exponent).astype(np.int64), 1)
        #: Steps of a pass, and the distances between places of a batch and between those of batches.
        self.steps = max(1, -(-len(weights) // max(1, size)))
        self.stride = int(lengths.sum()) // max(1, size)
        self.shift = self.stride // self.steps
        # rounding could make one longer than the stride
        self._lengths = np.minimum(lengths, self.stride) if size <= most_distinct(weights) else lengths
        self._line = lru_cache(maxsize=1)(self._lay)

    def batches(self, start: int, stop: int, own: slice = slice(None)) -> Indices:
        """Batches ``start .. stop - 1``, or the columns ``own`` of each: int64 ``(stop - start, columns)``."""
        places = np.arange(self.size)[own] * self.stride
        drawn = np.empty((stop - start, len(places)), dtype=np.int64)
        for number in range(start // self.steps, (stop - 1) // self.steps + 1) if drawn.size else ():
            steps = np.arange(max(start, number * self.steps), min(stop, (number + 1) * self.steps))
            order, ends, beginning, turns = self._line(number)
            offsets = beginning + turns[steps - number * self.steps] * self.shift
            drawn[steps - start] = order[np.searchsorted(ends, offsets[:, None] + places, side="right")]
        return drawn

    def _lay(self, number: int) -> tuple[Indices, Indices, int, Indices]:
        """A pass: the order of the examples, where each ends, the random beginning, and the order of the batches."""
        which = np.array(number)
        count = len(self._lengths)
        order = permute(np.arange(count), which, count, seed=self.seed, purpose=self.purpose)
        turns = permute(np.arange(self.steps), which, self.steps, seed=self.seed, purpose=self.purpose + _STEPS)
        beginning = int(random_keys(self.seed, self.purpose + _OFFSETS, which.reshape(1))[0]) % self.shift
        return order, self._lengths[order].cumsum(), beginning, turns


def most_distinct(weights: NDArray[np.float64]) -> int:
    """The largest batch in which no example has to occur twice to be as frequent as its weight says."""
    return int(weights.sum() / weights.max() * (1 + 1e-9)) if len(weights) else 0


# ---------------------------------------------------------------- samplers


class LabelRows:
    """The rows that train K labels; ``labels`` ``(n, K)`` are 1, 0, or -1 where nothing is known."""

    def __init__(self, labels: NDArray[np.int8], rows: Indices, names: tuple[str, ...]) -> None:
        self.labels, self.rows, self.names = labels, np.sort(rows), names
        own = labels[self.rows]
        #: For each label, rows of its positives. The algorithm's ``index`` counts them in this order.
        self.positives = tuple(self.rows[column == 1] for column in own.T)
        #: How many positives each label has.
        self.num_positives = tuple(map(len, self.positives))
        positive, negative = (own == 1).any(axis=1), (own == 0).any(axis=1)
        #: Rows that are known for at least one label; that are positive for one; and that are only negative.
        self.measured, self.some_positive, self.others = (
            self.rows[found] for found in (positive | negative, positive, negative & ~positive)
        )

    def require_both(self) -> None:
        """Raise :class:`DataError` if a label has no positive or no negative."""
        own = self.labels[self.rows]
        for kind, value in (("positive", 1), ("negative", 0)):
            lacking = [repr(self.names[k]) for k in np.flatnonzero(~(own == value).any(axis=0))]
            if lacking:
                raise DataError(
                    f"Expected both classes of every label, but there is no {kind} of {', '.join(lacking)} among the "
                    f"{len(own)} training examples. Leave out such labels, or add examples."
                )


class BatchSampler(ABC):
    """Base of the samplers.

    Apart from the index arrays, the memory used does not depend on their lengths.

    Args:
        training: a :class:`~lightning_tpauc.data.parts.TrainingPart`. The algorithm's ``index`` counts positives in the
            order of its rows. Its ``weights`` are what the rows are drawn by; ``None`` draws all alike.
        sizes: examples per step **on each rank**.
        seed: seed of the order; different seeds give unrelated orders.
        stream: the negatives, unless they are in the training set. Its ``length`` is that of one pass, or ``None``.
    """

    #: Steps of an epoch if the user sets them; ``None`` leaves them to the sampler.
    epoch_steps: int | None = None

    def __init__(self, training: Any, sizes: BatchSizes, seed: int = 0, stream: Any = None) -> None:
        self.positives, self.negatives = training.by_class
        self.sizes, self.seed, self.stream = sizes, seed, stream
        #: What is known of several labels; ``None`` with one.
        self.label_rows: LabelRows | None = training.tasks
        self.weights: NDArray[np.float64] | None = training.weights
        #: Number of training positives, n+, and names of the labels; with several, the numbers of each, else ``None``.
        self.num_positives: int | tuple[int, ...] = training.num_positives
        self.label_names = None if self.label_rows is None else self.label_rows.names
        self._weighted: dict[tuple[int, int], WeightedIndices] = {}
        if self.label_rows is not None:
            self.label_rows.require_both()
        for name, rows in (("positive", self.positives), ("negative", self.negatives)):
            if len(rows) == 0 and (name == "positive" or stream is None):
                counted = " with a `sample_weight` above 0" if self.weights is not None else ""
                raise DataError(f"Expected both classes in the training set, but got 0 {name} examples{counted}.")

    @abstractmethod
    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes summed over ``world_size`` ranks, after all caps."""

    @abstractmethod
    def steps_per_epoch(self, world_size: int) -> int:
        """Steps of one epoch on ``world_size`` ranks."""

    @abstractmethod
    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """The plans of steps ``start .. stop - 1``, computed together."""

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:  # noqa: ARG002
        """What to say if a step has fewer positives than it should; ``asked``: whether the user gave ``num_pos``."""
        return None

    def __len__(self) -> int:
        """Steps of one epoch with the current number of ranks."""
        return self.epoch_steps or self.steps_per_epoch(current_world().size)

    def plans(self, start: int, count: int) -> Iterator[BatchPlan]:
        """This rank's plans for ``count`` steps from global step ``start`` on."""
        world = current_world()
        steps = max(1, _BLOCK // sum(self.global_sizes(world.size)))
        for first in range(start, start + count, steps):
            yield from self.block(first, min(first + steps, start + count), world)

    def _draw(
        self, rows: Indices, size: int, purpose: Purpose, start: int, stop: int, own: slice = slice(None)
    ) -> Indices:
        """For each step, which ``size`` of these rows it takes, or some columns of them."""
        if self.weights is None:
            return distinct_batches(len(rows), size, start, stop, own, seed=self.seed, purpose=purpose)
        if (size, purpose) not in self._weighted:  # it holds its present pass
            self._weighted[size, purpose] = WeightedIndices(self.weights[rows], size, self.seed, purpose)
        return self._weighted[size, purpose].batches(start, stop, own)


class PosNegSampler(BatchSampler):
    """Draws fixed numbers of positives and negatives, and optionally a second, independent batch of negatives.

    The global batch of step t has ``sizes`` times W examples, of which each rank takes a slice. No example occurs twice
    in a part. If there are fewer positives than S W, every step takes all of them. With several labels, ``num_pos``
    counts the positives of all labels in play.

    An epoch ends when every label has seen all of its positives, and not before a pass over the negatives is complete:
    n+/S or n-/B steps (global sizes), whichever is larger, rounded up.
    """

    @property
    def most_positives(self) -> int:
        """How many positives of one label a step has at most."""
        return len(self.positives) if self.weights is None else most_distinct(self.weights[self.positives])

    def in_play(self, world_size: int) -> tuple[int, Indices]:
        """How many labels are in play in a step, T, and how many positives each label gets then, ``(K,)``."""
        most = [self.most_positives] if self.label_rows is None else self.label_rows.num_positives
        total = self.sizes.num_pos * world_size
        chosen = min(len(most), max(1, total // _LEAST))
        return chosen, np.minimum(total // chosen, np.array(most))

    def global_sizes(self, world_size: int) -> BatchSizes:
        """See :meth:`BatchSampler.global_sizes`: the most positives that a step may have."""
        _, num_neg, num_dual_neg = (size * world_size for size in self.sizes)
        n_neg = len(self.negatives)
        for name, size in (("num_neg", num_neg), ("num_dual_neg", num_dual_neg)):
            if size > n_neg and self.stream is None:
                raise DataError(
                    f"One step takes {size} negatives (`{name}`={size // world_size} on {world_size} rank(s)), but the "
                    f"training set has only {n_neg}. Set `{name}` to at most {n_neg // world_size}."
                )
        chosen, each = self.in_play(world_size)
        return BatchSizes(int(np.sort(each)[-chosen:].sum()), num_neg, num_dual_neg)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`. Of a stream, a step reads the negatives and the dual negatives."""
        chosen, each = self.in_play(world_size)
        counts = np.atleast_1d(self.num_positives)
        visits = int((-(-counts // each)).max())
        _, num_neg, num_dual_neg = self.global_sizes(world_size)
        read, n_neg = num_neg, len(self.negatives)
        if self.stream is not None:
            read, n_neg = num_neg + num_dual_neg, self.stream.length or 0
        return max(-(-visits * len(counts) // chosen), -(-n_neg // read))

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:
        """See :meth:`BatchSampler.cap_message`."""
        wanted, most = self.sizes.num_pos * world_size, self.most_positives
        by_weight = most < len(self.positives)
        # a rare class that is smaller than the usual size is no surprise
        if self.label_rows is not None or wanted <= most or not (asked or by_weight):
            return None
        why = (
            f"one has 1/{most} of the sum of `sample_weight`, or more" if by_weight else "every step takes all of them"
        )
        asked_for = f"{wanted} (`num_pos`={self.sizes.num_pos} on {world_size} rank(s))"
        return f"A step has {most} positives instead of {asked_for}: {why}."

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        totals = self.global_sizes(world.size)
        negatives = [np.empty((stop - start, 0), np.int64)]
        for purpose, total in ((Purpose.NEGATIVES, totals.num_neg), (Purpose.DUAL_NEGATIVES, totals.num_dual_neg)):
            if self.stream is None:
                drawn = self._draw(self.negatives, total, purpose, start, stop, slice_of(total, world))
                negatives.append(self.negatives[drawn])
        if self.label_rows is not None:
            yield from self._plans_of_labels(self.label_rows, totals, np.hstack(negatives), start, world)
            return
        own = slice_of(totals.num_pos, world)
        index = self._draw(self.positives, totals.num_pos, Purpose.POSITIVES, start, stop, own)
        rows = np.hstack([self.positives[index], *negatives])
        for step, its_rows, its_index in zip(range(start, stop), rows, index, strict=True):
            yield _plan(step, its_rows, its_index, totals, world)

    def _plans_of_labels(
        self, rows: LabelRows, totals: BatchSizes, negatives: Indices, start: int, world: World
    ) -> Iterator[BatchPlan]:
        chosen, each = self.in_play(world.size)
        stop, num_labels = start + len(negatives), len(each)
        circle = permute(np.arange(num_labels), np.array(0), num_labels, seed=self.seed, purpose=Purpose.LABELS)
        visits, places = np.divmod(np.arange(start * chosen, stop * chosen).reshape(-1, chosen), num_labels)
        labels, first, last = circle[places], int(visits[0, 0]), int(visits[-1, -1]) + 1
        # for each label, the positions that its visits draw, (K, visits, most); -1 pads
        drawn = np.full((num_labels, last - first, int(each.max())), -1)
        for k, (count, size) in enumerate(zip(rows.num_positives, each.tolist(), strict=True)):
            purpose = Purpose.LABEL_POSITIVES * _MAX_LABELS + k
            drawn[k, :, :size] = distinct_batches(count, size, first, last, seed=self.seed, purpose=purpose)
        ends, positives = np.cumsum([0, *rows.num_positives]), np.concatenate(rows.positives)
        num_neg = slice_of(totals.num_neg, world)
        for step, its_labels, neg in zip(range(start, stop), labels, negatives, strict=True):
            positions = drawn[its_labels, visits[step - start] - first]
            there = positions >= 0
            label, position = np.repeat(its_labels, there.sum(axis=1)), positions[there]
            its_totals, own = totals._replace(num_pos=len(label)), slice_of(len(label), world)
            label, position = label[own], position[own]
            index, is_drawn = np.zeros((2, num_labels, len(label)), np.int64)
            index[label, np.arange(len(label))], is_drawn[label, np.arange(len(label))] = position, 1
            parts = np.split(np.ascontiguousarray(rows.labels[neg].T) == 0, [num_neg.stop - num_neg.start], axis=1)
            masks = PlannedMasks(is_drawn == 1, parts[0], parts[1] if totals.num_dual_neg else None)
            its_rows = np.concatenate([positives[ends[label] + position], neg])
            yield _plan(step, its_rows, index, its_totals, world, masks)


class UniformSampler(BatchSampler):
    """Draws uniform batches from the whole training set, for cross-entropy.

    A global batch has ``num_pos + num_neg`` times W examples, sorted [positives | negatives]. The number of positives
    varies and may be 0. The last batch of a pass is filled from the next pass, so all batches have one size. With
    several labels, batches hold the examples of which a label is known, and each is in the first and in the second
    part: masks say what it counts for.

    An epoch is one pass, rounded up. If the training set has fewer than two batches, each batch is an independent
    subset instead.
    """

    @cached_property
    def examples(self) -> Indices:
        """Rows that are drawn from; of one label the positives come first."""
        if self.label_rows is not None:
            return self.label_rows.measured
        return np.concatenate([self.positives, self.negatives])

    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes of the global batch as (0, all, 0): the classes' sizes vary; at most the whole training set."""
        return BatchSizes(0, min((self.sizes.num_pos + self.sizes.num_neg) * world_size, len(self.examples)))

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        return -(-len(self.examples) // self.global_sizes(world_size).num_neg)

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        total, n_pos = self.global_sizes(world.size).num_neg, len(self.positives)
        for step, drawn in enumerate(self._draw(self.examples, total, Purpose.ALL_EXAMPLES, start, stop), start):
            if self.label_rows is None:
                pos, neg = drawn[drawn < n_pos], drawn[drawn >= n_pos]
                index = pos[slice_of(len(pos), world)]
                rows = self.examples[np.concatenate([index, neg[slice_of(len(neg), world)]])]
                yield _plan(step, rows, index, BatchSizes(len(pos), len(neg)), world)
            else:
                rows = self.examples[drawn[slice_of(total, world)]]
                labels = np.ascontiguousarray(self.label_rows.labels[rows].T)
                is_pos, index = labels == 1, np.zeros(labels.shape, dtype=np.int64)
                for label, positives in enumerate(self.label_rows.positives):
                    index[label, is_pos[label]] = np.searchsorted(positives, rows[is_pos[label]])
                yield _plan(step, rows, index, BatchSizes(total, total), world, PlannedMasks(is_pos, labels == 0))


class FullSampler(BatchSampler):
    """Takes all positives and all negatives in every step, whatever ``sizes`` are. An epoch is one step."""

    def global_sizes(self, world_size: int) -> BatchSizes:  # noqa: ARG002
        """The numbers of positives and negatives."""
        return BatchSizes(len(self.positives), len(self.negatives))

    def steps_per_epoch(self, world_size: int) -> int:  # noqa: ARG002
        """One."""
        return 1

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        totals = self.global_sizes(world.size)
        pos, neg = slice_of(totals.num_pos, world), slice_of(totals.num_neg, world)
        rows = np.concatenate([self.positives[pos], self.negatives[neg]])
        for step in range(start, stop):
            yield _plan(step, rows, np.arange(pos.start, pos.stop), totals, world)


#: The samplers that a data module's ``sampling`` names.
SAMPLERS: dict[str, type[BatchSampler]] = {"pos_neg": PosNegSampler, "uniform": UniformSampler, "full": FullSampler}


def sampler_of(training: Any, kind: str, sizes: BatchSizes, seed: int, stream: Any = None) -> BatchSampler:
    """The sampler of a training part, by its name; ``stream`` are the negatives if they are no part of it."""
    given = None
    if kind == "full" and training.tasks is not None:
        given = f"the labels have {len(training.tasks.names)} columns. Choose one"
    elif kind == "full" and training.weights is not None:
        given = "`sample_weight` says how often each is drawn. Leave it out"
    elif kind != "pos_neg" and stream is not None:
        given = "`negatives` is a stream. Put the negatives into `train_dataset`"
    if given is not None:
        raise ArgumentError(
            f"`sampling={kind!r}` takes all examples alike, but {given}, or train with `sampling='pos_neg'` and an "
            "algorithm such as STACO."
        )
    return SAMPLERS[kind](training, sizes, seed, stream)
