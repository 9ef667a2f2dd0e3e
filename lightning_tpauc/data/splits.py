"""Stratified splits, whose parts have the same share of positives: of rows, of groups, and of several labels.

``labels`` are int8: ``(n,)`` of 0 and 1, or ``(n, K)`` of K tasks with -1 where nothing was measured; ``groups`` are
numbers from 0 on. ``fraction`` is the share to hold out, in (0, 1); ``fold``, in ``0 .. num_folds - 1``, validates. The
parts are sorted int64 arrays that partition ``range(n)``, and so do the validation parts of all folds.

Several tasks are dealt out class by class, the rarest class of any task first (Sechidis, Tsoumakas and Vlahavas, "On
the stratification of multi-label data", 2011). Every class goes to the parts in proportion to what they still lack.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc.data.examples import (
    Datasets,
    EvaluatedPart,
    RowsDataset,
    evaluated_part,
    is_random,
    unaugmented,
)
from lightning_tpauc.data.labels import (
    as_groups,
    as_weights,
    find_targets,
    label_names,
    label_of_item,
    row_values,
    stored_targets,
)
from lightning_tpauc.data.sampler import SampleWeights, TaskRows, missing_class
from lightning_tpauc.data.seeding import Purpose, permute
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.functional.checks import is_real, is_whole


class TrainingPart:
    """Labels of the training set; the rows that train, and the rows that validate.

    Args:
        labels: int8 array ``(n,)`` of 0 and 1; ``(n, K)`` with several tasks, with -1 where nothing was measured.
        rows: int64 array of the rows that train; all if ``None``.
        held_out: int64 array of the rows that validate.
        label_names: names of several tasks; their numbers from 0 on if ``None``.
        weights: float array ``(n,)``: the weight of each row. Rows of weight 0 do not train. ``None`` weighs all alike.
    """

    def __init__(
        self,
        labels: NDArray[np.int8],
        rows: NDArray[np.int64] | None = None,
        held_out: NDArray[np.int64] | None = None,
        label_names: tuple[str, ...] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.labels, self.weights = labels, weights
        self.rows = np.arange(len(labels), dtype=np.int64) if rows is None else rows
        if weights is not None:
            self.rows = self.rows[weights[self.rows] > 0]
        self.held_out = np.empty(0, dtype=np.int64) if held_out is None else held_out
        #: What is known of several tasks; ``None`` with one.
        self.tasks: TaskRows | None = None
        if labels.ndim == 2:
            self.tasks = TaskRows(labels, self.rows, label_names or numbered(labels.shape[1]))
            self.by_class = self.tasks.some_positive, self.tasks.negatives
        else:
            #: Training rows of the positives and of the negatives. ``index`` counts the positives in this order. With
            #: several tasks, rows that are positive, and rows that are negative, for at least one task.
            self.by_class = self.rows[labels[self.rows] == 1], self.rows[labels[self.rows] == 0]

    @property
    def num_positives(self) -> Any:
        """Number of training positives; with several tasks, a tuple with the number of each task."""
        return len(self.by_class[0]) if self.tasks is None else self.tasks.num_positives

    def scores_of_tasks(
        self, pos: Tensor, others: Tensor, max_negatives: int | None, seed: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Scores of the positives and negatives of each of several tasks.

        Raises:
            ArgumentError: if there is one task.
        """
        if self.tasks is None:
            msg = "The labels are those of one task: the scores of the two loaders are those of its two classes."
            raise ArgumentError(msg)
        return self.tasks.cut_scores(self.tasks.scored(max_negatives, seed), pos, others)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that identify which examples the positives 0 .. n+ - 1 are; with several tasks, all labels.

        Weights, if any, are part of it.
        """
        digest = hashlib.blake2b(f"{len(self.labels)}:".encode(), digest_size=8)
        if self.tasks is None:
            digest.update(self.by_class[0].astype("<i8").data)
        else:
            digest.update(f"{self.labels.shape[1]}:".encode() + self.tasks.rows.astype("<i8").tobytes())
            digest.update(self.labels[self.tasks.rows].tobytes())
        if self.weights is not None:
            digest.update(self.weights[self.rows].astype("<f8").data)
        return digest.hexdigest()


def numbered(count: int) -> tuple[str, ...]:
    """The names of tasks that have none.

    Example:
        >>> numbered(3)
        ('0', '1', '2')
    """
    return tuple(map(str, range(count)))


def check_same_tasks(training: TrainingPart, part: EvaluatedPart, name: str) -> None:
    """Raise :class:`DataError` if a data set to evaluate has labels of other tasks than the training set."""
    names = () if training.tasks is None else training.tasks.names
    own, other = len(names) or 1, part.num_labels or 1
    if own != other:
        msg = (
            f"Expected as many labels per example in `{name}` as in `train_dataset`, but it has {other}, and that has "
            f"{own}. Choose the same columns."
        )
        raise DataError(msg)
    if part.label_names is None or names in (part.label_names, numbered(own)):
        return
    wrong = next(pair for pair in zip(part.label_names, names, strict=True) if pair[0] != pair[1])
    msg = (
        f"Expected the same labels in the same order in `{name}` and `train_dataset`, but it has {wrong[0]!r} where "
        f"that has {wrong[1]!r}. Choose the same columns in the same order."
    )
    raise DataError(msg)


def labels_of_positives(dataset: Any, targets: Any) -> NDArray[np.int8]:
    """Labels of a training set whose negatives are a stream: all 1, with or without stored labels.

    Raises:
        DataError: if it has negatives.

    Example:
        >>> labels_of_positives(ArrayDataset(np.zeros((2, 3)), [1, 1]), None)
        array([1, 1], dtype=int8)
    """
    try:
        if targets is None and stored_targets(dataset) is None:
            label_of_item(dataset[0])
    except DataError:  # inputs alone
        return np.ones(len(dataset), dtype=np.int8)
    labels = find_targets(dataset, targets)
    if labels.ndim == 2:
        msg = (
            f"A stream of `negatives` goes with one task, but the labels of `train_dataset` have {labels.shape[1]} "
            "columns. Choose one column, or put the negatives into `train_dataset`."
        )
        raise DataError(msg)
    count = int((labels == 0).sum())
    if count:
        msg = (
            f"Expected positives only in `train_dataset` beside a stream of `negatives`, but {count} of its "
            f"{len(labels)} labels are 0. Put them into the stream, and take the others with torch.utils.data.Subset."
        )
        raise DataError(msg)
    return labels


def sampled_rows(rows: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """A sorted random sample of sorted rows; all rows if ``count`` is ``None`` or not smaller than their number.

    Example:
        >>> len(sampled_rows(np.arange(10), 4, seed=0))
        4
    """
    if count is None or count >= len(rows):
        return rows
    return rows[np.sort(permute(np.arange(count), np.array(0), len(rows), seed=seed, purpose=Purpose.SCORING))]


Indices = NDArray[np.int64]
#: Random orders of the groups that are tried for a holdout.
_ORDERS = 32
# Random orders that are tried for several tasks: where rare classes share examples, one order may leave a part without.
_ATTEMPTS = 20


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


def group_holdout(labels: NDArray[np.int8], groups: Indices, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out), with each group as a whole in one of the parts.

    The groups are put into 32 random orders. The first groups of an order are held out, up to some end. Of all orders
    and ends, the one is taken whose shares of the positives and of the negatives are nearest to ``fraction``.

    Raises:
        ArgumentError: if ``fraction`` is not in (0, 1).
        DataError: if no such split is found.

    Example:
        >>> kept, held_out = group_holdout(np.array([0, 1] * 4), np.array([0, 0, 1, 1, 2, 2, 3, 3]), 0.25, seed=0)
        >>> len(kept), len(held_out)
        (6, 2)
    """
    fraction = as_fraction(fraction)
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


def group_fold(
    labels: NDArray[np.int8], groups: Indices, num_folds: int, fold: int, seed: int
) -> tuple[Indices, Indices]:
    """Rows of one fold of a cross-validation by scikit-learn's ``StratifiedGroupKFold``, as (training, validation).

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
    train, val = parts[fold]
    return np.sort(train), np.sort(val)


def _counts_of_groups(labels: NDArray[np.int8], groups: Indices) -> Indices:
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


def task_holdout(
    labels: NDArray[np.int8], fraction: float, seed: int, names: tuple[str, ...]
) -> tuple[Indices, Indices]:
    """Split rows into (kept, held out), stratified by the labels of all tasks.

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
                f"Can't cut {num_parts} parts with both classes of every task: {names[task]!r} has {own[task]} "
                f"{kind}(s). Leave out that column of the labels, cut fewer folds, or pass separate data sets."
            )
            raise DataError(msg)


#: Fits preprocessing on rows of the training set, and returns transformed data sets.
FitTransforms = Callable[[Datasets, NDArray[np.int64]], Datasets]


class Split(NamedTuple):
    """Which part of the training set validates instead of training.

    Attributes:
        val_fraction: share of the training set.
        num_folds: number of folds.
        fold: number of the fold.
        seed: seed of the split.
        groups: as in :func:`~lightning_tpauc.data.labels.row_values`; no group is in both parts. ``None``: any
            two rows may be parted.
    """

    val_fraction: float | None = None
    num_folds: int | None = None
    fold: int | None = None
    seed: int = 0
    groups: Any = None


class PreparedData:
    """The data sets of a run. It owns their labels, the split and the transformed data sets.

    Args:
        given: data sets as loaders can read them.
        targets: as in :func:`~lightning_tpauc.data.labels.find_targets`.
        split: what is split off from the training set for validation.
        fit_transforms: preprocessing to fit on the rows that train; ``None`` leaves the data sets as they are.
        sample_weight: as in :func:`~lightning_tpauc.data.labels.row_values`; ``None`` for none.

    Example:
        >>> prepared = PreparedData(Datasets(train=torch.zeros(4, 2)), [0, 1, 0, 1])
        >>> prepared.training.by_class
        (array([1, 3]), array([0, 2]))
    """

    def __init__(
        self,
        given: Datasets,
        targets: Any = None,
        split: Split | None = None,
        fit_transforms: FitTransforms | None = None,
        sample_weight: Any = None,
    ) -> None:
        self.given, self.targets, self.split, self.sample_weight = given, targets, split or Split(), sample_weight
        self._fit_transforms = fit_transforms
        self._labelled: dict[str, EvaluatedPart] = {}

    @cached_property
    def training(self) -> TrainingPart:
        """Labels of the training set, and which of its rows train.

        Raises:
            ArgumentError: if a part is to be split off from positives alone.
            DataError: if there is no training set.
        """
        if self.given.train is None:
            msg = "There is no training set: pass `train_dataset`, and call `setup('fit')` first."
            raise DataError(msg)
        if self.given.negatives is not None:
            self._refuse_split_of_stream()
            return TrainingPart(labels_of_positives(self.given.train, self.targets), weights=self._weights())
        labels = find_targets(self.given.train, self.targets)
        if labels.ndim == 2:
            return self._training_of_tasks(labels)
        return TrainingPart(labels, *self._parts(labels), weights=self._weights())

    def _parts(
        self, labels: NDArray[np.int8], tasks: tuple[str, ...] | None = None
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Rows that train and rows that validate; ``None`` if all train."""
        split = self.split
        groups = None if split.groups is None else as_groups(row_values(self.given.train, split.groups, "groups"))
        if split.val_fraction is not None:
            if groups is not None:
                return group_holdout(labels, groups, split.val_fraction, split.seed)
            if tasks is not None:
                return task_holdout(labels, split.val_fraction, split.seed, tasks)
            return stratified_holdout(labels, split.val_fraction, split.seed)
        if split.num_folds is not None and split.fold is not None:
            if groups is not None:
                return group_fold(labels, groups, split.num_folds, split.fold, split.seed)
            if tasks is not None:
                return task_fold(labels, split.num_folds, split.fold, split.seed, tasks)
            return stratified_fold(labels, split.num_folds, split.fold, split.seed)
        if groups is not None:
            msg = "`groups` says what a split keeps together: set `val_fraction`, or `num_folds` and `fold`, as well."
            raise ArgumentError(msg)
        return None, None

    def _weights(self) -> NDArray[np.float64] | None:
        given = self.sample_weight
        return None if given is None else as_weights(row_values(self.given.train, given, "sample_weight"))

    @cached_property
    def sample_weights(self) -> SampleWeights | None:
        """The weights by which training examples are drawn; ``None`` if all count alike.

        Raises:
            DataError: if no example of a class has a weight above 0.
        """
        if self.sample_weight is None or self.training.weights is None:
            return None
        pos, neg = (self.training.weights[rows] for rows in self.training.by_class)
        missing = "positive" if not len(pos) else "negative" if not len(neg) and self.given.negatives is None else None
        if missing:
            msg = f"No {missing} training example has a `sample_weight` above 0: both classes are needed."
            raise DataError(msg)
        return SampleWeights(pos, neg if self.given.negatives is None else None)

    def _training_of_tasks(self, labels: NDArray[np.int8]) -> TrainingPart:
        if self.sample_weight is not None:
            msg = (
                f"`sample_weight` weighs the examples of one task, but the labels have {labels.shape[1]} columns. "
                "Leave it out, or pass one column of labels."
            )
            raise ArgumentError(msg)
        names = label_names(self.given.train, self.targets, labels.shape[1]) or numbered(labels.shape[1])
        return TrainingPart(labels, *self._parts(labels, names), names)

    def _refuse_split_of_stream(self) -> None:
        name = "val_fraction" if self.split.val_fraction is not None else "num_folds"
        value = getattr(self.split, name)
        if value is not None:
            msg = (
                f"`{name}={value}` can't split a stream of `negatives`. Pass a `val_dataset` with both classes instead."
            )
            raise ArgumentError(msg)

    @cached_property
    def datasets(self) -> Datasets:
        """The data sets after ``fit_transforms``, if that is given; only then labels and split are needed for them."""
        if self._fit_transforms is None or self.given.train is None:
            return self.given
        return self._fit_transforms(self.given, self.training.rows)

    @property
    def splits_validation(self) -> bool:
        """Whether the validation set is split off from the training set."""
        split = self.split.val_fraction is not None or self.split.num_folds is not None
        return self.given.val is None and self.given.train is not None and split

    @property
    def has_validation(self) -> bool:
        """Whether there is a validation set, of its own or split off."""
        return self.given.val is not None or self.splits_validation

    def require(self, name: str) -> Any:
        """A data set by its field in :class:`~lightning_tpauc.data.Datasets`.

        Raises:
            DataError: if there is none.
        """
        dataset = getattr(self.datasets, name)
        if dataset is None:
            msg = f"There is no data set for this: pass `{name}_dataset`, or return `{name}` from `build_datasets`."
            raise DataError(msg)
        return dataset

    def labelled(self, name: str) -> EvaluatedPart:
        """The validation or test set with its labels. Finding them may take a pass over all items, so it is done once.

        Args:
            name: ``"val"`` or ``"test"``.
        """
        if name not in self._labelled:
            part = evaluated_part(self.require(name), self.targets, f"{name}_dataset")
            if "training" in self.__dict__:
                check_same_tasks(self.training, part, f"{name}_dataset")
            self._labelled[name] = part
        return self._labelled[name]

    @cached_property
    def validation(self) -> EvaluatedPart | None:
        """The validation set, or the part that is split off from the training set; ``None`` if there is neither."""
        if not self.has_validation:
            return None
        if not self.splits_validation:
            return self.labelled("val")
        dataset, rows = self.datasets.train, self.training.held_out
        if unaugmented(dataset) is dataset and is_random(dataset, rows[:4]):
            rank_zero_warn(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give the "
                "data set an attribute `without_augmentation`, a data set with the same rows as they are, or pass a "
                "`val_dataset`.",
                category=TPAUCWarning,
            )
        tasks = self.training.tasks
        return EvaluatedPart(dataset, rows, self.training.labels[rows], None if tasks is None else tasks.names)

    @property
    def num_labels(self) -> int | None:
        """Number of several tasks; ``None`` with one."""
        return None if self.label_names is None else len(self.label_names)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several tasks; ``None`` with one. Labels that were found already come before the training set's."""
        if "training" not in self.__dict__ and (self._labelled or self.given.train is None):
            known = [*self._labelled] or [name for name in ("val", "test") if getattr(self.given, name) is not None]
            part = self.labelled(known[0]) if known else None
            if part is None or part.num_labels is None:
                return None
            return part.label_names or numbered(part.num_labels)
        return None if self.training.tasks is None else self.training.tasks.names

    def scored(self, max_negatives: int | None, seed: int) -> tuple[EvaluatedPart, EvaluatedPart]:
        """The training positives, and the training negatives or a random sample of them, drawn by their weights if any.

        With several tasks, they are the first two parts of :class:`~lightning_tpauc.data.sampler.ScoredRows`.
        """
        labels, train, tasks = self.training.labels, self.datasets.train, self.training.tasks
        if tasks is None:
            positives, negatives = self.training.by_class
            if self.sample_weights is not None and len(negatives):
                count = min(len(negatives), max_negatives or len(negatives))
                negatives = negatives[self.sample_weights.indices(count, seed, Purpose.SCORING).batches(0, 1)[0]]
            parts = positives, sampled_rows(negatives, max_negatives, seed)
        else:
            parts = tasks.scored(max_negatives, seed)[:2]
        pos, neg = (EvaluatedPart(train, rows, labels[rows]) for rows in parts)
        return pos, neg

    def description(self, names: Collection[str], labelled: Collection[str], *, splits: bool) -> dict[str, Any]:
        """Short descriptions, by name, of what all processes of a run must have in common.

        Args:
            names: data sets to describe, by field.
            labelled: those whose labels are compared, too.
            splits: whether to describe the split.
        """
        found: dict[str, Any] = {}
        for name in names:
            dataset = getattr(self.datasets, name)
            found[f"`{name}_dataset`"] = None if dataset is None else describe(dataset)
            if dataset is not None and name in labelled:
                found[f"labels of `{name}_dataset`"] = _digest(self.labelled(name).labels)
        if splits and self.given.train is not None:
            part = self.training
            found["rows of the training positives"] = part.fingerprint
            found["rows that train"], found["rows that validate"] = _digest(part.rows), _digest(part.held_out)
        return found


def describe(dataset: Any) -> str:
    """Number of examples and checksums of a data set, as far as these are cheap.

    Checksums are made of the indices of subsets, and of a few rows in memory. Other items may be expensive to read, or
    random.

    Example:
        >>> describe(TensorDataset(torch.zeros(5, 2))) == describe(TensorDataset(torch.zeros(5, 2)))
        True
    """
    if isinstance(dataset, Subset):
        return f"{len(dataset)} examples, {_digest(np.asarray(dataset.indices))}, of {describe(dataset.dataset)}"
    count = len(dataset)
    rows = np.array(sorted({0, count // 2, count - 1}))
    fetched: tuple[Any, ...] = ()
    if isinstance(dataset, RowsDataset):
        fetched = (dataset.rows(rows),)
    elif isinstance(dataset, (Tensor, TensorDataset)):
        tensors = (dataset,) if isinstance(dataset, Tensor) else dataset.tensors
        fetched = tuple(t[torch.from_numpy(rows).to(t.device)] for t in tensors if t.layout == torch.strided)
    found = [part for part in fetched if isinstance(part, Tensor)]
    shapes = [f"{tuple(part.shape[1:])} {part.dtype}" for part in found]
    return ", ".join([f"{count} examples", *shapes, *(_digest(_bytes(part)) for part in found)])


def _digest(values: NDArray[Any]) -> str:
    """Eight hex digits that depend on an array's shape, dtype and content."""
    array = np.ascontiguousarray(values)
    text = f"{array.shape}{array.dtype.newbyteorder('=')}".encode()
    return hashlib.blake2b(text + array.tobytes(), digest_size=4).hexdigest()


def _bytes(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
