"""The labels of a data set, and what else is said of each row: where it is found, and whether it is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from tqdm import tqdm

from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import DataError

#: Attributes of data sets, and keys of items, that are searched for labels in this order.
NAMES = ("targets", "labels", "y", "target", "label")
#: Stands for "nothing found"; ``None`` can't, since it is a label that is missing.
NOTHING = object()
#: Number of items of each class whose own labels are compared with the stored ones.
_COMPARED = 4

Indices = NDArray[np.int64]


# ---------------------------------------------------------------- finding labels


def find_targets(dataset: Any, targets: Any = None, name: str = "train_dataset") -> NDArray[np.int8]:
    """Labels of all items of a map-style data set.

    The first of these is taken:

    1. ``targets``, if it is an array;
    2. ``targets``, if it is the name of an attribute of the data set or of a key of its items, or a list of such names;
    3. the attribute ``targets``, ``labels``, ``y``, ``target`` or ``label``, after the data set's ``target_transform``;
    4. the last tensor of a ``TensorDataset``;
    5. the labels of all items, read in one pass with a progress bar.

    A function as ``targets`` makes the label of each of those that 3 to 5 find. The data sets inside
    :class:`~torch.utils.data.Subset` and :class:`~torch.utils.data.ConcatDataset` are searched, too. Stored labels are
    compared with those of a few items.

    Args:
        dataset: map-style data set with n items.
        targets: n labels, the name under which the data set keeps them, or a function of one label.
        name: name of the data set in messages.

    Returns:
        int8 array ``(n,)`` of 0 and 1, or ``(n, K)`` of 0, 1 and -1; see :func:`binary_labels`.

    Raises:
        DataError: if no labels are found, if they are not 0 and 1 (see :func:`binary_labels`), or if stored labels
            differ from those of the items.

    Example:
        >>> find_targets(TensorDataset(torch.zeros(3, 2), torch.tensor([0.0, 1.0, 0.0])))
        array([0, 1, 0], dtype=int8)
        >>> find_targets([("words", "dead"), ("words", "alive")], lambda label: label == "dead")
        array([1, 0], dtype=int8)
    """
    keys, given, stored = label_keys(targets), are_labels(targets), None
    # Augmentations and target transforms may draw random numbers here. The state of the generators is restored.
    with seeded_items(0, 0):
        if not given:
            stored = stored_targets(dataset, keys)
        found = targets if given else stored
        if found is None:
            rows = tqdm(range(len(dataset)), f"Reading the labels of {name}", leave=False, disable=None)  # on terminals
            found = [label_of_item(dataset[row], keys, name) for row in rows]
        labels = binary_labels(found if given else ruled(found, targets), name)
        if len(labels) != len(dataset):
            msg = f"Expected one label for each of the {len(dataset)} items of `{name}`, but got {len(labels)} labels."
            raise DataError(msg)
        differing = None if stored is None else disagreement(dataset, labels, targets)
    if differing:
        msg = (
            f"`{name}` keeps other labels than its items have: {differing}. Pass the right ones as "
            "`targets=array_of_labels`, or let the items end with the label."
        )
        raise DataError(msg)
    return labels


def are_labels(targets: Any) -> bool:
    """Whether the argument ``targets`` holds the labels of one data set, and is no name and no function."""
    return targets is not None and not callable(targets) and label_keys(targets) is None


def label_keys(targets: Any) -> tuple[str, ...] | None:
    """The names that the argument ``targets`` gives: one or several; ``None`` if it gives none."""
    if isinstance(targets, str):
        return (targets,)
    names = isinstance(targets, (list, tuple)) and len(targets) and all(isinstance(name, str) for name in targets)
    return tuple(targets) if names and len(set(targets)) == len(targets) else None  # texts that repeat are labels


def ruled(labels: Any, targets: Any) -> Any:
    """Labels after the function that ``targets`` may be."""
    if not callable(targets):
        return labels
    return [targets(label) for label in (labels.tolist() if hasattr(labels, "tolist") else labels)]


def disagreement(dataset: Any, labels: NDArray[np.int8], targets: Any) -> str | None:
    """Where labels differ from those of a few items of each class; ``None`` if they agree, or items have none."""
    keys = label_keys(targets)
    rows = rows_of_both_classes(labels, _COMPARED)
    entries = [entry_of(dataset[int(row)], None if keys and keys[0] in NAMES else keys) for row in rows]
    if not entries or any(entry is NOTHING for entry in entries):
        return None
    pairs = [
        (numbers_of(ruled([entry], targets)[0]), labels[row].tolist()) for entry, row in zip(entries, rows, strict=True)
    ]
    if labels.ndim == 2:  # a missing number counts as -1, not measured
        agree = [[[-1 if _is_missing(number) else number for number in entry] == label] for entry, label in pairs]
    else:
        # An item may have several numbers: several labels, or a one-hot code. One of them must always agree.
        agree = [[number == label for number in entry] for entry, label in pairs]
    if any(all(column) for column in zip(*agree, strict=False)):
        return None
    wrong = next((k for k, numbers in enumerate(agree) if not any(numbers)), 0)
    has = pairs[wrong][0]
    shown = repr(has[0]) if len(has) == 1 else str(has) if len(has) == labels[0].size else f"{len(has)} numbers"
    return f"{labels[rows[wrong]]} for item {rows[wrong]}, which itself has {shown}"


def numbers_of(entry: Any) -> list[Any]:
    """The numbers in an entry of an item; its type where it holds none."""
    try:
        return list(_as_numbers(as_array(entry).reshape(-1)).tolist())
    except DataError:
        return [type(entry).__name__]


def rows_of_both_classes(labels: NDArray[np.int8], count: int) -> Indices:
    """Up to ``count`` rows of each class, evenly spread."""
    some = labels if labels.ndim == 1 else labels.max(axis=1, initial=0)
    classes = [np.flatnonzero(some == value) for value in (0, 1)]
    return np.concatenate([c[np.linspace(0, len(c) - 1, min(count, len(c)), dtype=np.int64)] for c in classes])


def stored_targets(dataset: Any, keys: Sequence[str] | None = None) -> Any:
    """Values that a data set stores under names, unchecked; ``None`` if it stores none. ``keys=None``: its labels."""
    if isinstance(dataset, Subset):
        inner = stored_targets(dataset.dataset, keys)
        return None if inner is None else as_array(inner)[as_positions(dataset.indices, len(inner))]
    if isinstance(dataset, ConcatDataset):
        parts = [stored_targets(part, keys) for part in dataset.datasets]
        columns = [_in_columns(as_array(part), "targets") for part in parts if part is not None]
        return np.concatenate(columns) if len(columns) == len(parts) else None
    if keys is not None and len(keys) > 1:
        columns = [stored_targets(dataset, [key]) for key in keys]
        return None if any(column is None for column in columns) else np.stack([as_array(c) for c in columns], axis=1)
    for attribute in keys or NAMES:
        found = getattr(dataset, attribute, None)
        # `y` of a data set of graphs may hold one value per node.
        if found is not None and _is_array(found) and len(found) == len(dataset):
            # as the items have them: data sets like torchvision's transform a label when an item is read
            transform = getattr(dataset, "target_transform", None) if attribute in NAMES else None
            plain = found.tolist() if isinstance(found, Tensor) and found.ndim == 1 else found
            return [transform(label) for label in plain] if callable(transform) else found
    return dataset.tensors[-1] if isinstance(dataset, TensorDataset) and keys is None and dataset.tensors[1:] else None


def _is_array(found: Any) -> bool:
    # Columns and tables of pandas and polars have `to_numpy`. A 0-d array has no length.
    is_column = hasattr(found, "to_numpy") and not isinstance(found, type) and getattr(found, "ndim", 1) in (1, 2)
    return isinstance(found, (list, tuple)) or (isinstance(found, (Tensor, np.ndarray)) and found.ndim > 0) or is_column


def label_names(dataset: Any, targets: Any, count: int) -> tuple[str, ...] | None:
    """The names of several labels, where they have any.

    These are the keys that ``targets`` lists, the columns of a table of labels, or the data set's ``label_names``.
    """
    keys = label_keys(targets)
    found: Any = getattr(targets, "columns", keys if keys is not None and len(keys) > 1 else None)
    while found is None and isinstance(dataset, (Subset, ConcatDataset)):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
    if found is None:
        tables = [getattr(dataset, name, None) for name in keys or NAMES]
        of_table = next((getattr(table, "columns", None) for table in tables if table is not None), None)
        found = getattr(dataset, "label_names", None)
        found = of_table if found is None else found
    if found is None or isinstance(found, str) or len(found) != count:
        return None
    return tuple(map(str, found))


def label_of_item(item: Any, keys: Sequence[str] | None = None, name: str = "train_dataset") -> Any:
    """Label of one item: under ``keys`` or one of :data:`NAMES`, or the last entry of a tuple; refused without."""
    label = entry_of(item, keys)
    if label is NOTHING:
        what = ", ".join(map(repr, keys)) if keys is not None else "any of " + ", ".join(NAMES)
        msg = (
            f"Found no label in the items of `{name}` (a {type(item).__name__}, looked for {what}). Pass "
            "a pair `(x, y)`, `targets=array_of_labels`, or `targets='name'` of the attribute or key that holds them."
        )
        raise DataError(msg)
    return label


def entry_of(item: Any, keys: Sequence[str] | None) -> Any:
    """The label of one item, or what it has under keys; :data:`NOTHING` if it has none."""
    if isinstance(item, (tuple, list)):
        return item[-1] if len(item) > 1 and keys is None else NOTHING
    if keys is not None and len(keys) > 1:
        entries = [entry_of(item, [key]) for key in keys]
        return NOTHING if any(entry is NOTHING for entry in entries) else entries
    for key in keys or NAMES:
        if isinstance(item, Mapping):
            if key in item:
                return item[key]
        elif not isinstance(item, Tensor) and getattr(item, key, None) is not None:
            return getattr(item, key)
    return NOTHING


# ---------------------------------------------------------------- labels as numbers


def as_array(values: Any, name: str = "targets") -> NDArray[Any]:
    """Labels of any container as an array, in their order. Masked entries become nan."""
    if isinstance(values, Tensor):
        dense = values.detach().cpu().to_dense()
        return (dense.float() if dense.is_floating_point() and dense.dtype != torch.float64 else dense).numpy()
    if hasattr(values, "tocsr"):  # a sparse column of scipy
        return np.asarray(values.toarray())
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data.astype(np.float64))
    try:
        if isinstance(values, (list, tuple)) and any(isinstance(value, (Tensor, np.ndarray)) for value in values):
            parts = [as_array(value) for value in values]
            single = all(part.size == 1 for part in parts)
            return np.stack([part.reshape(()) for part in parts] if single else parts)
        array = np.asarray(values)
        holds_rows = array.dtype.kind == "O" and array.ndim == 1 and array.size
        if holds_rows and isinstance(array[0], (list, tuple, np.ndarray)):
            return as_array(array.tolist(), name)  # a column of lists
        return array
    except (RuntimeError, TypeError, ValueError) as error:  # rows of different lengths
        msg = f"Expected one label per example in `{name}`, but it makes no array: {error}"
        raise DataError(msg) from error


def item_label(label: Any) -> Any:
    """One entry of stored labels as an item's label: a number, or a tensor of several labels, nan if not measured."""
    array = as_array(label)
    if array.size == 1:
        return int(array.item()) if array.dtype.kind in "buif" else array.item()
    return torch.from_numpy(_as_numbers(array.ravel()).copy())


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as floats; None and other signs of a missing label become nan. Unchanged if an object is no number."""
    if values.dtype.kind != "O" or any(isinstance(value, (str, bytes)) for value in values):
        return values  # text is no number, even if it looks like one
    try:
        return np.array([np.nan if _is_missing(value) else float(value) for value in values.tolist()])
    except (TypeError, ValueError):
        return values


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ == "NAType":  # pandas' NA has no truth value when compared
        return True
    return bool(value != value)  # nan, and pandas' NaT


def binary_labels(values: Any, name: str = "targets") -> NDArray[np.int8]:
    """Check labels: int8 ``(n,)`` of 0 and 1; of several labels ``(n, K)``, -1 for nan, None and masked entries."""
    labels = _in_columns(as_array(values, name), name)
    labels = _as_numbers(labels.ravel()).reshape(labels.shape)
    if labels.dtype.kind not in "buif":
        counts = Counter(repr(label) for label in labels.ravel().tolist() if not _is_missing(label))
        rarest = min(counts, key=counts.__getitem__)
        remedy = f"(y == {rarest})` with an array y, or `targets=lambda label: label == {rarest}"
        if labels.ndim == 2:  # a comparison would make negatives of what is missing
            remedy = f"(y == {rarest}).astype(float).mask(y.isna())"
        msg = (
            f"Expected numbers as labels in `{name}`, but got dtype {labels.dtype} with {', '.join(list(counts)[:5])}. "
            f"Map them to 0 and 1 first, for instance `targets={remedy}`."
        )
        raise DataError(msg)
    missing = np.isnan(labels) if labels.dtype.kind == "f" else np.zeros(labels.shape, dtype=bool)
    if labels.ndim == 1 and missing.any():
        some = "Drop unlabelled examples first, for instance with torch.utils.data.Subset."
        remedy = "Look at how they were read, or pass another column as labels." if missing.all() else some
        msg = f"Expected labels 0 and 1 in `{name}`, but {int(missing.sum())} of {labels.size} are nan. {remedy}"
        raise DataError(msg)
    wrong = ~missing & (labels != 0) & (labels != 1)
    if wrong.any():
        _refuse(values, labels, wrong, name)
    return np.where(missing, -1, labels).astype(np.int8)


def _in_columns(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Labels of shape ``(n,)`` or ``(n, K)``, without further axes of length 1."""
    wide = [size for size in labels.shape[1:] if size != 1]
    if labels.ndim == 0 or len(wide) > 1 or 0 in wide:
        msg = (
            f"Expected one label per example in `{name}`, shape (n,), or K labels, (n, K), but got shape "
            f"{labels.shape}. Choose columns, for instance `targets=labels[:, 0]`."
        )
        raise DataError(msg)
    return labels.reshape(len(labels), *wide)


def _refuse(values: Any, labels: NDArray[Any], wrong: NDArray[np.bool_], name: str) -> None:
    found, also, remedy = np.unique(labels), "", "Choose the positive class, for instance `targets=(y == 1)`."
    if labels.ndim == 2:
        column = int(wrong.any(axis=0).argmax())
        found, names = np.unique(labels[wrong[:, column], column]), getattr(values, "columns", None)
        also = f" in column {column if names is None else repr(names[column])}"
        rule = "np.where(y < 0, np.nan, y)" if found[0] < 0 else "(y > 0.5)"
        remedy = f"Pass, for instance, `{rule}` as labels, nan where a label was not measured, or choose columns."
    elif found.size == 2:
        split = "0" if found[0] < 0 < found[1] else str(found[0].item())
        remedy = f"Pass 0/1 labels, for instance `targets=(y > {split})`."
    shown = ", ".join(str(value) for value in found[:5].tolist()) + (", ..." if found.size > 5 else "")
    msg = f"Expected labels 0 and 1 in `{name}`, but found {shown}{also}. {remedy}"
    raise DataError(msg)


# ---------------------------------------------------------------- groups, weights and ids


def row_values(dataset: Any, given: Any, argument: str, name: str = "train_dataset") -> NDArray[Any]:
    """One value for each item of a data set, ``(n,)``."""
    index = getattr(dataset, "index", None)  # of a table
    if isinstance(given, str) and getattr(index, "name", None) == given:
        given = index
    if isinstance(given, str):
        with seeded_items(0, 0):  # an augmentation that draws numbers leaves the generators as they were
            stored = stored_targets(dataset, [given])
            given = _of_items(dataset, given, argument, name) if stored is None else stored
    entries = given.tolist() if hasattr(given, "levels") or isinstance(given, np.ndarray) else given
    if isinstance(entries, list) and entries and isinstance(entries[0], tuple):  # an index of several levels
        given = [f"({', '.join(map(str, entry))})" for entry in entries]
    values = as_array(given, argument)
    if values.ndim == 0 or values.size != len(values) or len(values) != len(dataset):
        msg = (
            f"Expected `{argument}` to have one value for each of the {len(dataset)} items of `{name}`, but got shape "
            f"{values.shape}."
        )
        raise DataError(msg)
    return values.reshape(-1)


def _of_items(dataset: Any, key: str, argument: str, name: str) -> list[Any]:
    rows = tqdm(range(len(dataset)), f"Reading {key!r} of {name}", leave=False, disable=None)  # on terminals
    found = [entry_of(dataset[row], [key]) for row in rows]
    if any(value is NOTHING for value in found):
        msg = (
            f"`{argument}={key!r}` is neither a column of the table, nor an attribute of `{name}`, nor a key of "
            f"its items. Pass an array with one value for each of the {len(dataset)} items."
        )
        raise DataError(msg)
    return found


def as_groups(values: NDArray[Any]) -> Indices:
    """Groups as numbers from 0 on; refused if a group is missing."""
    entries = values.tolist()
    missing = [_is_missing(value) for value in entries]
    if any(missing):
        msg = (
            f"`groups` has no value for row {missing.index(True)}, and for {sum(missing)} of {len(values)} rows in "
            "all: give each of them a group of its own, or drop them."
        )
        raise DataError(msg)
    if values.dtype.kind == "O":
        numbers = {value: number for number, value in enumerate(dict.fromkeys(entries))}
        return np.array([numbers[value] for value in entries], dtype=np.int64)
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def as_weights(values: NDArray[Any]) -> NDArray[np.float64]:
    """Weights as float64; refused if one is below 0, not finite or no number."""
    try:
        weights = values.astype(np.float64)
    except (TypeError, ValueError):
        weights = np.full(len(values), np.nan)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        msg = (
            f"Expected `sample_weight` to be finite numbers of at least 0, but row {wrong[0]} has "
            f"{values[wrong[0] :][:1].tolist()[0]!r}, and {wrong.size} of {len(values)} rows are wrong."
        )
        raise DataError(msg)
    return weights


# ---------------------------------------------------------------- positions


def as_positions(indices: Any, count: int, name: str = "train_dataset") -> Indices:
    """Indices of a :class:`~torch.utils.data.Subset` as positions from 0 on; a mask and a pandas Series are refused.

    torch reads a mask as the items 0 and 1 over and over, and a Series by its row labels.
    """
    array = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
    # One zero or one for each item must be a mask: as indices, it would repeat the first two items only.
    mask = array.dtype.kind == "b" or (2 < array.size == count and {*np.unique(array).tolist()} == {0, 1})
    if mask or hasattr(indices, "iloc"):
        msg = (
            f"Subset in `{name}` has a {'mask' if mask else 'Series of pandas'} as indices, which would not be read as "
            f"positions. Pass these: `Subset(..., {'np.flatnonzero(mask)' if mask else 'indices.to_numpy()'})`."
        )
        raise DataError(msg)
    positions = array.astype(np.int64)
    return np.where(positions < 0, positions + count, positions)


def check_positions(dataset: Any, name: str = "train_dataset") -> None:
    """Check the indices of subsets by :func:`as_positions`: those inside an attribute ``dataset``, too."""
    if isinstance(dataset, Subset):
        as_positions(dataset.indices, len(dataset.dataset), name)  # type: ignore[arg-type]  # those of torch have one
    inner = [getattr(dataset, "dataset", None)] if isinstance(dataset, Dataset) else []
    for part in dataset.datasets if isinstance(dataset, ConcatDataset) else inner:
        if isinstance(part, Dataset):
            check_positions(part, name)


def check_loader(loader: Any) -> None:
    """Check what a user gave for a data loader: an array or table is refused, and so are wrong indices inside."""
    if isinstance(loader, (Tensor, np.ndarray)) or (hasattr(loader, "columns") and hasattr(loader, "to_numpy")):
        msg = (
            f"A {type(loader).__name__} is no data loader: Lightning would take its columns or rows for batches. Pass "
            "`datamodule=PosNegDataModule(predict_dataset=data)`, or `test_dataset` or `val_dataset`, with the module."
        )
        raise DataError(msg)
    check_positions(getattr(loader, "dataset", None), "the data loader")
