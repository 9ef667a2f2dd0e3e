"""Identifies data by their content, so that results of other data are not taken for theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_tpauc.data.seeding import seeded_items

#: Of a set that makes its items one by one, and of a list of others than numbers and texts, so many are read.
_ITEMS = 256
_PLAIN = (bool, int, float, complex, str, bytes)


def content_digest(*values: Any) -> str:
    """16 hex digits of the content of data: the same in every process, others if a number, a name or a label differs.

    Tensors, arrays, sparse matrices, tables with the names of their columns, and lists of numbers and texts are read
    whole. Of data sets that make their items one by one, and of other lists, 256 items count, at equal distances. The
    global random numbers stay as they are.

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
    with seeded_items(0, 0) as reseed:
        for value in values:
            _add(digest, value, reseed)
    return digest.hexdigest()


def _add(digest: Any, value: Any, reseed: Callable[[int], None]) -> None:
    digest.update(f"|{type(value).__qualname__}:".encode())
    if isinstance(value, Tensor):
        dense = value.detach().cpu().to_dense().contiguous()
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(dense.flatten().view(torch.uint8).numpy().data)  # bytes: NumPy lacks some dtypes
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.shape}{value.dtype.str}".encode())
        digest.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
    elif value is None or isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
    else:
        for part in _parts(value, reseed):
            _add(digest, part, reseed)


def _parts(value: Any, reseed: Callable[[int], None]) -> Iterable[Any]:
    """What a value consists of."""
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):  # a table: pandas, polars
        return [[str(name) for name in value.columns], *(value[name].to_numpy() for name in value.columns)]
    if hasattr(value, "tocsr"):  # a sparse matrix
        rows = value.tocsr()
        return [rows.shape, rows.indptr, rows.indices, rows.data]
    if isinstance(value, Mapping):
        return [entry for pair in value.items() for entry in pair]
    if isinstance(value, (TensorDataset, Subset)):
        return value.tensors if isinstance(value, TensorDataset) else [np.asarray(value.indices), value.dataset]
    if hasattr(value, "to_dict") and not hasattr(value, "__array__"):  # a graph
        return [value.to_dict()]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], _PLAIN):
        return [repr(value)]
    if isinstance(value, (list, tuple)) or (isinstance(value, Dataset) and hasattr(value, "__len__")):
        return _some_items(value, reseed)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return array.ravel().tolist() if array.dtype.hasobject else [array]
    return [] if " at 0x" in repr(value) else [repr(value)]  # an address is another one in the next process


def _some_items(items: Any, reseed: Callable[[int], None]) -> Iterator[Any]:
    yield len(items)
    for place in np.unique(np.linspace(0, len(items) - 1, _ITEMS, dtype=np.int64)).tolist() if len(items) else []:
        reseed(place)
        yield items[place]
