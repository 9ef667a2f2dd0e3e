"""Rows of a training set with labels of several tasks: which are positive, negative and measured for each."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_tpauc.data.core.seeding import Purpose, permute
from lightning_tpauc.errors import DataError

Indices = NDArray[np.int64]


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
