"""Identifies data by their content, so that results of other data are not taken for theirs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

#: Of a set that makes its items one by one, and of a long list, so many are read, at equal distances.
_ITEMS = 256
_PLAIN = (bool, int, float, complex, str, bytes)


def content_digest(*values: Any) -> str:
    """16 hex digits of the content of data: the same in every process, others if a number, a name or a label differs.

    Tensors, arrays, sparse matrices, tables with the names of their columns, and lists of numbers and texts are read
    whole. Of data sets that make their items one by one, and of other lists, 256 items count, at equal distances; an
    item that is never the same counts for nothing. The global random numbers stay as they are.

    Args:
        values: data sets as a data module takes them, labels, settings; anything else counts by its type and text.

    Example:
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> content_digest(x, [0, 1, 1]) == content_digest(x.clone(), [0, 1, 1])
        True
        >>> content_digest(x) == content_digest(-x)
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # what transforms use
    try:
        for value in values:
            _add(digest, value)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    digest.update(f"|{type(value).__qualname__}:".encode())
    if value is None or isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, Tensor):
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        dense = value.detach().cpu() if value.layout is torch.strided else value.detach().cpu().to_dense()
        digest.update(dense.contiguous().flatten().view(torch.uint8).numpy().data)  # bytes: NumPy lacks some dtypes
    elif isinstance(value, np.ndarray):
        _add_array(digest, value)
    else:
        for part in _parts(value):
            _add(digest, part)


def _add_array(digest: Any, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.shape}{array.dtype.str}".encode())
    if array.dtype.hasobject:
        _add(digest, array.ravel().tolist())
    else:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")


def _parts(value: Any) -> list[Any]:
    """What a value consists of."""
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):  # a table: pandas, polars
        return [[str(name) for name in value.columns], *(value[name].to_numpy() for name in value.columns)]
    if hasattr(value, "tocsr"):  # a sparse matrix
        rows = value.tocsr()
        return [rows.shape, rows.indptr, rows.indices, rows.data]
    if isinstance(value, Mapping):
        return [entry for pair in value.items() for entry in pair]
    if isinstance(value, TensorDataset):
        return list(value.tensors)
    if isinstance(value, Subset):
        return [np.asarray(value.indices), value.dataset]
    if isinstance(value, (list, tuple)):
        plain = bool(value) and isinstance(value[0], _PLAIN)
        return [repr(value)] if plain else [len(value), *(value[k] for k in _places(len(value)))]
    if hasattr(value, "to_dict"):  # a graph
        return [value.to_dict()]
    if isinstance(value, Dataset) and hasattr(value, "__len__"):
        return [len(value), *(_steady(value, k) for k in _places(len(value)))]
    return [np.asarray(value)] if hasattr(value, "__array__") else _text(value)


def _text(value: Any) -> list[str]:
    """A value's text, unless it is an address, which is another one in the next process."""
    return [] if " at 0x" in repr(value) else [repr(value)]


def _places(count: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, _ITEMS, dtype=np.int64)).tolist() if count else []


def _steady(dataset: Any, k: int) -> Any:
    """An item, or nothing if it is another one when it is made again with the same random numbers."""

    def made() -> tuple[Any, str]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        item, digest = dataset[k], hashlib.blake2b(digest_size=8)
        _add(digest, item)
        return item, digest.hexdigest()

    (item, one), (_, again) = made(), made()
    return item if one == again else None
