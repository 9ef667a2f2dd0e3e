"""Stratified splits, whose parts have the same share of positives: of rows, of groups, and of several labels.

``labels`` are int8: ``(n,)`` of 0 and 1, or ``(n, K)`` of K labels with -1 where nothing was measured; ``groups`` are
numbers from 0 on. The parts are sorted int64 arrays that partition ``range(n)``, and so do the validation parts of all
folds.

A row of several labels goes by the rarest of its classes, positive or negative for one of them. The parts take turns
with the rows of each, in the order of the golden ratio, so that they get their shares of every class.
"""

import math
import warnings
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import check_choice, check_count, require_range

Indices = NDArray[np.int64]
Labels = NDArray[np.int8]
#: Names of several labels, for messages.
Names = tuple[str, ...] | None
#: Random orders of the groups that are tried for a holdout.
_ORDERS = 32
# Random orders that are tried for several labels: where rare classes share examples, one may leave a part without.
_ATTEMPTS = 100
_GOLDEN = 0.6180339887498949


class Split(NamedTuple):
    """Which rows of the training set are split off: a share or a fold that validates, and a share that calibrates.

    Attributes:
        val_fraction: share of the training set that validates, in (0, 1).
        num_folds: number of folds, at least 2.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        calibration_fraction: share of the training set that calibrates, in (0, 1). It is the same for all folds.
        seed: seed of the split.
    """

    val_fraction: float | None = None
    num_folds: int | None = None
    fold: int | None = None
    calibration_fraction: float | None = None
    seed: int = 0

    def argument_of(self, part: str) -> str | None:
        """The argument that asks to split off a part; ``None`` if there is none."""
        asked = {"val": ("val_fraction", "num_folds"), "calibration": ("calibration_fraction",)}.get(part, ())
        return next((name for name in asked if getattr(self, name) is not None), None)

    def cut(self, labels: Labels, groups: Indices | None = None, names: Names = None) -> dict[str, Indices]:
        """Rows by the part that they are for: ``"train"``, and what is split off."""
        rest, parts = np.arange(len(labels), dtype=np.int64), dict[str, Indices]()
        if self.calibration_fraction is not None:
            rest, parts["calibration"] = holdout(labels, self.calibration_fraction, self.seed, groups, names)
            labels, groups = labels[rest], None if groups is None else np.unique(groups[rest], return_inverse=True)[1]
        if self.val_fraction is not None:
            share = self.val_fraction / (1.0 - (self.calibration_fraction or 0.0))
            kept, held = holdout(labels, share, self.seed, groups, names)
        elif self.num_folds is not None:
            kept, held = cross_validation(labels, self.num_folds, self.fold, self.seed, groups, names)
        else:
            return parts | {"train": rest}
        return parts | {"train": rest[kept], "val": rest[held]}


def check_sources(what: str, **sources: object) -> None:
    """Raise :class:`ArgumentError` if a part of the data has several sources."""
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        msg = f"The {what} set has one source, but got {' and '.join(given)}. Set the others to None."
        if getattr(sources[given[0]], "ndim", 0) == 1:
            msg += " Are these the labels? Then pass a pair, `PosNegDataModule((x, y), ...)`."
        raise ArgumentError(msg)


def check_shares(**shares: float | None) -> None:
    """Raise :class:`ArgumentError` unless the shares that are given are in (0, 1) and leave rows to train on."""
    for name, share in shares.items():
        if share is not None:
            require_range(name, share, 0.0, 1.0, open_low=True, open_high=True)
    if sum(share or 0.0 for share in shares.values()) >= 1.0:
        raise ArgumentError(f"Expected shares below 1 in all, since the other rows train, but got {shares}.")


def holdout(
    labels: Labels, fraction: float, seed: int, groups: Indices | None = None, names: Names = None
) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out).

    32 random orders of the groups are tried, and in each all ways to hold out its first groups. The best has shares of
    the positives and of the negatives that are nearest to ``fraction``.
    """
    if groups is not None:
        return _group_holdout(labels, fraction, seed, groups, names)
    if labels.ndim == 2:
        kept, held_out = label_parts(labels, np.array([1.0 - fraction, fraction]), seed, names)
        return kept, held_out
    from sklearn.model_selection import train_test_split

    size = math.ceil(fraction * len(labels))
    if min(int(labels.sum()), int((labels == 0).sum()), size, len(labels) - size) < 2:
        raise DataError(_impossible(f"hold out {fraction} of {len(labels)} examples", labels))
    kept, held_out = train_test_split(np.arange(len(labels)), test_size=fraction, random_state=seed, stratify=labels)
    generator = np.random.default_rng(seed)
    for part, other in ((held_out, kept), (kept, held_out)):
        for value in (0, 1):
            if (labels[part] != value).all():  # swap one of its examples for one of the class that it lacks
                source = generator.choice(np.flatnonzero(labels[other] == value))
                sink = generator.integers(len(part))
                part[sink], other[source] = other[source], part[sink]
    return np.sort(kept), np.sort(held_out)


def _group_holdout(
    labels: Labels, fraction: float, seed: int, groups: Indices, names: Names
) -> tuple[Indices, Indices]:
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
        raise DataError(_impossible(f"hold out {fraction} of {len(labels)} examples", labels, groups, names))
    is_held = np.isin(groups, held_out)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def cross_validation(
    labels: Labels, num_folds: int, fold: Any, seed: int, groups: Indices | None = None, names: Names = None
) -> tuple[Indices, Indices]:
    """Rows of one fold, as (training, validation): scikit-learn's stratified folds where there is one label."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    check_count(num_folds, "num_folds", 2)
    check_choice(fold, "fold", range(num_folds))
    if groups is None and labels.ndim == 2:
        val = label_parts(labels, np.full(num_folds, 1.0 / num_folds), seed, names)[fold]
        return np.setdiff1d(np.arange(len(labels)), val, assume_unique=True), val
    folds = (StratifiedKFold if groups is None else StratifiedGroupKFold)(num_folds, shuffle=True, random_state=seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes with fewer examples than folds: checked below
            parts = list(folds.split(labels, _strata(labels), groups))
    except ValueError:
        parts = []
    classes = _classes(labels)
    if not parts or not all(classes[rows].any(axis=0).all() for part in parts for rows in part):
        raise DataError(_impossible(f"cut {num_folds} folds", labels, groups, names))
    return np.sort(parts[fold][0]), np.sort(parts[fold][1])


def _classes(labels: Labels) -> NDArray[np.bool_]:
    """Which rows are positive, and which are negative, for each of K labels: ``(n, 2 K)``."""
    columns = labels.reshape(len(labels), -1)
    return np.hstack([columns == 1, columns == 0])


def _counts_of_groups(labels: Labels, groups: Indices) -> Indices:
    """How many rows of each class each group has, ``(number of groups, 2 K)``."""
    return np.stack([np.bincount(groups, of_class) for of_class in _classes(labels).T], axis=1).astype(np.int64)


def _strata(labels: Labels) -> Indices:
    """The rarest class of each row, as a column of :func:`_classes`; one more than these for rows without any."""
    classes = np.column_stack([_classes(labels), np.ones(len(labels), dtype=bool)])
    return np.where(classes, classes.sum(axis=0), len(labels) + 1).argmin(axis=1)


def _impossible(asked: str, labels: Labels, groups: Indices | None = None, names: Names = None) -> str:
    """The message that says how many groups or rows have each class; of several labels, of the rarest."""
    counts = _classes(labels) if groups is None else _counts_of_groups(labels, groups)
    having = (counts > 0).sum(axis=0).reshape(2, -1)
    label = int(having.min(axis=0).argmin())
    unit = "rows" if groups is None else "groups"
    which = f" of label {names[label] if names else label}" if labels.ndim == 2 else ""
    return (
        f"Can't {asked}{'' if groups is None else ' by `groups`'}, with both classes in every part: "
        f"{having[0, label]} of {len(counts)} {unit} have positives{which}, and {having[1, label]} have negatives. "
        f"Choose larger parts, pass finer groups or a `val_dataset`{', or leave out that label' if which else ''}."
    )


def label_parts(labels: Labels, shares: NDArray[np.float64], seed: int, names: Names = None) -> list[Indices]:
    """Cut rows into parts of given shares, stratified by all of several labels."""
    classes, strata, filled = _classes(labels), _strata(labels), np.flatnonzero(shares)
    for attempt in range(_ATTEMPTS):
        generator = np.random.default_rng([seed, attempt])
        turns = (np.arange(len(labels)) * _GOLDEN + generator.random()) % 1.0
        parts = filled[np.searchsorted(shares[filled].cumsum()[:-1], turns, side="right")]
        parts = parts[np.lexsort((generator.random(len(labels)), strata)).argsort()]
        for part, label in product(filled, range(classes.shape[1])):
            of_class = np.flatnonzero(classes[:, label])
            if of_class.size and (parts[of_class] != part).all():
                parts[generator.choice(of_class)] = part
        if all(classes[parts == part].any(axis=0).all() for part in filled):
            return [np.flatnonzero(parts == part) for part in range(len(shares))]
    raise DataError(_impossible(f"cut {len(filled)} parts", labels, names=names))
