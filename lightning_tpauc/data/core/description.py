"""Data in a few characters, to compare what several processes have."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc.data.core.arrays import RowsDataset

__all__ = ("describe", "digest")


def describe(dataset: Any) -> str:
    """Number of examples, and a check sum of what costs next to nothing: indices, and a few rows that lie in memory.

    Items of other data sets may be expensive, or random.

    Args:
        dataset: map-style data set.

    Example:
        >>> describe(TensorDataset(torch.zeros(5, 2))) == describe(TensorDataset(torch.zeros(5, 2)))
        True
    """
    if isinstance(dataset, Subset):
        return f"{len(dataset)} examples, {digest(np.asarray(dataset.indices))}, of {describe(dataset.dataset)}"
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
    sums = [digest(_bytes(part)) for part in found]
    return ", ".join([f"{count} examples", *shapes, *sums])


def digest(values: np.ndarray[Any, Any]) -> str:
    """Eight hex digits of an array's shape and contents.

    Example:
        >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(4))
        (True, False)
    """
    array = np.ascontiguousarray(values)
    text = f"{array.shape}{array.dtype.newbyteorder('=')}".encode()
    return hashlib.blake2b(text + array.tobytes(), digest_size=4).hexdigest()


def _bytes(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
