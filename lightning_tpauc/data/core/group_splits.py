"""Splits that keep the examples of a group together: those of a patient, or of a molecular scaffold."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.core.splits import as_fraction, check_fold
from lightning_tpauc.errors import DataError

__all__ = ("group_fold", "group_holdout")

Indices = NDArray[np.int64]

#: Random orders of the groups that are tried for a holdout.
_ORDERS = 32


def group_holdout(labels: NDArray[np.int8], groups: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out), with each group as a whole in one of the parts.

    The groups are put into 32 random orders, and the first ones of an order are held out: of all orders and all ends,
    the one whose shares of the positives and of the negatives come nearest to ``fraction``.

    Args:
        labels: int array ``(n,)`` of 0 and 1.
        groups: int array ``(n,)`` of numbers from 0 on.
        fraction: share to hold out, in (0, 1).
        seed: seed of the split.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``. Both have both classes.

    Raises:
        ArgumentError: if ``fraction`` is not in (0, 1).
        DataError: if no such split is found.

    Example:
        >>> kept, held_out = group_holdout(np.array([0, 1] * 4), np.array([0, 0, 1, 1, 2, 2, 3, 3]), 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    fraction = as_fraction(fraction)
    counts = _counts(labels, groups)
    totals, generator = counts.sum(axis=0), np.random.default_rng(seed)
    best, held_out = np.inf, np.empty(0, dtype=np.int64)
    for _ in range(_ORDERS):
        order = generator.permutation(len(counts))
        taken = counts[order].cumsum(axis=0)
        distance = np.square(taken / np.maximum(totals, 1) - fraction).sum(axis=1)
        distance[~((taken > 0) & (taken < totals)).all(axis=1)] = np.inf
        end = int(distance.argmin())
        if distance[end] < best:
            best, held_out = distance[end], order[: end + 1]
    if not held_out.size:
        msg = (
            f"Can't hold out {fraction} of {len(labels)} examples by `groups`, with both classes in both parts: "
            f"{_with_class(counts)}. Pass finer groups, or a `val_dataset`."
        )
        raise DataError(msg)
    is_held = np.isin(groups, held_out)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def group_fold(
    labels: NDArray[np.int8], groups: Indices, num_folds: int, fold: int, seed: int
) -> tuple[Indices, Indices]:
    """Rows of one fold of a cross-validation by scikit-learn's ``StratifiedGroupKFold``, as (training, validation).

    Args:
        labels: int array ``(n,)`` of 0 and 1.
        groups: int array ``(n,)`` of numbers from 0 on.
        num_folds: number of folds, at least 2.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        seed: seed of the folds.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``; the validation parts of all folds do so, too.

    Raises:
        ArgumentError: if ``fold`` or ``num_folds`` is out of range.
        DataError: if a part of any fold lacks a class.

    Example:
        >>> train, val = group_fold(np.array([0, 1] * 4), np.array([0, 0, 1, 1, 2, 2, 3, 3]), 2, fold=1, seed=0)
        >>> len(train), len(val)
        (4, 4)
    """
    from sklearn.model_selection import StratifiedGroupKFold

    check_fold(num_folds, fold)
    counts = _counts(labels, groups)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes with fewer examples than folds: checked below
            folds = StratifiedGroupKFold(num_folds, shuffle=True, random_state=seed)
            parts = list(folds.split(np.zeros(len(labels)), _strata(labels), groups))
    except ValueError:  # a class with fewer examples than folds
        parts = []
    totals = counts.sum(axis=0)
    held = [counts[np.unique(groups[val])].sum(axis=0) for _, val in parts]
    if not parts or any(((count == 0) | (count == totals)).any() for count in held):
        msg = (
            f"Can't cut {num_folds} folds by `groups`, with both classes in both parts of each: {_with_class(counts)}. "
            "Set `num_folds` lower, or pass finer groups."
        )
        raise DataError(msg)
    train, val = parts[fold]
    return np.sort(train), np.sort(val)


def _counts(labels: NDArray[np.int8], groups: Indices) -> Indices:
    """Negatives and positives of each group, of one task after the other: ``(number of groups, 2 K)``."""
    columns, size = labels.reshape(len(labels), -1).T, int(groups.max()) + 1
    of_class = [np.bincount(groups[column == value], minlength=size) for column in columns for value in (0, 1)]
    return np.stack(of_class, axis=1)


def _strata(labels: NDArray[np.int8]) -> NDArray[np.int64]:
    """0 for rows without a positive label, else one more than the number of the rarest task that is positive."""
    columns = labels.reshape(len(labels), -1) == 1
    strata = np.zeros(len(labels), dtype=np.int64)
    for task in np.argsort(-columns.sum(axis=0), kind="stable"):
        strata[columns[:, task]] = task + 1
    return strata


def _with_class(counts: Indices) -> str:
    """How many groups have examples of each class; of several tasks, of the one where they are fewest."""
    having = (counts > 0).sum(axis=0).reshape(-1, 2)
    neg, pos = having[having.min(axis=1).argmin()].tolist()
    which = "" if len(having) == 1 else f" of label {int(having.min(axis=1).argmin())}"
    return f"{pos} of {len(counts)} groups have positives{which}, and {neg} have negatives"
