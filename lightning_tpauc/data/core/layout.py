"""Which entries of an item or batch are inputs: known from what a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ("WithoutLabels", "has_label", "layout", "without_label")


def layout(inputs: Any) -> Any:
    """What collated inputs consist of, as strings and lists of these, which a checkpoint can hold.

    Args:
        inputs: tensor, mapping, graphs, words, or a tuple or list of these.

    Example:
        >>> import torch
        >>> layout((torch.zeros(2, 3), {"age": torch.zeros(2)}, ["a", "b"]))
        ['tensor', 'mapping', 'words']
    """
    if isinstance(inputs, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return "tensor"  # numbers become tensors when they are collated
    if isinstance(inputs, Mapping):
        return "mapping"
    if isinstance(inputs, str):
        return "words"
    if isinstance(inputs, (tuple, list)):
        return "words" if inputs and all(isinstance(entry, str) for entry in inputs) else [layout(e) for e in inputs]
    return type(inputs).__name__.removesuffix("Batch")  # PyG makes a DataBatch of Data


def without_label(entries: Any) -> Any:
    """The inputs in an item or batch whose last entry is the label: ``(a, b, y)`` gives ``(a, b)``, ``(a, y)`` a.

    Example:
        >>> without_label([1, 2, 0]), without_label([1, 0])
        ((1, 2), 1)
    """
    return entries[0] if len(entries) == 2 else tuple(entries[:-1])


def has_label(entries: Any, known: Any) -> bool | None:
    """Whether the last of several entries is a label; ``None`` if nobody knows.

    Args:
        entries: tuple or list.
        known: the :func:`layout` of the inputs that the model was trained on; ``None`` if that is unknown.

    Example:
        >>> import torch
        >>> ids, mask, y = torch.zeros(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
        >>> [has_label(e, ["tensor", "tensor"]) for e in ((ids, mask), (ids, mask, y))], has_label((ids, mask), None)
        ([False, True], None)
    """
    if known is not None and len(entries) > 1 and layout(without_label(entries)) == known:
        return True
    if known is not None and (layout(entries) == known or (len(entries) == 1 and layout(entries[0]) == known)):
        return False
    return None


class WithoutLabels(Dataset[Any]):
    """A data set whose items are inputs alone, for readers that take a tuple's last entry for the label.

    Args:
        dataset: map-style data set of tuples.

    Example:
        >>> WithoutLabels([(1, 2)])[0]
        ((1, 2),)
    """

    def __init__(self, dataset: Any) -> None:
        self.items = dataset

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Any]:
        return (tuple(self.items[row]),)
