"""Stratified splits, whose parts have the same share of positives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import is_real, is_whole

__all__ = ("as_fraction", "check_fold", "check_validation_source", "stratified_fold", "stratified_holdout")

Indices = NDArray[np.int64]


def check_validation_source(
    val_dataset: object, val_fraction: float | None, num_folds: int | None, fold: int | None
) -> None:
    """Raise :class:`ArgumentError` unless at most one source of validation data is given, and completely."""
    if (num_folds is None) != (fold is None):
        msg = f"Set `num_folds` and `fold` together, but got {num_folds} and {fold}."
        raise ArgumentError(msg)
    sources = {"val_dataset": val_dataset, "val_fraction": val_fraction, "num_folds": num_folds}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        msg = f"The validation set has one source, but got {' and '.join(given)}. Set the others to None."
        if getattr(val_dataset, "ndim", 0) == 1:
            msg += " Are these the labels? Then pass a pair, `PosNegDataModule((x, y), ...)`."
        raise ArgumentError(msg)


def as_fraction(fraction: Any) -> float:
    """A share as a Python float. A numpy float32 is taken as the decimal number that it prints.

    Args:
        fraction: a number in (0, 1).

    Raises:
        ArgumentError: if it is something else.

    Example:
        >>> as_fraction(np.float32(0.3))
        0.3
    """
    if not is_real(fraction) or not 0.0 < fraction < 1.0:
        msg = f"Expected the fraction to hold out, `val_fraction`, to be a number in (0, 1), but got {fraction!r}."
        raise ArgumentError(msg)
    return float(str(fraction)) if isinstance(fraction, np.floating) else float(fraction)


def check_fold(num_folds: Any, fold: Any) -> None:
    """Raise :class:`ArgumentError` unless the fold is one of at least 2."""
    if not (is_whole(num_folds) and is_whole(fold)) or num_folds < 2 or not 0 <= fold < num_folds:
        msg = f"Expected `fold` in 0 .. `num_folds` - 1 and at least 2 folds, but got fold {fold!r} of {num_folds!r}."
        raise ArgumentError(msg)


def stratified_holdout(labels: NDArray[np.int8], fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out), stratified by label.

    Args:
        labels: int array ``(n,)`` of 0 and 1.
        fraction: share to hold out, in (0, 1).
        seed: seed of the split.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``. Both have both classes: if the share of a rare class rounds
        to 0, one example is exchanged.

    Raises:
        ArgumentError: if ``fraction`` is not in (0, 1).
        DataError: if a class is too small to appear in both parts.

    Example:
        >>> kept, held_out = stratified_holdout(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    from sklearn.model_selection import train_test_split

    fraction = as_fraction(fraction)
    asked = (
        f"{fraction} of {len(labels)} examples, {int(labels.sum())} of them positive, with both classes in both parts"
    )
    if not 0 < labels.sum() < len(labels):
        msg = f"Can't hold out {asked}: there is only one class."
        raise DataError(msg)
    try:
        kept, held_out = train_test_split(
            np.arange(len(labels)), test_size=fraction, random_state=seed, stratify=labels, shuffle=True
        )
    except ValueError as error:
        msg = f"Can't hold out {asked} ({error}). Choose another fraction, or pass separate data sets."
        raise DataError(msg) from error
    _exchange(labels, kept, held_out, seed)
    return np.sort(kept), np.sort(held_out)


def _exchange(labels: NDArray[np.int8], kept: Indices, held_out: Indices, seed: int) -> None:
    """If a part lacks a class, swap one of its examples, in place, for one of that class."""
    generator = np.random.default_rng(seed)
    for part, other in ((held_out, kept), (kept, held_out)):
        for value in (0, 1):
            if (labels[part] != value).all():
                source = generator.choice(np.flatnonzero(labels[other] == value))
                sink = generator.integers(len(part))
                part[sink], other[source] = other[source], part[sink]


def stratified_fold(labels: NDArray[np.int8], num_folds: int, fold: int, seed: int) -> tuple[Indices, Indices]:
    """Rows of one fold of a stratified cross-validation, as (training, validation).

    Args:
        labels: int array ``(n,)`` of 0 and 1.
        num_folds: number of folds, at least 2.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        seed: seed of the folds.

    Returns:
        Two sorted int64 arrays that partition ``range(n)``; the validation parts of all folds do so, too.

    Raises:
        ArgumentError: if ``fold`` or ``num_folds`` is out of range.
        DataError: if a class has fewer examples than there are folds.

    Example:
        >>> train, val = stratified_fold(np.array([0, 0, 0, 0, 1, 1]), num_folds=2, fold=1, seed=0)
        >>> len(train), len(val)
        (3, 3)
    """
    from sklearn.model_selection import StratifiedKFold

    check_fold(num_folds, fold)
    smallest = int(min(labels.sum(), len(labels) - labels.sum()))
    if smallest < num_folds:
        msg = (
            f"Can't cut {num_folds} folds: the smaller class has {smallest} examples. Set `num_folds` to at most that."
        )
        raise DataError(msg)
    folds = StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels)
    train, val = list(folds)[fold]
    return np.sort(train), np.sort(val)
