"""Splits of data with labels of several tasks, whose parts have the same share of positives of every task.

The examples are dealt out class by class, the rarest class of any task first (Sechidis, Tsoumakas and Vlahavas, "On the
stratification of multi-label data", 2011). Every class then goes to the parts in proportion to what they still lack.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.splits import as_fraction, check_fold
from lightning_tpauc.data.core.task_rows import missing_class
from lightning_tpauc.errors import DataError

__all__ = ("task_fold", "task_holdout", "task_parts")

Indices = NDArray[np.int64]

# Classes of two examples that share examples may be dealt out so that a part lacks one. Another order may do better.
_ATTEMPTS = 20


def task_holdout(
    labels: NDArray[np.int8], fraction: float, seed: int, names: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out), stratified by the labels of all tasks.

    Args:
        labels: int8 array ``(n, K)`` of 1, 0 and -1, which was not measured.
        fraction: share to hold out, in (0, 1).
        seed: seed of the split.
        names: names of the tasks.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``. Both have positives and negatives of every task.

    Raises:
        ArgumentError: if ``fraction`` is not in (0, 1).
        DataError: if a task has too few positives or negatives for that.

    Example:
        >>> labels = np.array([[1, 0], [1, 1], [0, 1], [0, -1], [0, 0], [1, 0], [0, 1], [0, 0]], dtype=np.int8)
        >>> kept, held_out = task_holdout(labels, 0.5, seed=0, names=("a", "b"))
        >>> len(kept), len(held_out)
        (4, 4)
    """
    fraction = as_fraction(fraction)
    kept, held_out = task_parts(labels, np.array([1.0 - fraction, fraction]), seed, names)
    return kept, held_out


def task_fold(
    labels: NDArray[np.int8], num_folds: int, fold: int, seed: int, names: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Rows of one fold of a cross-validation stratified by the labels of all tasks, as (training, validation).

    Args:
        labels: int8 array ``(n, K)`` of 1, 0 and -1, which was not measured.
        num_folds: number of folds, at least 2.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        seed: seed of the folds.
        names: names of the tasks.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``; the validation parts of all folds do so, too.

    Raises:
        ArgumentError: if ``fold`` or ``num_folds`` is out of range.
        DataError: if a task has fewer positives or negatives than there are folds.

    Example:
        >>> labels = np.array([[1, 0], [1, 1], [0, 1], [0, -1], [0, 0]], dtype=np.int8)
        >>> train, val = task_fold(labels, num_folds=2, fold=1, seed=0, names=("a", "b"))
        >>> len(train) + len(val)
        5
    """
    check_fold(num_folds, fold)
    parts = task_parts(labels, np.full(num_folds, 1.0 / num_folds), seed, names)
    val = parts[fold]
    return np.setdiff1d(np.arange(len(labels)), val, assume_unique=True), val


def task_parts(
    labels: NDArray[np.int8], shares: NDArray[np.float64], seed: int, names: tuple[str, ...]
) -> list[Indices]:
    """Cut rows into parts, stratified by the labels of all tasks.

    Args:
        labels: int8 array ``(n, K)`` of 1, 0 and -1, which was not measured.
        shares: float array of the shares of the parts, of sum 1; a part of share 0 is empty.
        seed: seed of the split.
        names: names of the tasks.

    Returns:
        For each part, a sorted int64 array.

    Raises:
        DataError: if a task has too few positives or negatives for all parts.

    Example:
        >>> labels = np.array([[1, 0], [1, 1], [0, 1], [0, -1], [0, 0], [-1, 1]], dtype=np.int8)
        >>> [len(part) for part in task_parts(labels, np.array([0.5, 0.0, 0.5]), seed=0, names=("a", "b"))]
        [3, 0, 3]
    """
    filled = np.flatnonzero(shares)
    parts = filled[_deal(labels, shares[filled], seed, names)]
    return [np.flatnonzero(parts == part) for part in range(len(shares))]


def _deal(labels: NDArray[np.int8], shares: NDArray[np.float64], seed: int, names: tuple[str, ...]) -> Indices:
    """The part of each row, ``(n,)``."""
    classes = np.hstack([labels == 1, labels == 0])
    _check_counts(classes.sum(axis=0), len(shares), names)
    for attempt in range(_ATTEMPTS):
        generator = np.random.default_rng([seed, attempt])
        parts = _deal_once(classes, shares, generator)
        _repair(parts, classes, len(shares), generator)
        lacking = [int(counts.argmin()) for counts in _counts(parts, classes, len(shares)) if not counts.all()]
        if not lacking:
            return parts
    kind = "positive" if lacking[0] < len(names) else "negative"
    msg = (
        f"Found no {len(shares)} parts with both classes of every task: {names[lacking[0] % len(names)]!r} is left "
        f"without a {kind} in one. Leave out that column of the labels, or pass separate data sets."
    )
    raise DataError(msg)


def _deal_once(classes: NDArray[np.bool_], shares: NDArray[np.float64], generator: np.random.Generator) -> Indices:
    count = len(classes)
    # the last column stands for all examples: it deals out those that are in no class
    groups = np.column_stack([classes, np.ones(count, dtype=bool)])
    parts, wanted = np.full(count, -1), groups.sum(axis=0)[:, None] * shares
    left = groups.sum(axis=0)
    while left[-1]:
        chosen = int(np.where(left > 0, left, count + 1).argmin())
        rows = np.flatnonzero((parts < 0) & groups[:, chosen])
        lacks = _counts(parts, groups, len(shares))[:, chosen] == 0
        parts[generator.permutation(rows)] = np.repeat(
            np.arange(len(shares)), _quota(wanted[chosen], len(rows), lacks, generator)
        )
        dealt = _counts(np.where(np.isin(np.arange(count), rows), parts, -1), groups, len(shares))
        wanted -= dealt.T
        left = left - dealt.sum(axis=0)
    return parts


def _counts(parts: Indices, classes: NDArray[np.bool_], num_parts: int) -> Indices:
    """How many examples of each class each part has, ``(num_parts, classes)``."""
    return np.stack([classes[parts == part].sum(axis=0) for part in range(num_parts)])


def _quota(
    wanted: NDArray[np.float64], count: int, lacks: NDArray[np.bool_], generator: np.random.Generator
) -> Indices:
    """How many of ``count`` rows each part gets: one where the class is lacking, the others where it is missed most."""
    quota = np.zeros(len(wanted), dtype=np.int64)
    tie = generator.random(len(wanted)) * 1e-6
    needy = np.flatnonzero(lacks)
    quota[needy[np.argsort(-(wanted + tie)[needy])][:count]] = 1
    rest = count - int(quota.sum())
    missed = np.maximum(wanted - quota, 0.0)
    missed = missed if missed.sum() > 0 else np.full(len(wanted), 1.0)
    exact = rest * missed / missed.sum()
    quota += exact.astype(np.int64)
    spare = count - int(quota.sum())
    quota[np.argsort(-(exact % 1.0 + tie))[:spare]] += 1
    return quota


def _repair(parts: Indices, classes: NDArray[np.bool_], num_parts: int, generator: np.random.Generator) -> None:
    """Where a part lacks a class, move an example to it, in place, that the other part can spare."""
    counts = _counts(parts, classes, num_parts)
    for column in np.argsort(counts.sum(axis=0), kind="stable"):
        for part in np.flatnonzero(counts[:, column] == 0):
            for row in generator.permutation(np.flatnonzero(classes[:, column])):
                other = parts[row]
                if (counts[other][classes[row]] > 1).all():
                    counts[other] -= classes[row]
                    counts[part] += classes[row]
                    parts[row] = part
                    break


def _check_counts(counts: Indices, num_parts: int, names: tuple[str, ...]) -> None:
    for kind, own in zip(("positive", "negative"), counts.reshape(2, -1).tolist(), strict=True):
        if not all(own):
            raise DataError(missing_class(kind, tuple(own), names, "the examples to split"))
        if min(own) < num_parts:
            task = own.index(min(own))
            msg = (
                f"Can't cut {num_parts} parts with both classes of every task: {names[task]!r} has {own[task]} "
                f"{kind}(s). Leave out that column of the labels, cut fewer folds, or pass separate data sets."
            )
            raise DataError(msg)
