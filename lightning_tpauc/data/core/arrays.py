"""Data sets that fetch a whole batch at once, and one of them over arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from lightning_tpauc.data.core.targets import as_array, item_label
from lightning_tpauc.data.core.tree_utils import cut_inputs
from lightning_tpauc.errors import DataError, TPAUCWarning


class RowsDataset(Dataset[Any], ABC):
    """Base of map-style data sets that fetch and collate the inputs of a whole batch at once, without random numbers.

    The labels are an attribute ``targets``. To collate single items that differ in size, you need no subclass: pass a
    ``collate_fn`` to :class:`~lightning_tpauc.PosNegDataModule`.

    Example:
        >>> class Words(RowsDataset):
        ...     def __init__(self, lines, targets):
        ...         self.lines, self.targets = lines, targets
        ...     def __len__(self):
        ...         return len(self.lines)
        ...     def rows(self, rows):
        ...         lines = [torch.tensor([len(word) for word in self.lines[row].split()]) for row in rows]
        ...         return torch.nn.utils.rnn.pad_sequence(lines, batch_first=True)
        >>> Words(["to be or", "not to be"], [1, 0]).rows(np.array([1, 0]))
        tensor([[3, 2, 2],
                [2, 2, 2]])
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, rows: NDArray[np.int64]) -> Any:
        """Collated inputs, without labels, of the rows (int64 array)."""

    def __getitem__(self, row: int) -> Any:
        inputs, targets = self.rows(np.array([row])), getattr(self, "targets", None)
        if isinstance(inputs, (Tensor, np.ndarray, Mapping, tuple, list)):
            inputs = cut_inputs(inputs, 0)
        entries = inputs if isinstance(inputs, tuple) else (inputs,)
        return inputs if targets is None else (*entries, item_label(targets[row]))


class ArrayDataset(RowsDataset):
    """Rows of one array and their labels. A whole batch is fetched by one indexing call.

    Args:
        features: tensor, numpy array or memory map of shape ``(n, ...)``, a table, or a sparse matrix of scipy of shape
            ``(n, m)``, of any dtype of numbers. Sparse rows become dense when they are fetched.
        targets: tensor, array, sequence or column of a table with n labels, or with n rows of labels of several tasks;
            ``None`` if there are none.
        shift: float array that broadcasts against a row. It is subtracted from fetched rows.
        scale: float array that broadcasts against a row. Fetched rows are multiplied by it after the shift, so that a
            memory map is standardised without a copy.
        dtype: dtype of fetched floats, for instance ``np.float32``; ``None`` leaves it as it is.

    Raises:
        DataError: if lengths differ, or features are not numbers.

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
        features: Any,
        targets: Any,
        shift: NDArray[Any] | None = None,
        scale: NDArray[Any] | None = None,
        *,
        dtype: type[np.floating[Any]] | None = None,
    ) -> None:
        features = features if isinstance(features, Tensor) else as_features(features, "ArrayDataset")
        # Rows of this format can be indexed.
        self.features = features.tocsr() if hasattr(features, "tocsr") else features
        # A column of a table is indexed by the labels of its rows. An array is indexed by position.
        is_array = targets is None or isinstance(targets, (Tensor, np.ndarray))
        self.targets = targets if is_array else as_array(targets)
        #: Names of the columns of a table of labels.
        self.label_names: Any = getattr(targets, "columns", None)
        self.shift = None if shift is None else np.asarray(shift)
        self.scale = None if scale is None else np.asarray(scale)
        self.dtype = dtype
        self._on_host = _host_view(self.features) is not None
        if self.targets is not None and len(self.targets) != len(self):
            msg = f"Expected one label per row, but got {len(self.targets)} labels for {len(self)} rows."
            raise DataError(msg)

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def __getitem__(self, row: int) -> Any:
        features = self.rows(np.array([row]))[0]
        if self.targets is None:
            return features
        return features, item_label(self.targets[row])

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of shape ``(len(rows), ...)``."""
        # The view is made anew each time: a tensor's memory moves when it is shared with a spawned process.
        host = _host_view(self.features) if self._on_host else None
        if host is None:
            found: Tensor = self.features.index_select(0, torch.from_numpy(rows).to(self.features.device))
            if self.shift is not None:
                found = found - torch.from_numpy(self.shift).to(found.device)
            return found if self.scale is None else found * torch.from_numpy(self.scale).to(found.device)
        if hasattr(host, "toarray"):
            array = host[rows].toarray()
        else:
            array = host.take(rows, axis=0) if host.flags.c_contiguous else host[rows]
        if self.shift is not None:
            array = array - self.shift
        if self.scale is not None:
            array = array * self.scale
        if self.dtype is not None and array.dtype.kind == "f":
            array = array.astype(self.dtype, copy=False)
        return torch.from_numpy(array)


def _host_view(features: Any) -> Any:
    """A plain numpy view. On the CPU, its ``take`` fetches a small batch ten times as fast as torch's indexing."""
    if not isinstance(features, Tensor):
        return features.view(np.ndarray) if isinstance(features, np.ndarray) else features
    try:
        array: NDArray[Any] = features.detach().numpy()
    except TypeError:  # on a GPU, or a dtype or layout that numpy does not have
        return None
    return array


def as_features(x: Any, name: str = "train_dataset") -> Any:
    """Features in a form that :class:`ArrayDataset` takes; tables become arrays.

    Args:
        x: the user's features. Rows of tables are taken in their order, whatever their labels are.
        name: name of the data set in messages.

    Raises:
        DataError: if the type is another one, entries are not numbers, or entries are masked.

    Example:
        >>> as_features(np.eye(2)).shape
        (2, 2)
    """
    if isinstance(x, Tensor):
        _require(x.layout == torch.strided, name, f"a tensor of layout {x.layout}", "Pass `x.to_dense()`")
        return x
    if hasattr(x, "tocsr"):
        return x
    if hasattr(x, "to_numpy"):
        columns = zip(x.columns, x.dtypes, strict=True) if hasattr(x, "columns") else [("x", x.dtype)]
        wrong = [str(column) for column, kind in columns if getattr(kind, "kind", "f") not in "buif"]
        _require(not wrong, name, f"no numbers in {enumerated(wrong)}", "Encode or drop these columns")
        found = x.to_numpy()  # Columns of several kinds become objects. All kinds fit into float64.
        x = found if found.dtype.kind != "O" else x.to_numpy(dtype=np.float64, na_value=np.nan)
    _require(isinstance(x, np.ndarray), name, f"a {type(x).__name__}", "Convert it with `torch.tensor(x)`")
    _require(x.dtype.kind in "buifc", name, f"an array of dtype {x.dtype}", "Encode it as numbers")
    masked = int(np.ma.getmaskarray(x).sum()) if isinstance(x, np.ma.MaskedArray) else 0
    _require(not masked, name, f"{masked} masked entries", "Fill them, for instance with `x.filled(0)`")
    return x


def enumerated(columns: Sequence[Any]) -> str:
    """Up to ten names of columns for a sentence, and how many there are besides.

    Example:
        >>> enumerated(range(12))
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    rest = len(columns) - 10
    return ", ".join(map(str, columns[:10])) + (f" and {rest} more" if rest > 0 else "")


def warn_of_another_order(x: Any, y: Any, name: str) -> None:
    """Warn if a table and its labels have the same index in different orders, since rows are paired by position."""
    one: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    if not (hasattr(one, "equals") and hasattr(other, "equals")) or len(one) != len(other) or one.equals(other):
        return
    if one.sort_values().equals(other.sort_values()):
        rank_zero_warn(
            f"The inputs and the labels in `{name}` have the same index in different orders. They are paired by "
            "position: pass `y.to_numpy()` if that is right, and `y.loc[x.index]` if the index should decide.",
            category=TPAUCWarning,
        )


def _require(fits: bool, name: str, found: str, remedy: str) -> None:
    if not fits:
        msg = (
            f"Expected x in `{name}` to be a tensor, a numpy array, a sparse matrix or a table, all of numbers, but "
            f"got {found}. {remedy}, or pass a data set."
        )
        raise DataError(msg)
