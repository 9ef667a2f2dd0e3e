"""Labels of a data set: where they are found, and what is accepted as a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.console import bar_console
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import DataError

__all__ = ("binary_labels", "find_targets", "label_of_item", "stored_targets")

#: Names under which labels are looked for, in this order, among attributes of data sets and keys of items.
NAMES = ("targets", "labels", "y", "target", "label")


def find_targets(dataset: Any, targets: Any = None, name: str = "train_dataset") -> NDArray[np.int8]:
    """Labels of all items of a map-style data set.

    Looked for in this order: the given array; the given name, as an attribute of the data set or key of its items; the
    attributes ``targets``, ``labels``, ``y``, ``target``, ``label``; the last tensor of a ``TensorDataset``; one
    pass over all items, with a progress bar. :class:`~torch.utils.data.Subset` and
    :class:`~torch.utils.data.ConcatDataset` are looked through.

    Args:
        dataset: map-style data set with n items.
        targets: n labels, or the name under which the data set keeps them.
        name: how messages call the data set.

    Returns:
        int8 array ``(n,)`` of 0 and 1.

    Raises:
        DataError: if no labels are found, or they are not 0 and 1; see :func:`binary_labels`.

    Example:
        >>> import torch
        >>> find_targets(TensorDataset(torch.zeros(3, 2), torch.tensor([0.0, 1.0, 0.0])))
        array([0, 1, 0], dtype=int8)
    """
    key = targets if isinstance(targets, str) else None
    found = targets if targets is not None and key is None else stored_targets(dataset, key)
    if found is None:
        # augmentations draw random numbers here, too: the state from before is restored
        with seeded_items(0, 0):
            found = [label_of_item(item, key, name) for item in _items(dataset, name)]
    labels = binary_labels(found, name)
    if len(labels) != len(dataset):
        msg = f"Expected one label for each of the {len(dataset)} items of `{name}`, but got {len(labels)} labels."
        raise DataError(msg)
    return labels


def stored_targets(dataset: Any, key: str | None = None) -> Any:
    """Labels that the data set keeps together, unchecked, or ``None``.

    Args:
        dataset: map-style data set.
        key: the attribute that holds them; the usual names if ``None``.

    Example:
        >>> import torch
        >>> stored_targets(Subset(TensorDataset(torch.zeros(3), torch.tensor([0, 1, 1])), [2, 0]))
        array([1, 0])
    """
    if isinstance(dataset, Subset):
        inner = stored_targets(dataset.dataset, key)
        return None if inner is None else _as_array(inner)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [stored_targets(part, key) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate([_as_array(part) for part in parts])
    for attribute in NAMES if key is None else (key,):
        found = getattr(dataset, attribute, None)
        # `y` of a data set of graphs may hold one value per node; `len` of a 0-d tensor fails
        if isinstance(found, (Tensor, np.ndarray, list, tuple)) and np.ndim(found) > 0 and len(found) == len(dataset):
            return found
    if isinstance(dataset, TensorDataset) and key is None and len(dataset.tensors) > 1:
        return dataset.tensors[-1]
    return None


def _items(dataset: Any, name: str) -> Any:
    console, text = bar_console(), f"Reading the labels of {name}"
    rows = track(range(len(dataset)), text, console=console, transient=True, disable=console.quiet)
    return (dataset[row] for row in rows)


def label_of_item(item: Any, key: str | None = None, name: str = "train_dataset") -> Any:
    """Label inside one item: under ``key`` or one of :data:`NAMES`, or the last entry of a tuple.

    Args:
        item: mapping, object with attributes (such as a PyG ``Data``), or tuple whose last entry is the label.
        key: the label's name; tried before the usual ones.
        name: how messages call the data set.

    Raises:
        DataError: if the item has no label.

    Example:
        >>> label_of_item({"text": "some words", "label": 1})
        1
    """
    for candidate in NAMES if key is None else (key,):
        if isinstance(item, Mapping) and candidate in item:
            return item[candidate]
        if not isinstance(item, (tuple, list, Tensor)) and getattr(item, candidate, None) is not None:
            return getattr(item, candidate)
    if isinstance(item, (tuple, list)) and len(item) > 1 and key is None:
        return item[-1]
    what = f"{key!r}" if key is not None else "any of " + ", ".join(NAMES)
    msg = (
        f"Found no label in the items of `{name}` (a {type(item).__name__}, looked for {what}). Pass "
        "`targets=array_of_labels`, or `targets='name'` of the attribute or key that holds them."
    )
    raise DataError(msg)


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, list) and values and isinstance(values[0], (Tensor, np.ndarray)):
        return np.stack([np.asarray(value) for value in values])
    return np.asarray(values)


def binary_labels(values: Any, name: str = "targets") -> NDArray[np.int8]:
    """Check labels and return them as an int8 array of 0 and 1.

    Args:
        values: tensor, array or sequence of shape ``(n,)`` or with further axes of length 1; bool, integers, or floats
            0.0 and 1.0.
        name: how messages call them.

    Returns:
        int8 array ``(n,)``.

    Raises:
        DataError: if a label is nan or neither 0 nor 1, or if there is more than one column.

    Example:
        >>> binary_labels([[True], [False]])
        array([1, 0], dtype=int8)
    """
    labels = _as_array(values)
    if labels.ndim == 0 or labels.size != len(labels):
        msg = (
            f"Expected one label per example in `{name}`, but got shape {labels.shape}. Choose one column, "
            "for instance `targets=labels[:, 0]`."
        )
        raise DataError(msg)
    labels = labels.reshape(-1)
    if labels.dtype.kind not in "buif":
        msg = f"Expected numbers as labels in `{name}`, but got dtype {labels.dtype}. Map them to 0 and 1 first."
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
