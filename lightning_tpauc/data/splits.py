"""Stratified splits, whose parts have the same share of positives: of rows, of groups, and of several labels.

``labels`` are int8: ``(n,)`` of 0 and 1, or ``(n, K)`` of K labels with -1 where nothing was measured; ``groups`` are
numbers from 0 on. The parts are sorted int64 arrays that partition ``range(n)``, and so do the validation parts of all
folds.

Several labels are dealt out class by class, the rarest class of any label first (Sechidis, Tsoumakas and Vlahavas, "On
the stratification of multi-label data", 2011). Every class goes to the parts in proportion to what they still lack.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.data.sampler import missing_class
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import is_real, is_whole

Indices = NDArray[np.int64]
#: Random orders of the groups that are tried for a holdout.
_ORDERS = 32
# Random orders that are tried for several labels: where rare classes share examples, one may leave a part without.
_ATTEMPTS = 20


class Split(NamedTuple):
    """Which part of the training set validates instead of training: a share, or a fold of several, or none.

    Attributes:
        val_fraction: share of the training set, in (0, 1).
        num_folds: number of folds, at least 2.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        seed: seed of the split.
    """

    val_fraction: float | None = None
    num_folds: int | None = None
    fold: int | None = None
    seed: int = 0

    @property
    def parts(self) -> str | None:
        """The argument that asks for a split; ``None`` if all rows train."""
        return "val_fraction" if self.val_fraction is not None else "num_folds" if self.num_folds is not None else None

    def cut(
        self, labels: NDArray[np.int8], groups: Indices | None = None, names: tuple[str, ...] | None = None
    ) -> tuple[Indices, Indices]:
        """Rows that train, and rows that validate."""
        if self.val_fraction is not None:
            return holdout(labels, self.val_fraction, self.seed, groups, names)
        if self.num_folds is not None:
            return cross_validation(labels, self.num_folds, self.fold, self.seed, groups, names)
        if groups is not None:
            msg = "`groups` says what a split keeps together: set `val_fraction`, or `num_folds` and `fold`, as well."
            raise ArgumentError(msg)
        return np.arange(len(labels), dtype=np.int64), np.empty(0, dtype=np.int64)


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
    """A share as a Python float. A numpy float32 is taken as the decimal number that it prints."""
    if not is_real(fraction) or not 0.0 < fraction < 1.0:
        msg = f"Expected the fraction to hold out, `val_fraction`, to be a number in (0, 1), but got {fraction!r}."
        raise ArgumentError(msg)
    return float(str(fraction)) if isinstance(fraction, np.floating) else float(fraction)


def holdout(
    labels: NDArray[np.int8],
    fraction: float,
    seed: int,
    groups: Indices | None = None,
    names: tuple[str, ...] | None = None,
) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out).

    Groups are put into 32 random orders. The first groups of an order are held out, up to some end. Of all orders and
    ends, the one is taken whose shares of the positives and of the negatives are nearest to ``fraction``.
    """
    fraction = as_fraction(fraction)
    if groups is not None:
        return _group_holdout(labels, groups, fraction, seed)
    if labels.ndim == 2:
        kept, held_out = label_parts(labels, np.array([1.0 - fraction, fraction]), seed, names)
        return kept, held_out
    from sklearn.model_selection import train_test_split

    positives = int(labels.sum())
    asked = f"{fraction} of {len(labels)} examples, {positives} of them positive, with both classes in both parts"
    if not 0 < positives < len(labels):
        msg = f"Can't hold out {asked}: there is only one class."
        raise DataError(msg)
    rows = np.arange(len(labels))
    try:
        kept, held_out = train_test_split(rows, test_size=fraction, random_state=seed, stratify=labels, shuffle=True)
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


def _group_holdout(labels: NDArray[np.int8], groups: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    counts = _counts_of_groups(labels, groups)
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


def cross_validation(
    labels: NDArray[np.int8],
    num_folds: int,
    fold: Any,
    seed: int,
    groups: Indices | None = None,
    names: tuple[str, ...] | None = None,
) -> tuple[Indices, Indices]:
    """Rows of one fold, as (training, validation): scikit-learn's stratified folds where there is one label."""
    from sklearn.model_selection import StratifiedKFold

    if not (is_whole(num_folds) and is_whole(fold)) or num_folds < 2 or not 0 <= fold < num_folds:
        msg = f"Expected `fold` in 0 .. `num_folds` - 1 and at least 2 folds, but got fold {fold!r} of {num_folds!r}."
        raise ArgumentError(msg)
    if groups is not None:
        train, val = _group_folds(labels, groups, num_folds, seed)[fold]
    elif labels.ndim == 2:
        val = label_parts(labels, np.full(num_folds, 1.0 / num_folds), seed, names)[fold]
        return np.setdiff1d(np.arange(len(labels)), val, assume_unique=True), val
    else:
        smallest = int(min(labels.sum(), len(labels) - labels.sum()))
        if smallest < num_folds:
            msg = (
                f"Can't cut {num_folds} folds: the smaller class has {smallest} examples. Set `num_folds` to at most "
                "that."
            )
            raise DataError(msg)
        folds = StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels)
        train, val = list(folds)[fold]
    return np.sort(train), np.sort(val)


def _group_folds(labels: NDArray[np.int8], groups: Indices, num_folds: int, seed: int) -> list[Any]:
    from sklearn.model_selection import StratifiedGroupKFold

    counts = _counts_of_groups(labels, groups)
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
    return parts


def _counts_of_groups(labels: NDArray[np.int8], groups: Indices) -> Indices:
    """Negatives and positives of each group, of one label after the other: ``(number of groups, 2 K)``."""
    columns, size = labels.reshape(len(labels), -1).T, int(groups.max()) + 1
    of_class = [np.bincount(groups[column == value], minlength=size) for column in columns for value in (0, 1)]
    return np.stack(of_class, axis=1)


def _strata(labels: NDArray[np.int8]) -> Indices:
    """0 for rows without a positive label, else one more than the number of the rarest label that is positive."""
    columns = labels.reshape(len(labels), -1) == 1
    strata = np.zeros(len(labels), dtype=np.int64)
    for label in np.argsort(-columns.sum(axis=0), kind="stable"):
        strata[columns[:, label]] = label + 1
    return strata


def _with_class(counts: Indices) -> str:
    """How many groups have examples of each class; of several labels, of the one where they are fewest."""
    having = (counts > 0).sum(axis=0).reshape(-1, 2)
    neg, pos = having[having.min(axis=1).argmin()].tolist()
    which = "" if len(having) == 1 else f" of label {int(having.min(axis=1).argmin())}"
    return f"{pos} of {len(counts)} groups have positives{which}, and {neg} have negatives"


def label_parts(
    labels: NDArray[np.int8], shares: NDArray[np.float64], seed: int, names: tuple[str, ...] | None = None
) -> list[Indices]:
    """Cut rows into parts of given shares, stratified by all of several labels."""
    names = names or tuple(map(str, range(labels.shape[1])))
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
        f"Found no {len(shares)} parts with both classes of every label: {names[lacking[0] % len(names)]!r} is left "
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
    """If a part lacks a class, move an example to it, in place, that another part can spare."""
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
                f"Can't cut {num_parts} parts with both classes of every label: {names[task]!r} has {own[task]} "
                f"{kind}(s). Leave out that column of the labels, cut fewer folds, or pass separate data sets."
            )
            raise DataError(msg)
