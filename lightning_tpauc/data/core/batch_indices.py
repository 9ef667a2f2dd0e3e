"""Which examples the batch of step t draws, uniformly or by weight: a pure function of (seed, t)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.seeding import Purpose, permute, random_keys

Indices = NDArray[np.int64]

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
        purpose: a :class:`~lightning_tpauc.data.core.seeding.Purpose`, or any integer.

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
        purpose: a :class:`~lightning_tpauc.data.core.seeding.Purpose`, or any integer.

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
