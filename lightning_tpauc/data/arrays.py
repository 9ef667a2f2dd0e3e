"""Data sets that fetch a whole batch at once; one over arrays: tensors, numpy arrays, memory maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from lightning_tpauc.errors import DataError

__all__ = ("ArrayDataset", "RowsDataset")


class RowsDataset(Dataset[Any], ABC):
    """Base of map-style data sets that can fetch the inputs of a whole batch at once, without random numbers."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, rows: NDArray[np.int64]) -> Any:
        """Collated inputs, without labels, of the rows (int64 array)."""


class ArrayDataset(RowsDataset):
    """Rows of one array and their labels; a whole batch is fetched by one indexing call.

    Args:
        features: tensor or numpy array (also a memory map) of shape ``(n, ...)``, any dtype.
        targets: tensor, array or sequence of n labels.
        shift: float array that broadcasts against a row; subtracted from what is fetched.
        scale: float array that broadcasts against a row; multiplies what is fetched, after the shift. A memory map is
            thus standardised without a copy.

    Raises:
        DataError: if lengths differ.

    Example:
        >>> data = ArrayDataset(np.arange(6.0).reshape(3, 2), [0, 1, 0])
        >>> data.rows(np.array([2, 0]))
        tensor([[4., 5.],
                [0., 1.]], dtype=torch.float64)
        >>> data[1]
        (tensor([2., 3.], dtype=torch.float64), 1)
    """

    def __init__(
        self,
        features: Tensor | NDArray[Any],
        targets: Any,
        shift: NDArray[Any] | None = None,
        scale: NDArray[Any] | None = None,
    ) -> None:
        self.features = features
        self.targets = targets
        self.shift = None if shift is None else np.asarray(shift)
        self.scale = None if scale is None else np.asarray(scale)
        self._on_host = _host_view(features) is not None
        if len(features) != len(targets):
            msg = f"Expected one label per row, but got {len(targets)} labels for {len(features)} rows."
            raise DataError(msg)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.rows(np.array([row]))[0], int(self.targets[row])

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of shape ``(len(rows), ...)``."""
        # made anew each time: a tensor's memory moves when it is shared with a spawned process
        host = _host_view(self.features) if self._on_host else None
        if host is None:
            features: Tensor = self.features  # type: ignore[assignment]  # arrays always have a view
            found = features.index_select(0, torch.from_numpy(rows).to(features.device))
            if self.shift is not None:
                found = found - torch.from_numpy(self.shift).to(found.device)
            return found if self.scale is None else found * torch.from_numpy(self.scale).to(found.device)
        array = host.take(rows, axis=0) if host.flags.c_contiguous else host[rows]
        if self.shift is not None:
            array = array - self.shift
        return torch.from_numpy(array if self.scale is None else array * self.scale)


def _host_view(features: Tensor | NDArray[Any]) -> NDArray[Any] | None:
    """A plain numpy view: on the CPU, ``take`` fetches a small batch ten times as fast as torch's indexing does."""
    if not isinstance(features, Tensor):
        return features.view(np.ndarray)
    try:
        array: NDArray[Any] = features.detach().numpy()
    except TypeError:  # on a GPU, or a dtype or layout that numpy does not have
        return None
    return array
