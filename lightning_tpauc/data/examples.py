"""Sets of examples: what users give, how rows are fetched, and what the model's inputs look like."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import delitem, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from lightning_tpauc.data.labels import (
    NAMES,
    NOTHING,
    as_array,
    as_positions,
    check_positions,
    entry_of,
    item_label,
    numbers_of,
    same_numbers,
)
from lightning_tpauc.data.seeding import ItemReader, seeded_items
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra, is_graph
from lightning_tpauc.functional.checks import in_other_order

Indices = NDArray[np.int64]
#: ``fetch(rows, step) -> inputs``.
Fetcher = Callable[[Indices, int], Any]


class Datasets(NamedTuple):
    """The data sets of a run; ``None`` where there is none.

    Attributes:
        train: training set; validation may be split off from it.
        val: validation set of its own.
        test: test set.
        predict: data to predict on; labels are not needed.
        negatives: a stream of training negatives; ``train`` then holds the positives.
    """

    train: Any = None
    val: Any = None
    test: Any = None
    predict: Any = None
    negatives: Any = None


# ---------------------------------------------------------------- whole batches at once


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
        inputs, targets = _of_each(self.rows(np.array([row])), itemgetter(0)), getattr(self, "targets", None)
        entries = inputs if isinstance(inputs, tuple) else (inputs,)
        return inputs if targets is None else (*entries, item_label(targets[row]))


class ArrayDataset(RowsDataset):
    """Rows of one array and their labels. A whole batch is fetched by one indexing call.

    Args:
        features: tensor, numpy array or memory map of shape ``(n, ...)``, a table, or a sparse matrix of scipy of shape
            ``(n, m)``, of any dtype of numbers. Sparse rows become dense when they are fetched.
        targets: tensor, array, sequence or column of a table with n labels, or with n rows of several labels;
            ``None`` if there are none.
        shift: float array that broadcasts against a row. It is subtracted from fetched rows.
        scale: float array that broadcasts against a row. Fetched rows are multiplied by it after the shift, so that a
            memory map is standardised without a copy.
        dtype: dtype of fetched floats, for instance ``np.float32``; ``None`` leaves it as it is.
        name: name of the data set in messages.

    Raises:
        DataError: if lengths differ, features are not numbers, or a table and its labels have one index in two orders.

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
        name: str = "ArrayDataset",
    ) -> None:
        #: Names of a table's columns, and its index or that of the labels; ``None`` for what has none.
        self.columns, self.index = column_names(features, name), index_of(features)
        self.index = index_of(targets) if self.index is None else self.index
        check_order(self.index, targets, "the labels", name)
        features = as_features(features, name)
        # Rows of this format can be indexed.
        self.features = features.tocsr() if hasattr(features, "tocsr") else features
        # A column of a table is indexed by the labels of its rows. An array is indexed by position.
        is_array = targets is None or isinstance(targets, (Tensor, np.ndarray))
        self.targets = targets if is_array else as_array(targets)
        #: Names of the columns of a table of labels.
        self.label_names: Any = getattr(targets, "columns", None)
        self.shift, self.scale = (None if value is None else np.asarray(value) for value in (shift, scale))
        self.dtype = dtype
        if self.targets is not None and len(self.targets) != len(self):
            msg = f"Expected one label per row, but got {len(self.targets)} labels for {len(self)} rows."
            raise DataError(msg)

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of shape ``(len(rows), ...)``."""
        host, found = host_view(self.features), None
        change: tuple[Any, ...] = self.shift, self.scale
        if host is None:
            device = self.features.device
            found = self.features.index_select(0, torch.from_numpy(rows).to(device))
            change = tuple(None if value is None else torch.from_numpy(value).to(device) for value in change)
        elif hasattr(host, "toarray"):
            found = host[rows].toarray()
        else:
            found = host.take(rows, axis=0) if host.flags.c_contiguous else host[rows]
        if change[0] is not None:
            found = found - change[0]
        if change[1] is not None:
            found = found * change[1]
        if isinstance(found, Tensor):
            return found
        if self.dtype is not None and found.dtype.kind == "f":
            found = found.astype(self.dtype, copy=False)
        return torch.from_numpy(found)

    def in_order(self, columns: Sequence[int]) -> ArrayDataset:
        """A copy with these columns, by position."""
        other, order = copy.copy(self), list(columns)
        other.features = self.features[:, order]
        other.columns = None if self.columns is None else tuple(self.columns[k] for k in order)
        return other

    def missing(self) -> dict[str, int]:
        """How many entries of each column of a table are nan or infinite, without the columns that have none."""
        if self.columns is None or self.features.dtype.kind != "f":
            return {}
        counts = (~np.isfinite(self.features)).sum(axis=0)
        return {name: int(count) for name, count in zip(self.columns, counts, strict=True) if count}


def host_view(features: Any) -> Any:
    """A plain numpy view. On the CPU, its ``take`` fetches a small batch ten times as fast as torch's indexing.

    It is made anew for each batch: a tensor's memory moves when it is shared with a spawned process.
    """
    if not isinstance(features, Tensor):
        return features.view(np.ndarray) if isinstance(features, np.ndarray) else features
    try:
        array: NDArray[Any] = features.detach().numpy()
    except TypeError:  # on a GPU, or a dtype or layout that numpy does not have
        return None
    return array


# ---------------------------------------------------------------- tables


def is_table(x: Any) -> bool:
    """Whether this is a table of pandas or polars, or one like them."""
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def column_names(x: Any, name: str) -> tuple[str, ...] | None:
    """The names of a table's columns as text; ``None`` for what is no table."""
    if not is_table(x):
        return None
    names = tuple(map(str, x.columns))
    twice = [column for column, times in Counter(names).items() if times > 1]
    if twice:
        msg = f"`{name}` has more than one column {twice[0]!r}. Rename or drop them: columns are known by their names."
        raise DataError(msg)
    return names


def index_of(x: Any) -> Any:
    """The index of a table or column of pandas; ``None`` for everything else."""
    index = getattr(x, "index", None)
    return index if hasattr(index, "equals") else None  # a list has a method of this name


def check_order(index: Any, other: Any, what: str, name: str) -> None:
    """Raise :class:`DataError` if two columns have one index in two orders, since rows are paired by position."""
    if in_other_order(index, index_of(other)):
        msg = (
            f"The inputs and {what} in `{name}` have the same index in different orders, or parts of it, and they "
            "are paired by position: pass `y.loc[x.index]` if the index should decide, and `y.to_numpy()` if the "
            "position should."
        )
        raise DataError(msg)


def as_features(x: Any, name: str = "train_dataset") -> Any:
    """Features in a form that :class:`ArrayDataset` takes; tables become arrays."""
    wrong = ""
    if hasattr(x, "to_numpy"):
        wrong = _without_numbers(x)
        x = x if wrong else _numbers_of_table(x)
    elif isinstance(x, np.ndarray):
        if x.dtype.kind not in "buifc":
            wrong = f"an array of dtype {x.dtype}. Encode it as numbers"
        elif np.ma.is_masked(x):
            wrong = "masked entries. Fill them, for instance with `x.filled(0)`"
        elif not x.dtype.isnative:  # torch asks for the machine's byte order
            x = x.astype(x.dtype.newbyteorder("="))
    elif isinstance(x, Tensor):
        wrong = "" if x.layout == torch.strided else f"a tensor of layout {x.layout}. Pass `x.to_dense()`"
    elif not hasattr(x, "tocsr"):
        wrong = f"a {type(x).__name__}. Convert it with `torch.tensor(x)`"
    if wrong:
        msg = (
            f"Expected x in `{name}` to be a tensor, a numpy array, a sparse matrix or a table, all of numbers, but "
            f"got {wrong}, or pass a data set."
        )
        raise DataError(msg)
    return x


def _without_numbers(table: Any) -> str:
    """Which columns are no numbers, and how they become some; empty if all are."""
    columns = [(str(column), table[column]) for column in table.columns] if is_table(table) else [("x", table)]
    # as numpy calls them; dtypes of polars have no kind, so their columns are converted
    kinds = {c: getattr(v.dtype, "kind", None) or np.asarray(v.to_numpy()).dtype.kind for c, v in columns}
    others = [column for column, kind in kinds.items() if kind not in "buif"]
    dates = "dates become numbers by `(t - t.min()).dt.days`" if {*kinds.values()} & {"M", "m"} else ""
    remedy = dates or "texts by `pd.get_dummies` of all rows together, or scikit-learn's ColumnTransformer"
    return f"no numbers in {enumerated(others)}. Encode or drop these columns ({remedy})" if others else ""


def _numbers_of_table(table: Any) -> NDArray[Any]:
    array: NDArray[Any] = table.to_numpy()
    if array.dtype.kind == "O":  # columns of several kinds, which all fit into float64
        array = table.to_numpy(dtype=np.float64, na_value=np.nan)
    # a table of whole numbers alone is one of numbers, too; what is looked up by number comes as an array
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def enumerated(columns: Sequence[Any]) -> str:
    """Up to ten names of columns for a sentence, and how many there are besides."""
    rest = len(columns) - 10
    return ", ".join(map(str, columns[:10])) + (f" and {rest} more" if rest > 0 else "")


def whole(dataset: Any) -> Any:
    """What a data set is a subset of, if it is one."""
    return whole(dataset.dataset) if isinstance(dataset, Subset) else dataset


def columns_of(dataset: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data set made from a table, also inside subsets; ``None`` for others."""
    dataset = whole(dataset)
    return dataset.columns if isinstance(dataset, ArrayDataset) else None


def aligned(dataset: Any, known: tuple[str, ...] | None, name: str) -> Any:
    """A data set with its columns in the order that the model knows; what has no names stays as it is."""
    found = columns_of(dataset)
    if known is None or found is None or found == known:
        return dataset
    if set(found) != set(known):
        lacking, others = [c for c in known if c not in found], [c for c in found if c not in known]
        has = [f"has {enumerated(others)} besides"] * bool(others) + [f"lacks {enumerated(lacking)}"] * bool(lacking)
        msg = (
            f"`{name}` has other columns than the model is trained on: it {' and '.join(has)}. Pass the columns "
            f"{enumerated(known)}, in any order; name those that are no inputs with `targets`, `groups`, "
            "`sample_weight` or `ids`; encode categories of all tables together."
        )
        raise DataError(msg)
    if isinstance(dataset, Subset):
        return Subset(aligned(dataset.dataset, known, name), dataset.indices)
    return dataset.in_order([found.index(column) for column in known])


# ---------------------------------------------------------------- data sets as users give them


def as_dataset(dataset: Any, name: str, dtype: type[np.floating[Any]] | None = None) -> Any:
    """Turn arrays, tables and pairs ``(x, y)`` of them into a data set; refuse what is no map-style data set."""
    several, named = isinstance(dataset, (tuple, list)) and _are_columns(dataset), isinstance(dataset, Mapping)
    if several and len(dataset) == 2:
        dataset = ArrayDataset(*dataset, dtype=None if isinstance(dataset[0], Tensor) else dtype, name=name)
    elif isinstance(dataset, np.ndarray) or (not isinstance(dataset, Dataset) and _has(dataset, "to_numpy", "tocsr")):
        dataset = ArrayDataset(dataset, None, dtype=dtype, name=name)
    elif several or (named and 0 not in dataset) or not (_has(dataset, "__len__") and _has(dataset, "__getitem__")):
        held = f" of {len(dataset)} arrays" if several else f" with {enumerated(list(dataset))}" if named else ""
        msg = (
            f"Expected `{name}` to be a map-style data set (`__len__` and `__getitem__`) or a pair (x, y), but got a "
            f"{type(dataset).__name__}{held}. Several inputs are a `TensorDataset`; only `negatives` may be a stream."
        )
        raise DataError(msg)
    if len(dataset) == 0:
        msg = f"Expected `{name}` to have examples, but got 0. Pass None where there is no data."
        raise DataError(msg)
    check_positions(dataset, name)
    return dataset


def _are_columns(arrays: Any) -> bool:
    """Whether entries are whole arrays and not items: a tuple of two, or a matrix and a vector of labels."""
    if isinstance(arrays, tuple) and len(arrays) == 2:
        return isinstance(arrays[0], (Tensor, list)) or _has(arrays[0], "__array__", "to_numpy", "tocsr")
    shapes: list[Any] = [getattr(array, "shape", ()) for array in (*arrays[:1], *arrays[-1:])]
    return len(arrays) > 1 and len(shapes[0]) > 1 and len(shapes[1]) == 1 and shapes[0][0] == shapes[1][0]


def _has(x: Any, *names: str) -> bool:
    return any(hasattr(x, name) for name in names)


def unaugmented(dataset: Any) -> Any:
    """The attribute ``without_augmentation`` of a data set, also inside subsets; without it, the data set itself."""
    if isinstance(dataset, Subset):
        inner = unaugmented(dataset.dataset)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    return getattr(dataset, "without_augmentation", dataset)


# ---------------------------------------------------------------- what is an input


class Entries(NamedTuple):
    """Which entries of an item are no inputs of the model.

    Attributes:
        label: keys that hold the label; ``None``: the usual places, see :data:`~lightning_tpauc.data.labels.NAMES`.
        others: keys that say something else of an example: its group, its weight or its id.
        labelled: whether tuples end with a label.
        known: keys of the mappings that the model was trained on; ``None`` if they are unknown.
    """

    label: tuple[str, ...] | None = None
    others: frozenset[str] = frozenset()
    labelled: bool = True
    known: tuple[str, ...] | None = None

    @property
    def named(self) -> frozenset[str]:
        """Keys that are no inputs."""
        return self.others.union(NAMES if self.label is None else self.label)

    def inputs_of(self, item: Any) -> Any:
        """The inputs in an item or in collated items: a tuple loses its label, a mapping or graph what is named."""
        if isinstance(item, (tuple, list)) and len(item):
            item = item[0] if len(item) == 1 else without_label(item) if self.labelled else tuple(item)
        item = without(item, self.named)
        if self.known is None or not isinstance(item, Mapping):
            return item
        lacking = [key for key in self.known if key not in item]
        if lacking:
            msg = f"The model was trained on items with {enumerated(self.known)}, but these lack {enumerated(lacking)}."
            raise DataError(msg)
        return without(item, {*item} - {*self.known})


def without(inputs: Any, keys: Iterable[str]) -> Any:
    """A mapping without some keys, or a graph of PyG without some attributes; anything else as it is."""
    if isinstance(inputs, Mapping):
        dropped = [key for key in inputs if key in keys]
    elif is_graph(inputs):
        dropped = [key for key in keys if getattr(inputs, key, None) is not None]
    else:
        return inputs
    kept: Any = copy.copy(inputs) if dropped else inputs
    for key in dropped:
        (delattr if is_graph(kept) else delitem)(kept, key)
    return kept


def without_label(entries: Any) -> Any:
    """The inputs of entries that end with the label: ``(a, b, y)`` gives ``(a, b)``, and ``(a, y)`` gives a."""
    return entries[0] if len(entries) == 2 else tuple(entries[:-1])


def layout(inputs: Any, columns: tuple[str, ...] | None = None) -> Any:
    """What inputs consist of, for a checkpoint: ``{"columns": ["age"]}``, ``["tensor", {"keys": ["mask"]}]``."""
    if isinstance(inputs, Mapping):
        return {"keys": list(map(str, inputs))}
    if isinstance(inputs, (str, tuple, list)):
        return "words" if all(isinstance(e, str) for e in inputs) else [layout(e) for e in inputs]
    if isinstance(inputs, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return "tensor" if columns is None else {"columns": list(columns)}  # Numbers are collated to tensors.
    return type(inputs).__name__.removesuffix("Batch")  # PyG collates Data to a DataBatch.


def names_in(known: Any, kind: str) -> tuple[str, ...] | None:
    """The names of ``"columns"`` or ``"keys"`` in a :func:`layout`; ``None`` if it has none."""
    return tuple(known[kind]) if isinstance(known, Mapping) and kind in known else None


def learnt_layout(known: Any, inputs: Any, columns: tuple[str, ...] | None) -> Any:
    """The :func:`layout` of a batch to train on; the names of columns, and an order of keys, stay as they are known."""
    found = layout(inputs, columns)
    keys = names_in(found, "keys")
    same_keys = keys is not None and set(keys) == set(names_in(known, "keys") or ())
    return known if same_keys or (found == "tensor" and names_in(known, "columns")) else found


def has_label(entries: Any, known: Any) -> bool | None:
    """Whether the last of several entries is a label, by the inputs that the model knows; ``None`` if it is unknown."""
    if known is None:
        return None
    if len(entries) > 1 and _kinds(layout(without_label(entries))) == _kinds(known):
        return True
    return False if _kinds(layout(entries if len(entries) > 1 else entries[0])) == _kinds(known) else None


def _kinds(known: Any) -> Any:
    if isinstance(known, list):
        return [_kinds(entry) for entry in known]
    return known if not isinstance(known, Mapping) else "tensor" if "columns" in known else "mapping"


# ---------------------------------------------------------------- fetching rows


def fetcher_for(dataset: Any, seed: int = 0, collate_fn: Any = None, entries: Entries | None = None) -> Fetcher:
    """Loads the inputs of a batch: by one index of arrays, else by ``__getitems__``, else item by item, each seeded."""
    entries = entries or Entries()
    inner: Any = dataset
    indices: Indices | None = None
    arrays: list[RowsDataset] | None = None
    while isinstance(inner, Subset):
        rows = as_positions(inner.indices, len(inner.dataset))  # type: ignore[arg-type]  # those of torch have one
        indices, inner = rows if indices is None else rows[indices], inner.dataset
    if isinstance(inner, RowsDataset):
        arrays = [inner]
    elif isinstance(inner, (Tensor, np.ndarray)):
        arrays = [ArrayDataset(inner, None)]
    elif isinstance(inner, TensorDataset):
        ends = entries.labelled and len(inner.tensors) > 1
        arrays = [ArrayDataset(tensor, None) for tensor in (inner.tensors[:-1] if ends else inner.tensors)]
    if arrays is None or collate_fn is not None:
        return _FetchItems(dataset, seed, collate_fn, entries)
    return _FetchArrays(arrays, indices, entries)


class _FetchArrays:
    """Fetches rows of one array, or a tuple of rows of several arrays."""

    def __init__(self, arrays: Sequence[RowsDataset], indices: Indices | None, entries: Entries) -> None:
        self.arrays, self.indices = arrays, indices
        self.named = entries.others.union(entries.label or ())  # `rows` has left out labels in the usual places

    def __call__(self, rows: Indices, step: int) -> Any:  # noqa: ARG002  # one signature for all fetchers
        rows = rows if self.indices is None else self.indices[rows]
        found = [array.rows(rows) for array in self.arrays]
        return without(found[0], self.named) if len(found) == 1 else tuple(found)


class _FetchItems:
    def __init__(self, dataset: Any, seed: int, collate_fn: Any, entries: Entries) -> None:
        self.dataset, self.seed, self.collate_fn, self.entries = dataset, seed, collate_fn, entries
        self.reader = ItemReader(seed)
        self.reads_batches = hasattr(whole(dataset), "__getitems__")  # a Subset has the method in any case

    def __call__(self, rows: Indices, step: int) -> Any:
        items = self.items(rows.tolist(), step)
        if self.collate_fn is None:
            return collate_items([self.entries.inputs_of(item) for item in items])
        return self.collated(items, step, rows)

    def beside(self, rows: Indices | None, step: int, others: list[Any]) -> Any:
        """A batch of some rows, followed by examples of a stream of negatives."""
        if any(isinstance(other, Mapping) and same_numbers(entry_of(other, self.entries.label), 1) for other in others):
            msg = "The stream of negatives yields an example whose label is 1. Leave positives out of the stream."
            raise DataError(msg)
        items = [] if rows is None else self.items(rows.tolist(), step)
        if self.collate_fn is None:
            others = [without(other, self.entries.named) for other in others]
            return collate_items([self.entries.inputs_of(item) for item in items] + others)
        if self.entries.labelled and isinstance((items or self.items([0], 0))[0], (tuple, list)):
            others = [(*other, 0) if isinstance(other, (tuple, list)) else (other, 0) for other in others]
        return self.collated(items + others, step, rows)

    def items(self, rows: list[int], step: int) -> list[Any]:
        if not self.reads_batches:
            return self.reader.read(self.dataset.__getitem__, rows, step)
        with seeded_items(self.seed, step) as reseed:
            reseed(rows[0])
            return list(self.dataset.__getitems__(rows))

    def collated(self, items: list[Any], step: int, rows: Indices | None) -> Any:
        """Call the user's ``collate_fn``. Random numbers that it draws depend on the step and the rows alone."""
        with seeded_items(self.seed, step) as reseed:
            reseed(-1 if rows is None else -1 - int(rows[0]))
            batch = self.collate_fn(items)
        labels = [entry_of(item, self.entries.label) if self.entries.labelled else NOTHING for item in items]
        labelled = not any(label is NOTHING for label in labels)
        keys: Any = items[0] if isinstance(items[0], Mapping) else ()
        left_out = self.entries.named.union(name for name in NAMES if name not in keys)
        is_tuple, right = type(batch) in (tuple, list), True
        if labelled and is_tuple:
            right = len(batch) > 1 and same_numbers(batch[-1], labels)
        elif labelled and isinstance(batch, Mapping):
            own = [numbers_of(batch[key]) for key in batch if key in left_out - self.entries.others]
            right = all(same_numbers(entry, labels) for entry in own if len(entry) == len(labels))
        if is_tuple and right:
            batch = without_label(batch) if labelled else batch[0] if len(batch) == 1 else tuple(batch)
        batch = without(batch, left_out)
        parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
        shapes = [tuple(part.shape[:2]) for part in parts if isinstance(part, Tensor) and part.ndim]
        # Some batches have the examples on their second axis.
        complete = not shapes or len(parts) == len(items) or any(len(items) in shape for shape in shapes)
        if not right or not complete:
            msg = (
                f"Expected `collate_fn` to return all {len(items)} items in their order, a tuple as (inputs, labels), "
                f"but {'the number of examples differs' if right else 'it does not hold the labels of the items'}. "
                "Leave items out before, for instance with torch.utils.data.Subset."
            )
            raise DataError(msg)
        return batch


# ---------------------------------------------------------------- collated inputs


def collate_items(items: list[Any]) -> Any:
    """Collate items without labels. Items of several inputs, tuples or lists, give a tuple."""
    first = items[0]
    parts = first.values() if isinstance(first, dict) else first if isinstance(first, (tuple, list)) else (first,)
    try:
        if any(map(is_graph, parts)):
            collated = import_extra("torch_geometric.loader.dataloader", "graph").Collater(items)(items)
        else:
            collated = default_collate(items)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        msg = (
            f"Items of type {type(first).__name__} can't be put into one batch ({str(error).splitlines()[0]}). Pass a "
            "`collate_fn` that can. A stream of negatives yields what `train_dataset` has as inputs."
        )
        raise DataError(msg) from error
    # torch and PyG collate tuples into a list. Arrays give a tuple, and the model should see no difference.
    return tuple(collated) if isinstance(collated, list) and isinstance(first, (tuple, list)) else collated


def collate_with_rows(fetch: Fetcher | None, rows: Indices | None, step: int, others: list[Any]) -> Any:
    """Collate the inputs of some rows, or of none, followed by others, as ``fetch`` does; ``None`` stacks them."""
    if isinstance(fetch, _FetchItems):
        return fetch.beside(rows, step, others)
    if fetch is None or rows is None:
        return collate_items(others)
    together = fetch(rows, step)
    return collate_items([_of_each(together, itemgetter(k)) for k in range(len(rows))] + others)


def _of_each(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """Collated inputs with a function applied to all tensors and arrays in them."""
    if isinstance(inputs, Mapping):
        return {key: _of_each(value, change) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(_of_each(value, change) for value in inputs)
    return change(inputs) if isinstance(inputs, (Tensor, np.ndarray)) else inputs
