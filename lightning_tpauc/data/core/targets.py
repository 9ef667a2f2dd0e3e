"""The labels of a data set: finding them and checking them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from tqdm import tqdm

from lightning_tpauc.data.core.seeding import seeded_items
from lightning_tpauc.data.core.subset_indices import as_positions
from lightning_tpauc.errors import DataError

__all__ = ("as_array", "binary_labels", "find_targets", "label_of_item", "labels_of_items", "stored_targets")

#: Attributes of data sets, and keys of items, that are searched for labels in this order.
NAMES = ("targets", "labels", "y", "target", "label")
#: Stands for "no label found". None is a label that is missing.
_NOTHING = object()
#: Number of items of each class whose own labels are compared with the stored ones.
_COMPARED = 4


def find_targets(dataset: Any, targets: Any = None, name: str = "train_dataset") -> NDArray[np.int8]:
    """Labels of all items of a map-style data set.

    The first of these is taken:

    1. ``targets``, if it is an array;
    2. ``targets``, if it is the name of an attribute of the data set or of a key of its items;
    3. the attribute ``targets``, ``labels``, ``y``, ``target`` or ``label``, after the data set's ``target_transform``;
    4. the last tensor of a ``TensorDataset``;
    5. the labels of all items, read in one pass with a progress bar.

    The data sets inside :class:`~torch.utils.data.Subset` and :class:`~torch.utils.data.ConcatDataset` are searched,
    too. Stored labels are compared with those of a few items.

    Args:
        dataset: map-style data set with n items.
        targets: n labels, or the name under which the data set keeps them.
        name: name of the data set in messages.

    Returns:
        int8 array ``(n,)`` of 0 and 1.

    Raises:
        DataError: if no labels are found, if they are not 0 and 1 (see :func:`binary_labels`), or if stored labels
            differ from those of the items.

    Example:
        >>> import torch
        >>> find_targets(TensorDataset(torch.zeros(3, 2), torch.tensor([0.0, 1.0, 0.0])))
        array([0, 1, 0], dtype=int8)
    """
    if targets is not None and not isinstance(targets, str):
        return _one_per_item(targets, dataset, name)
    # Augmentations and target transforms may draw random numbers here. The state of the generators is restored.
    with seeded_items(0, 0):
        stored = stored_targets(dataset, targets)
        if stored is None:
            return _one_per_item([label_of_item(item, targets, name) for item in _items(dataset, name)], dataset, name)
        labels = _one_per_item(stored, dataset, name)
        _compare_with_items(dataset, labels, targets, name)
    return labels


def _one_per_item(values: Any, dataset: Any, name: str) -> NDArray[np.int8]:
    labels = binary_labels(values, name)
    if len(labels) != len(dataset):
        msg = f"Expected one label for each of the {len(dataset)} items of `{name}`, but got {len(labels)} labels."
        raise DataError(msg)
    return labels


def _compare_with_items(dataset: Any, labels: NDArray[np.int8], key: str | None, name: str) -> None:
    """Raise :class:`DataError` if the stored labels differ from those of a few items of each class."""
    by_class = [np.flatnonzero(labels == value) for value in (0, 1)]
    rows = np.concatenate([c[np.linspace(0, len(c) - 1, min(_COMPARED, len(c)), dtype=np.int64)] for c in by_class])
    entries = [_entry(dataset[int(row)], None if key in NAMES else key) for row in rows]
    if not entries or any(entry is _NOTHING for entry in entries):
        return
    own = [_own_numbers(entry) for entry in entries]
    # An item may have several numbers: labels of several tasks, or a one-hot code. One of them must always agree.
    agree = [[number == labels[row] for number in numbers] for numbers, row in zip(own, rows, strict=True)]
    if any(all(column) for column in zip(*agree, strict=False)):
        return
    wrong = next((k for k, numbers in enumerate(agree) if not any(numbers)), 0)
    shown = repr(own[wrong][0]) if len(own[wrong]) == 1 else f"{len(own[wrong])} numbers"
    msg = (
        f"`{name}` keeps other labels than its items have: {labels[rows[wrong]]} for item {rows[wrong]}, which itself "
        f"has {shown}. Pass the right ones as `targets=array_of_labels`, or let the items end with the label."
    )
    raise DataError(msg)


def _own_numbers(entry: Any) -> list[Any]:
    try:
        numbers = as_array(entry).reshape(-1)
    except DataError:
        return [type(entry).__name__]
    return list((_as_numbers(numbers) if numbers.dtype.kind == "O" else numbers).tolist())


def stored_targets(dataset: Any, key: str | None = None) -> Any:
    """Stored labels of a data set, unchecked; ``None`` if it stores none.

    Args:
        dataset: map-style data set.
        key: attribute that holds them; ``None`` searches the usual names.

    Example:
        >>> import torch
        >>> stored_targets(Subset(TensorDataset(torch.zeros(3), torch.tensor([0, 1, 1])), [2, 0]))
        array([1, 0])
    """
    if isinstance(dataset, Subset):
        inner = stored_targets(dataset.dataset, key)
        return None if inner is None else as_array(inner)[as_positions(dataset.indices, len(inner))]
    if isinstance(dataset, ConcatDataset):
        parts = [stored_targets(part, key) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate([as_array(part) for part in parts])
    for attribute in NAMES if key is None else (key,):
        found = getattr(dataset, attribute, None)
        # `y` of a data set of graphs may hold one value per node.
        if found is not None and _is_array(found) and len(found) == len(dataset):
            return _transformed(found, dataset) if attribute in NAMES else found
    if isinstance(dataset, TensorDataset) and key is None and len(dataset.tensors) > 1:
        return dataset.tensors[-1]
    return None


def _is_array(found: Any) -> bool:
    # Columns of pandas and polars have `to_numpy`. A 0-d array has no length.
    is_column = hasattr(found, "to_numpy") and not isinstance(found, type) and getattr(found, "ndim", 1) == 1
    return isinstance(found, (list, tuple)) or (isinstance(found, (Tensor, np.ndarray)) and found.ndim > 0) or is_column


def _transformed(found: Any, dataset: Any) -> Any:
    """Labels as the items have them: data sets like torchvision's transform a label when an item is read."""
    transform = getattr(dataset, "target_transform", None)
    if not callable(transform):
        return found
    return [transform(label) for label in (found.tolist() if isinstance(found, Tensor) and found.ndim == 1 else found)]


def _items(dataset: Any, name: str) -> Any:
    rows = tqdm(range(len(dataset)), f"Reading the labels of {name}", leave=False, disable=None)  # on terminals
    return (dataset[row] for row in rows)


def label_of_item(item: Any, key: str | None = None, name: str = "train_dataset") -> Any:
    """Label of one item: under ``key`` or one of :data:`NAMES`, or the last entry of a tuple.

    Args:
        item: mapping, object with attributes (such as a PyG ``Data``), or tuple whose last entry is the label.
        key: name of the label; ``None`` searches the usual names.
        name: name of the data set in messages.

    Raises:
        DataError: if the item has no label.

    Example:
        >>> label_of_item({"text": "some words", "label": 1})
        1
    """
    label = _entry(item, key)
    if label is not _NOTHING:
        return label
    what = f"{key!r}" if key is not None else "any of " + ", ".join(NAMES)
    msg = (
        f"Found no label in the items of `{name}` (a {type(item).__name__}, looked for {what}). Pass "
        "`targets=array_of_labels`, or `targets='name'` of the attribute or key that holds them."
    )
    raise DataError(msg)


def labels_of_items(items: list[Any], key: str | None = None) -> list[Any] | None:
    """Labels of items, as :func:`label_of_item` finds them; ``None`` if an item has none.

    Example:
        >>> labels_of_items([("some", 0), ("words", 1)]), labels_of_items(["some", "words"])
        ([0, 1], None)
    """
    labels = [_entry(item, key) for item in items]
    return None if any(label is _NOTHING for label in labels) else labels


def _entry(item: Any, key: str | None) -> Any:
    for candidate in NAMES if key is None else (key,):
        if isinstance(item, Mapping) and candidate in item:
            return item[candidate]
        if not isinstance(item, (tuple, list, Tensor)) and getattr(item, candidate, None) is not None:
            return getattr(item, candidate)
    if isinstance(item, (tuple, list)) and len(item) > 1 and key is None:
        return item[-1]
    return _NOTHING


def as_array(values: Any, name: str = "targets") -> NDArray[Any]:
    """Labels of any container as an array, in their order. Masked entries become nan.

    Args:
        values: tensor, array, sequence or column of a table.
        name: name of the labels in messages.

    Raises:
        DataError: if they can't form an array, for instance rows of different lengths.

    Example:
        >>> as_array([np.array([0]), 1])
        array([0, 1])
    """
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
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        msg = f"Expected one label per example in `{name}`, but it makes no array: {error}"
        raise DataError(msg) from error


def _as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Objects as floats; None and other signs of a missing label become nan. Unchanged if an object is no number."""
    try:
        return np.array([np.nan if _is_missing(value) else _number(value) for value in values.tolist()])
    except (TypeError, ValueError):
        return values


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _is_missing(value: Any) -> bool:
    if (
        value is None or type(value).__name__ == "NAType"
    ):  # that of pandas, which neither equals nor differs from itself
        return True
    return bool(value != value)  # nan, and pandas' sign for no time


def binary_labels(values: Any, name: str = "targets") -> NDArray[np.int8]:
    """Check labels and return them as an int8 array of 0 and 1.

    Args:
        values: tensor, array, sequence or column of a table, of shape ``(n,)`` or with further axes of length 1; bool,
            integers, or floats 0.0 and 1.0. Columns are read in their order, whatever the labels of their rows are.
        name: name of the labels in messages.

    Returns:
        int8 array ``(n,)``.

    Raises:
        DataError: if a label is missing or neither 0 nor 1, or if there is more than one column.

    Example:
        >>> binary_labels([[True], [False]])
        array([1, 0], dtype=int8)
    """
    labels = as_array(values, name)
    if labels.ndim == 0 or labels.size != len(labels):
        msg = (
            f"Expected one label per example in `{name}`, but got shape {labels.shape}. Choose one column, "
            "for instance `targets=labels[:, 0]`."
        )
        raise DataError(msg)
    labels = labels.reshape(-1)
    if labels.dtype.kind == "O":
        labels = _as_numbers(labels)
    if labels.dtype.kind not in "buif":
        counts = Counter(labels.tolist())
        msg = (
            f"Expected numbers as labels in `{name}`, but got dtype {labels.dtype} with "
            f"{', '.join(map(repr, list(counts)[:5]))}. Map them to 0 and 1 first, for instance "
            f"`targets=(y == {min(counts, key=counts.__getitem__)!r})`."
        )
        raise DataError(msg)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        msg = (
            f"Expected labels 0 and 1 in `{name}`, but {int(np.isnan(labels).sum())} of {labels.size} are nan. Drop "
            "unlabelled examples first, for instance with torch.utils.data.Subset."
        )
        raise DataError(msg)
    wrong = labels[(labels != 0) & (labels != 1)]
    if wrong.size:
        _refuse_values(np.unique(labels), name)
    return labels.astype(np.int8)


def _refuse_values(values: NDArray[Any], name: str) -> None:
    shown = ", ".join(str(value) for value in values[:5].tolist()) + (", ..." if values.size > 5 else "")
    if values.size == 2:
        split = "0" if values[0] < 0 < values[1] else str(values[0].item())
        remedy = f"Pass 0/1 labels, for instance `targets=(y > {split})`."
    else:
        remedy = "Choose the positive class, for instance `targets=(y == 1)`."
    msg = f"Expected labels 0 and 1 in `{name}`, but found {shown}. {remedy}"
    raise DataError(msg)
