"""The rows that each rank loads in step t: a pure function of (seed, t, rank, number of ranks).

With several labels, these stand in a random circle, and each step takes the next T of them: they are in play. T is
the number of labels, or a quarter of the positives of a step if that is fewer, so that a label in play gets at least
four of them. Each gets the same number of its positives, ``num_pos / T`` rounded down, or all that it has, in its own
order, pass after pass. An example that is drawn for two labels is there twice. One label is always in play.

The negatives are drawn uniformly from all examples that are negative for at least one label. For each label, those that
are known to be negative count. So they are a uniform sample of its negatives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_tpauc.data.seeding import Purpose, permute, random_keys
from lightning_tpauc.distributed import rank, world_size
from lightning_tpauc.errors import ArgumentError, DataError

Indices = NDArray[np.int64]
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


def usual_sizes(num_pos: int | None, num_neg: int | None, *, several: bool) -> tuple[int, int]:
    """Positives and negatives per step and rank. What is not given is 64 and 192, with several labels 128 and 128."""
    # Several labels share the positives of a step. See benchmarks/README.md.
    usual = (128, 128) if several else (64, 192)
    return usual[0] if num_pos is None else num_pos, usual[1] if num_neg is None else num_neg


def shares_of(totals: BatchSizes, world: World) -> tuple[BatchSizes, ...]:
    """The sizes on every rank of a global batch."""
    if world.size == 1:
        return (totals,)
    parts = [[slice_of(total, World(rank, world.size)) for total in totals] for rank in range(world.size)]
    return tuple(BatchSizes(*(part.stop - part.start for part in sizes)) for sizes in parts)


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


def _plan(
    step: int,
    rows: Indices,
    index: Indices,
    shares: tuple[BatchSizes, ...],
    world: World,
    masks: PlannedMasks | None = None,
) -> BatchPlan:
    return BatchPlan(step, rows, index, shares[world.rank], shares if world.size > 1 else None, masks)


@dataclass(frozen=True)
class BatchIndices:
    """Batches of ``size`` distinct numbers out of ``range(n)``, pass after pass, each pass in a new random order.

    Passes follow each other without a gap, so a batch may hold the tail of one pass and the head of the next. If both
    would hold the same example, the new pass visits it later, by less than ``size`` places. Every pass still visits
    every example once. Where two batches do not fit into a pass (``n < 2 size``), each batch is an independent uniform
    subset instead.
    """

    n: int
    size: int
    seed: int = 0
    purpose: int = 0

    def batches(self, start: int, stop: int, columns: slice | None = None) -> Indices:
        """Batches ``start .. stop - 1``, or some columns of each: int64 ``(stop - start, number of columns)``."""
        low, high, _ = (columns or slice(None)).indices(self.size)
        steps = np.arange(start, stop, dtype=np.int64)[:, None]
        cols = np.arange(low, high, dtype=np.int64)
        if steps.size == 0 or cols.size == 0:
            return np.empty((steps.size, cols.size), dtype=np.int64)
        if self.n < 2 * self.size:
            return self._permute(cols, steps)
        which_pass, slots = np.divmod(steps * self.size + cols, self.n)
        drawn = self._permute(slots, which_pass)
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
        """See :meth:`BatchIndices.batches`."""
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
    """The largest batch in which no example has to occur twice to be as frequent as its weight says."""
    return int(weights.sum() / weights.max() * (1 + 1e-9))


class SampleWeights:
    """The weights of the training examples, which draw the parts of batches."""

    def __init__(self, positives: NDArray[np.float64], negatives: NDArray[np.float64] | None) -> None:
        self.positives = positives
        self.negatives = np.empty(0) if negatives is None else negatives
        self.most_positives = most_distinct(positives) if len(positives) else 0
        self._indices: dict[tuple[int, int, Purpose], WeightedIndices] = {}

    def indices(self, size: int, seed: int, purpose: Purpose) -> WeightedIndices:
        """The object that draws one part of the batches. It is made once, since it holds its present pass."""
        # of all examples, the positives come first
        key = size, seed, purpose
        if key not in self._indices:
            parts = {Purpose.POSITIVES: [self.positives], Purpose.ALL_EXAMPLES: [self.positives, self.negatives]}
            weights = np.concatenate(parts.get(purpose, [self.negatives]))
            self._indices[key] = WeightedIndices(weights, size, seed, purpose)
        return self._indices[key]


class LabelRows:
    """The rows that train several labels.

    Args:
        labels: int8 array ``(n, K)`` of the whole training set: 1, 0, or -1 where nothing is known.
        rows: int64 array of the rows that train.
        names: names of the K labels.
    """

    def __init__(self, labels: NDArray[np.int8], rows: Indices, names: tuple[str, ...]) -> None:
        self.labels, self.rows, self.names = labels, np.sort(rows), names
        own = labels[self.rows]
        #: For each label, rows of its positives. The algorithm's ``index`` counts them in this order.
        self.positives = tuple(self.rows[column == 1] for column in own.T)
        #: Rows that are negative for at least one label.
        self.negatives: Indices = self.rows[(own == 0).any(axis=1)]
        #: How many negatives each label has.
        self.num_negatives: tuple[int, ...] = tuple((own == 0).sum(axis=0).tolist())

    @property
    def num_positives(self) -> tuple[int, ...]:
        """How many positives each label has."""
        return tuple(map(len, self.positives))

    @cached_property
    def some_positive(self) -> Indices:
        """Rows that are positive for at least one label."""
        found: Indices = self.rows[(self.labels[self.rows] == 1).any(axis=1)]
        return found

    @cached_property
    def measured(self) -> Indices:
        """Rows of which at least one label is known."""
        found: Indices = self.rows[(self.labels[self.rows] >= 0).any(axis=1)]
        return found

    def require_both(self) -> None:
        """Raise :class:`DataError` if a label has no positive or no negative."""
        for kind, counts in (("positive", self.num_positives), ("negative", self.num_negatives)):
            if not all(counts):
                raise DataError(missing_class(kind, counts, self.names, f"the {len(self.rows)} training examples"))

    @cached_property
    def others(self) -> Indices:
        """Rows that are negative for at least one label, and positive for none."""
        return np.setdiff1d(self.negatives, self.some_positive, assume_unique=True)

    def cut_scores(self, pos: Tensor, others: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The scores of each label's positives, in the order of ``index``, and of its negatives.

        ``pos`` are scores ``(len(some_positive), K)``, ``others`` scores ``(len(others), K)``.
        """
        rows = np.concatenate([self.some_positive, self.others])
        order = np.argsort(rows)
        scores = torch.cat([pos, others.reshape(-1, pos.shape[1])])[torch.from_numpy(order).to(pos.device)]
        labels = torch.from_numpy(self.labels[rows[order]]).to(pos.device)
        parts = zip(scores.T, labels.T, strict=True)
        return [(its_scores[known == 1], its_scores[known == 0]) for its_scores, known in parts]


def missing_class(kind: str, counts: tuple[int, ...], names: tuple[str, ...], where: str) -> str:
    """The message that labels lack positives or negatives."""
    lacking = [repr(name) for name, count in zip(names, counts, strict=True) if not count]
    return (
        f"Expected both classes of every label, but {_first(lacking)} {'has' if len(lacking) == 1 else 'have'} no "
        f"{kind} among {where}. Leave out such columns of the labels, or add examples."
    )


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class BatchSampler(ABC):
    """Base of the samplers.

    Apart from the index arrays, the memory used does not depend on their lengths.

    Args:
        positives: int array ``(n_pos,)``: rows of the positive examples. The algorithm's ``index`` counts positives in
            this order. With several labels, rows that are positive for some label.
        negatives: int array ``(n_neg,)``: rows of the negative examples likewise; ``None`` if they are a stream.
        sizes: examples per step **on each rank**.
        seed: seed of the order; different seeds give unrelated orders.
        label_rows: the rows of each of several labels; ``None`` with one.
        weights: what examples are drawn by; ``None`` draws all alike.
        length: number of negatives of one pass of a stream; ``None`` if it is unknown.
    """

    #: Steps of an epoch if the user sets them; ``None`` leaves them to the sampler.
    epoch_steps: int | None = None

    def __init__(
        self,
        positives: Indices,
        negatives: Indices | None,
        sizes: BatchSizes,
        seed: int = 0,
        *,
        label_rows: LabelRows | None = None,
        weights: SampleWeights | None = None,
        length: int | None = None,
    ) -> None:
        for name, size in zip(BatchSizes._fields, sizes, strict=True):
            least = 0 if name == "num_dual_neg" else 1
            if size < least:
                msg = f"Expected `{name}` to be at least {least}, but got {size}."
                raise ArgumentError(msg)
        if label_rows is not None:
            label_rows.require_both()
        for name, rows in (("positive", positives), ("negative", negatives)):
            if rows is not None and len(rows) == 0:
                counted = " with a `sample_weight` above 0" if weights is not None else ""
                msg = f"Expected both classes in the training set, but got 0 {name} examples{counted}."
                raise DataError(msg)
        self.positives, self.sizes, self.seed = positives, sizes, seed
        self.streamed, self.negatives = negatives is None, np.empty(0, np.int64) if negatives is None else negatives
        self.label_rows, self.weights, self.length = label_rows, weights, length

    @property
    def num_positives(self) -> int | tuple[int, ...]:
        """Number of training positives, n+; of each label with several."""
        return len(self.positives) if self.label_rows is None else self.label_rows.num_positives

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels; ``None`` with one."""
        return None if self.label_rows is None else self.label_rows.names

    @property
    def most_positives(self) -> int:
        """How many positives a step has at most."""
        return len(self.positives) if self.weights is None else self.weights.most_positives

    @property
    def most_negatives(self) -> int | None:
        """How many negatives a step has at most; ``None`` if that is unknown."""
        return self.length if self.streamed else len(self.negatives)

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
        """A message for the user if a step has fewer positives than asked for; ``None`` if it has enough.

        ``asked``: whether the user gave ``num_pos``. A rare class that is smaller than the usual size is no surprise.
        """
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

    def _draw(self, n: int, size: int, purpose: Purpose, steps: tuple[int, int], columns: slice | None) -> Indices:
        """For each step, ``size`` of n examples, or some columns of them."""
        if self.weights is not None:
            return self.weights.indices(size, self.seed, purpose).batches(*steps, columns)
        return BatchIndices(n, size, self.seed, purpose).batches(*steps, columns)


class PosNegSampler(BatchSampler):
    """Draws fixed numbers of positives and negatives, and optionally a second, independent batch of negatives.

    The global batch of step t has ``sizes`` times W examples. Rank r takes a contiguous slice of each of its three
    parts, ``total // W + (r < total % W)`` examples. No example occurs twice in a part. If there are fewer positives
    than S W, every step takes all of them. With several labels, ``num_pos`` counts the positives of all labels in play.

    An epoch ends when every label has seen all of its positives, and not before a pass over the negatives is complete:
    n+/S or n-/B steps (global sizes), whichever is larger, rounded up.
    """

    def in_play(self, world_size: int) -> tuple[int, Indices]:
        """How many labels are in play in a step, T, and how many positives each label gets then, ``(K,)``."""
        most = [self.most_positives] if self.label_rows is None else self.label_rows.num_positives
        total = self.sizes.num_pos * world_size
        chosen = min(len(most), max(1, total // _LEAST))
        return chosen, np.minimum(total // chosen, np.array(most))

    def global_sizes(self, world_size: int) -> BatchSizes:
        """See :meth:`BatchSampler.global_sizes`: the most positives that a step may have.

        Raises:
            DataError: if there are fewer negatives than one step takes.
        """
        _, num_neg, num_dual_neg = (size * world_size for size in self.sizes)
        n_neg = len(self.negatives)
        for name, size in (("num_neg", num_neg), ("num_dual_neg", num_dual_neg)):
            if size > n_neg and not self.streamed:
                msg = (
                    f"One step takes {size} negatives (`{name}`={size // world_size} on {world_size} rank(s)), but the "
                    f"training set has only {n_neg}. Set `{name}` to at most {n_neg // world_size}."
                )
                raise DataError(msg)
        chosen, each = self.in_play(world_size)
        return BatchSizes(int(np.sort(each)[-chosen:].sum()), num_neg, num_dual_neg)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`. Of a stream, a step reads the negatives and the dual negatives."""
        chosen, each = self.in_play(world_size)
        counts = np.atleast_1d(self.num_positives)
        visits = int((-(-counts // each)).max())
        _, num_neg, num_dual_neg = self.global_sizes(world_size)
        read = num_neg + num_dual_neg if self.streamed else num_neg
        return max(-(-visits * len(counts) // chosen), -(-(self.most_negatives or 0) // read))

    def cap_message(self, world_size: int, *, asked: bool) -> str | None:
        """See :meth:`BatchSampler.cap_message`; also says which labels rarely meet a negative of their own."""
        wanted, most = self.sizes.num_pos * world_size, self.most_positives
        if self.label_rows is not None:
            return self._message_of_labels(self.label_rows, world_size, asked)
        size = f"(`num_pos`={self.sizes.num_pos} on {world_size} rank(s))"
        if wanted <= most:
            return None
        if most < len(self.positives):
            return (
                f"A step has {most} positives instead of {wanted} {size}: the largest `sample_weight` of a positive is "
                f"1/{most} of their sum or more, so in a step of more positives it would have to come twice."
            )
        message = (
            f"The training set has {most} positives, fewer than the {wanted} of one step {size}: every step takes all "
            "of them."
        )
        return message if asked else None

    def _message_of_labels(self, rows: LabelRows, world_size: int, asked: bool) -> str | None:
        chosen, each = self.in_play(world_size)
        share, num_neg = self.sizes.num_pos * world_size // chosen, self.global_sizes(world_size).num_neg
        few = [f"{rows.names[k]!r} ({each[k]})" for k in np.flatnonzero(each < share) if asked]
        seen = num_neg / len(self.negatives)
        rare = [repr(name) for name, count in zip(rows.names, rows.num_negatives, strict=True) if count * seen < 1]
        messages = [
            f"A label gets up to {share} positives of a step. These labels have fewer, so a step takes all of them: "
            f"{_first(few)}.",
            "Not every step has a known negative of these labels, and leaves them out if it has none: "
            f"{_first(rare)}. Raise `num_neg`, or leave these columns out.",
        ]
        return " ".join(message for message, names in zip(messages, (few, rare), strict=True) if names) or None

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        totals, steps = self.global_sizes(world.size), (start, stop)
        negatives = np.empty((stop - start, 0), np.int64)
        if not self.streamed:
            parts = (totals.num_neg, Purpose.NEGATIVES), (totals.num_dual_neg, Purpose.DUAL_NEGATIVES)
            n_neg = len(self.negatives)
            drawn = [self._draw(n_neg, total, purpose, steps, slice_of(total, world)) for total, purpose in parts]
            negatives = self.negatives[np.hstack(drawn)]
        if self.label_rows is not None:
            yield from self._plans_of_labels(self.label_rows, totals, negatives, start, world)
            return
        own = slice_of(totals.num_pos, world)
        index = self._draw(len(self.positives), totals.num_pos, Purpose.POSITIVES, steps, own)
        rows = np.hstack([self.positives[index], negatives]).astype(np.int64)
        shares = shares_of(totals, world)
        for step, its_rows, its_index in zip(range(start, stop), rows, index, strict=True):
            yield _plan(step, its_rows, its_index, shares, world)

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
            drawn[k, :, :size] = BatchIndices(count, size, self.seed, purpose).batches(first, last)
        ends, positives = np.cumsum([0, *rows.num_positives]), np.concatenate(rows.positives)
        for step, its_labels, neg in zip(range(start, stop), labels, negatives, strict=True):
            positions = drawn[its_labels, visits[step - start] - first]
            there = positions >= 0
            label, position = np.repeat(its_labels, there.sum(axis=1)), positions[there]
            shares = shares_of(totals._replace(num_pos=len(label)), world)
            own, (num_pos, num_neg, _) = slice_of(len(label), world), shares[world.rank]
            label, position = label[own], position[own]
            index, is_drawn = np.zeros((num_labels, num_pos), np.int64), np.zeros((num_labels, num_pos), dtype=bool)
            index[label, np.arange(num_pos)], is_drawn[label, np.arange(num_pos)] = position, True
            is_neg = np.ascontiguousarray(rows.labels[neg].T) == 0
            dual = is_neg[:, num_neg:] if totals.num_dual_neg else None
            its_rows = np.concatenate([positives[ends[label] + position], neg])
            yield _plan(step, its_rows, index, shares, world, PlannedMasks(is_drawn, is_neg[:, :num_neg], dual))


class UniformSampler(BatchSampler):
    """Draws uniform batches from the whole training set, for cross-entropy.

    A global batch has ``num_pos + num_neg`` times W examples, sorted [positives | negatives]. The number of positives
    varies and may be 0. The last batch of a pass is filled from the next pass, so no example is dropped and all batches
    have one size. Rank r takes a contiguous slice of each class. With several labels, batches hold the examples of
    which a label is known, and each is in the first and in the second part: masks say what it counts for.

    An epoch is one pass, rounded up. If the training set has fewer than two batches, each batch is an independent
    subset instead.
    """

    @property
    def num_examples(self) -> int:
        """Examples of a pass."""
        one = len(self.positives) + len(self.negatives)
        return one if self.label_rows is None else len(self.label_rows.measured)

    def global_sizes(self, world_size: int) -> BatchSizes:
        """Sizes of the global batch as (0, all, 0): the classes' sizes vary; at most the whole training set."""
        total = (self.sizes.num_pos + self.sizes.num_neg) * world_size
        return BatchSizes(0, min(total, self.num_examples), 0)

    def steps_per_epoch(self, world_size: int) -> int:
        """See :meth:`BatchSampler.steps_per_epoch`."""
        return -(-self.num_examples // self.global_sizes(world_size).num_neg)

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        total = self.global_sizes(world.size).num_neg
        own = None if self.label_rows is None else slice_of(total, world)
        drawn = self._draw(self.num_examples, total, Purpose.ALL_EXAMPLES, (start, stop), own)
        for step, numbers in zip(range(start, stop), drawn, strict=True):
            if self.label_rows is None:
                shares, rows, index, masks = (*self._parts(numbers, world), None)
            else:
                shares = shares_of(BatchSizes(total, total), world)
                rows, index, masks = _masked(self.label_rows, self.label_rows.measured[numbers])
            yield _plan(step, rows, index, shares, world, masks)

    def _parts(self, numbers: Indices, world: World) -> tuple[tuple[BatchSizes, ...], Indices, Indices]:
        """Shares, rows and index of one label. Positives have the lowest numbers, so a number gives its class."""
        n_pos = len(self.positives)
        pos, neg = numbers[numbers < n_pos], numbers[numbers >= n_pos] - n_pos
        index = pos[slice_of(len(pos), world)]
        rows = np.concatenate([self.positives[index], self.negatives[neg[slice_of(len(neg), world)]]])
        return shares_of(BatchSizes(len(pos), len(neg)), world), rows.astype(np.int64), index


def _masked(label_rows: LabelRows, rows: Indices) -> tuple[Indices, Indices, PlannedMasks]:
    """Some rows with their positions among the positives of each label, and which labels they count for."""
    labels = np.ascontiguousarray(label_rows.labels[rows].T)
    is_pos, index = labels == 1, np.zeros(labels.shape, dtype=np.int64)
    for label, positives in enumerate(label_rows.positives):
        index[label, is_pos[label]] = np.searchsorted(positives, rows[is_pos[label]])
    return rows, index, PlannedMasks(is_pos, labels == 0)


class FullSampler(BatchSampler):
    """Takes all positives and all negatives in every step. An epoch is one step.

    ``sizes`` are ignored. Rank r takes a contiguous slice of each class.
    """

    def global_sizes(self, world_size: int) -> BatchSizes:  # noqa: ARG002
        """The numbers of positives and negatives."""
        return BatchSizes(len(self.positives), len(self.negatives))

    def steps_per_epoch(self, world_size: int) -> int:  # noqa: ARG002
        """One."""
        return 1

    def block(self, start: int, stop: int, world: World) -> Iterator[BatchPlan]:
        """See :meth:`BatchSampler.block`."""
        totals = self.global_sizes(world.size)
        shares, pos = shares_of(totals, world), slice_of(totals.num_pos, world)
        rows = np.concatenate([self.positives[pos], self.negatives[slice_of(totals.num_neg, world)]]).astype(np.int64)
        for step in range(start, stop):
            yield _plan(step, rows, np.arange(pos.start, pos.stop), shares, world)


#: The samplers that a data module's ``sampling`` names.
SAMPLERS: dict[str, type[BatchSampler]] = {"pos_neg": PosNegSampler, "uniform": UniformSampler, "full": FullSampler}
_NO_STREAM = {
    "uniform": "draws from positives and negatives together; set `sampling='pos_neg'` to draw them apart,",
    "full": "takes all negatives in every step; train with another algorithm, such as STACO,",
}


def sampler_of(
    training: Any,
    kind: str,
    sizes: BatchSizes,
    seed: int,
    *,
    stream: Any = None,
    weights: SampleWeights | None = None,
) -> BatchSampler:
    """The sampler of a training set, by its name; ``stream`` are the negatives, unless they are in the training set.

    ``training`` has ``by_class``, the rows of positives and negatives, and ``tasks``, those of several labels.
    """
    positives, negatives = training.by_class
    msg = None
    if training.tasks is not None and kind == "full":
        msg = (
            f"`sampling={kind!r}` takes one label, but the labels have {len(training.tasks.names)} columns. Choose one "
            "column, or train with an algorithm that draws batches, such as STACO."
        )
    elif weights is not None and kind == "full":
        msg = (
            "`sample_weight` says how often an example is drawn, but FullBatch (`sampling='full'`) takes each once in "
            "every step. Train with another algorithm, such as STACO, or leave the weights out."
        )
    elif stream is not None and kind != "pos_neg":
        msg = (
            f"`sampling={kind!r}` {_NO_STREAM[kind]} or put the negatives into `train_dataset`: `negatives` is a "
            "stream, which can't be indexed."
        )
    if msg is not None:
        raise ArgumentError(msg)
    own, length = (negatives, None) if stream is None else (None, stream.length)
    return SAMPLERS[kind](positives, own, sizes, seed, label_rows=training.tasks, weights=weights, length=length)
