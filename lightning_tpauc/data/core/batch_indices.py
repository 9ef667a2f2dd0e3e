"""Which examples the batch of step t draws: a pure function of (seed, t)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.permutation import permute

__all__ = ("BatchIndices",)

Indices = NDArray[np.int64]


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
        purpose: a :class:`~lightning_tpauc.data.core.permutation.Purpose`, or any integer.

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
