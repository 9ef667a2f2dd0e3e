"""Checks of indices that users give to subsets and samplers: positions are accepted, masks and row labels refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, SubsetRandomSampler

from lightning_tpauc.errors import DataError


def as_positions(indices: Any, count: int, name: str = "train_dataset", who: str = "Subset") -> NDArray[np.int64]:
    """Indices of a :class:`~torch.utils.data.Subset` as positions from 0 on.

    Args:
        indices: sequence, array or tensor of whole numbers in ``-count .. count - 1``, in any order, with repetitions.
        count: number of items of the data set.
        name: name of the data set in messages.
        who: class that holds the indices, in messages.

    Returns:
        int64 array in ``0 .. count - 1``.

    Raises:
        DataError: if they are a mask, a pandas Series, not whole numbers, or out of range. torch reads a mask as the
            items 0 and 1 over and over, and a Series by its row labels.

    Example:
        >>> as_positions([2, -1, 2], count=4)
        array([2, 3, 2])
    """
    if hasattr(indices, "iloc"):
        msg = (
            f"{who} in `{name}` has a {type(indices).__name__} of pandas as indices, which is read by its own labels "
            "and not in order. Pass `indices.to_numpy()`."
        )
        raise DataError(msg)
    array = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    is_whole = array.dtype.kind in "iu"
    # One zero or one for each item must be a mask: as indices, it would repeat the first two items only.
    if array.dtype.kind == "b" or (is_whole and 2 < array.size == count and array.min() == 0 and array.max() == 1):
        msg = (
            f"{who} in `{name}` has a mask as indices, which would be read as the items 0 and 1 over and over. Pass "
            f"positions: `{who}(..., np.flatnonzero(mask))`."
        )
        raise DataError(msg)
    if not is_whole or array.ndim != 1:
        msg = (
            f"Expected the indices of {who} in `{name}` to be whole numbers in one dimension, but got dtype "
            f"{array.dtype} and shape {array.shape}."
        )
        raise DataError(msg)
    wrong = array[(array < -count) | (array >= count)]
    if wrong.size:
        msg = f"Expected the indices of {who} in `{name}` to be below {count}, the number of items, but got {wrong[0]}."
        raise DataError(msg)
    positions = array.astype(np.int64)
    return np.where(positions < 0, positions + count, positions)


def check_positions(dataset: Any, name: str = "train_dataset") -> None:
    """Raise :class:`DataError` if a subset inside the data set has a mask or the like as indices.

    Data sets in an attribute ``dataset`` or in a :class:`~torch.utils.data.ConcatDataset` are checked, too.

    Raises:
        DataError: see :func:`as_positions`.

    Example:
        >>> check_positions(Subset([5, 6, 7], [2, 0]))
    """
    if isinstance(dataset, Subset):
        as_positions(dataset.indices, len(dataset.dataset), name)  # type: ignore[arg-type]  # those of torch have one
    if isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            check_positions(part, name)
    inner = getattr(dataset, "dataset", None) if isinstance(dataset, Dataset) else None
    if isinstance(inner, Dataset):
        check_positions(inner, name)


def check_loader(loader: Any) -> None:
    """Check the data set of a data loader, and the indices of its sampler.

    Raises:
        DataError: see :func:`as_positions`.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> check_loader(DataLoader([5, 6, 7]))
    """
    dataset = getattr(loader, "dataset", None)
    check_positions(dataset, "the data loader")
    # For prediction, Lightning replaces the loader's sampler. The batch sampler keeps the old one.
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, SubsetRandomSampler):
            as_positions(sampler.indices, len(dataset), "the data loader", "SubsetRandomSampler")  # type: ignore[arg-type]
