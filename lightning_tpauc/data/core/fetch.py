"""Fetches rows of a data set and collates their inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from lightning_tpauc.data.core.arrays import ArrayDataset, RowsDataset
from lightning_tpauc.data.core.subset_indices import as_positions
from lightning_tpauc.data.core.targets import as_array, labels_of_items
from lightning_tpauc.data.core.tree_utils import inputs_differ, join_inputs, layout, without_label
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra

Indices = NDArray[np.int64]
#: ``fetch(rows, step) -> inputs``.
Fetcher = Callable[[Indices, int], Any]
#: Collates items and returns their inputs.
Collate = Callable[[list[Any]], Any]


def fetcher_for(dataset: Any, seed: int = 0, collate: Collate | None = None) -> Fetcher:
    """The quickest way to load a batch of a data set.

    Tensors, arrays, :class:`~torch.utils.data.TensorDataset` and any :class:`~lightning_tpauc.data.RowsDataset` (also
    inside a :class:`~torch.utils.data.Subset`) are indexed once per batch. Other data sets are read by their
    ``__getitems__`` if they have one, else item by item. The random generators are then seeded as
    :func:`~lightning_tpauc.data.seeding.seeded_items` says: once per batch for ``__getitems__``, else per item.

    Args:
        dataset: map-style data set. The last entry of items that are tuples is the label and is left out. Other items
            are kept whole: inputs, mappings, PyG graphs.
        seed: seed of the augmentations.
        collate: collates items, as :func:`collate_by` does. Items are then read one by one. ``None`` stacks them.

    Returns:
        A function of (rows, step) that returns the collated inputs; picklable.

    Example:
        >>> import torch
        >>> fetch = fetcher_for(TensorDataset(torch.arange(4.0), torch.tensor([0, 1, 0, 1])))
        >>> fetch(np.array([3, 1]), 0)
        tensor([3., 1.])
    """
    if collate is not None:
        return _FetchItems(dataset, seed, collate)
    if isinstance(dataset, Subset):
        inner = fetcher_for(dataset.dataset, seed)
        if not isinstance(inner, _FetchItems):
            return _FetchSubset(inner, as_positions(dataset.indices, len(dataset.dataset)))  # type: ignore[arg-type]
    if isinstance(dataset, RowsDataset):
        return _FetchArrays([dataset])
    if isinstance(dataset, (Tensor, np.ndarray)):
        return _FetchArrays([ArrayDataset(dataset, dataset)])
    if isinstance(dataset, TensorDataset):
        tensors = dataset.tensors[:-1] or dataset.tensors
        return _FetchArrays([ArrayDataset(tensor, tensor) for tensor in tensors])
    return _FetchItems(dataset, seed)


def unaugmented(dataset: Any) -> Any:
    """The data set without its random augmentations, for evaluation and scoring.

    This is its attribute ``without_augmentation``, a data set with the same rows. Without that attribute, it is the
    data set itself. A :class:`~torch.utils.data.Subset` of such a data set becomes a subset of the attribute.
    """
    if isinstance(dataset, Subset):
        inner = unaugmented(dataset.dataset)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    return getattr(dataset, "without_augmentation", dataset)


def is_random(dataset: Any, rows: Indices) -> bool:
    """Whether a few items differ when they are read twice.

    Example:
        >>> import torch
        >>> is_random(torch.zeros(5), np.arange(4))
        False
    """
    fetch = fetcher_for(dataset)
    return isinstance(fetch, _FetchItems) and not _equal(*(fetch.items(rows.tolist(), step) for step in (0, 1)))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return first.shape == second.shape and bool(((first == second) | (first.isnan() & second.isnan())).all())
    if isinstance(first, Mapping):
        return all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(_equal, first, second))
    if isinstance(first, (np.ndarray, np.generic, int, float)):
        return np.array_equal(first, second, equal_nan=np.asarray(first).dtype.kind == "f")
    return True  # Objects of unknown types are taken as equal.


class _FetchArrays:
    """Fetches rows of one array, or a tuple of rows of several arrays."""

    def __init__(self, arrays: Sequence[RowsDataset]) -> None:
        self.arrays = arrays

    def __call__(self, rows: Indices, step: int) -> Any:  # noqa: ARG002  # one signature for all fetchers
        if len(self.arrays) == 1:
            return self.arrays[0].rows(rows)
        return tuple(array.rows(rows) for array in self.arrays)


class _FetchSubset:
    def __init__(self, fetch: Fetcher, indices: Indices) -> None:
        self.fetch = fetch
        self.indices = indices

    def __call__(self, rows: Indices, step: int) -> Any:
        return self.fetch(self.indices[rows], step)


class _FetchItems:
    def __init__(self, dataset: Any, seed: int, collate: Collate | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.collate = collate

    def __call__(self, rows: Indices, step: int) -> Any:
        items = self.items(rows.tolist(), step)
        return collate_inputs(items) if self.collate is None else self.collated(items, step, rows)

    def items(self, rows: list[int], step: int) -> list[Any]:
        with seeded_items(self.seed, step) as reseed:
            if _reads_batches(self.dataset):
                reseed(rows[0])
                return list(self.dataset.__getitems__(rows))
            items = []
            for row in rows:
                reseed(row)
                items.append(self.dataset[row])
            return items

    def collated(self, items: list[Any], step: int, rows: Indices | None) -> Any:
        """Call the user's ``collate_fn``. Random numbers that it draws depend on the step and the rows alone."""
        with seeded_items(self.seed, step) as reseed:
            reseed(-1 if rows is None else -1 - int(rows[0]))
            return cast(Collate, self.collate)(items)

    @cached_property
    def _ends_with_labels(self) -> bool:
        (own,) = self.items([0], 0)
        return isinstance(own, (tuple, list)) and len(own) > 1

    def like_own(self, inputs: list[Any]) -> list[Any]:
        """Inputs of negatives as items of this data set. If its items end with a label, the label 0 is appended."""
        if not self._ends_with_labels:
            return inputs
        return [(*entry, 0) if isinstance(entry, (tuple, list)) else (entry, 0) for entry in inputs]


def _reads_batches(dataset: Any) -> bool:
    # A Subset has the method even if the data set inside has not.
    return _reads_batches(dataset.dataset) if isinstance(dataset, Subset) else hasattr(dataset, "__getitems__")


def collate_inputs(items: list[Any]) -> Any:
    """Collate the inputs of items and leave their labels out.

    Args:
        items: items of the data set, all of one kind. The last entry of a tuple is the label: ``(x, y)`` gives x, and
            ``(a, b, y)`` gives ``(a, b)``. Other items are kept whole: mappings become a mapping of collated values,
            PyG graphs a ``Batch``.

    Example:
        >>> import torch
        >>> collate_inputs([(torch.zeros(2), 1), (torch.ones(2), 0)])
        tensor([[0., 0.],
                [1., 1.]])
    """
    return collate_items(_without_labels(items))


def collate_by(collate_fn: Callable[[list[Any]], Any], key: str | None, items: list[Any]) -> Any:
    """The inputs in a batch that a ``collate_fn`` makes of items.

    Args:
        collate_fn: as for a ``DataLoader``.
        key: name of the items' label; ``None`` searches the usual places.
        items: items of the data set. If they have labels and the batch is a tuple or list, the batch must end with the
            labels, which are left out. Everything else is inputs.

    Raises:
        DataError: if the batch does not end with the labels.

    Example:
        >>> collate_by(lambda items: ([x for x, _ in items], [y for _, y in items]), None, [("some", 0), ("words", 1)])
        ['some', 'words']
    """
    items, labels = _items_and_labels(items, key)
    batch = collate_fn(items)
    if type(batch) not in (tuple, list):
        return batch
    if labels is None:
        return batch[0] if len(batch) == 1 else tuple(batch)
    if len(batch) < 2 or not _holds(batch[-1], labels):
        msg = (
            f"Expected `collate_fn` to return (inputs, labels) for items with labels, but the last of {len(batch)} "
            f"entries does not hold the {len(labels)} labels. Let it end with them, or return a mapping."
        )
        raise DataError(msg)
    return without_label(batch)


def _items_and_labels(items: list[Any], key: str | None) -> tuple[list[Any], list[Any] | None]:
    """Items as the data set returns them, and their labels. Undoes what ``predicted_part`` did to unlabelled ones."""
    first = items[0]
    if isinstance(first, tuple) and len(first) == 1 and isinstance(first[0], tuple):
        return [item[0] for item in items], None
    if isinstance(first, tuple) and isinstance(first[-1], Tensor) and first[-1].shape == (0,):
        return [item[:-1] for item in items], None
    return items, labels_of_items(items, key)


def _holds(entry: Any, labels: list[Any]) -> bool:
    try:
        found, expected = (as_array(values).reshape(-1).astype(np.float64) for values in (entry, labels))
    except (DataError, TypeError, ValueError):
        return False
    return np.array_equal(found, expected, equal_nan=True)


def collate_items(items: list[Any]) -> Any:
    """Collate items without labels. Items of several inputs, tuples or lists, give a tuple.

    Raises:
        DataError: if they can't be stacked.

    Example:
        >>> collate_items([1.5, 2.5])
        tensor([1.5000, 2.5000], dtype=torch.float64)
    """
    try:
        return _stacked(items)
    except (RuntimeError, TypeError) as error:
        msg = (
            f"Items of type {type(items[0]).__name__} can't be put into one batch ({str(error).splitlines()[0]}). Pass "
            "a `collate_fn` that can, as to a DataLoader: it may pad items that differ in size."
        )
        raise DataError(msg) from error


def _stacked(items: list[Any]) -> Any:
    if _holds_graphs(items[0]):
        collated = import_extra("torch_geometric.loader.dataloader", "graph").Collater(items)(items)
    else:
        collated = default_collate(items)
    # torch and PyG collate tuples into a list. Arrays give a tuple, and the model should see no difference.
    several = isinstance(collated, list) and isinstance(items[0], (tuple, list))
    return tuple(collated) if several else collated


def collate_with_rows(fetch: Fetcher | None, rows: Indices | None, step: int, items: list[Any]) -> Any:
    """Collate the inputs of some rows, followed by items of another source.

    Args:
        fetch: a function of :func:`fetcher_for`; ``None`` stacks the items.
        rows: rows of its data set; ``None`` collates the items alone.
        step: global step t.
        items: inputs without labels.

    Raises:
        DataError: if the items and the rows' inputs differ in kind or shape.

    Example:
        >>> import torch
        >>> collate_with_rows(fetcher_for(torch.tensor([1.0, 2.0])), np.array([1]), 0, [torch.tensor(5.0)])
        tensor([2., 5.])
    """
    if isinstance(fetch, _FetchItems) and fetch.collate is not None:
        own = [] if rows is None else fetch.items(rows.tolist(), step)
        try:
            return fetch.collated(own + fetch.like_own(items), step, rows)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if own and layout(_without_labels(own)[0]) != layout(items[0]):
                raise inputs_differ([_without_labels(own)[0], items[0]]) from error
            raise
    if fetch is None or rows is None:
        return collate_items(items)
    if not isinstance(fetch, _FetchItems):
        return join_inputs([fetch(rows, step), collate_items(items)])
    own = _without_labels(fetch.items(rows.tolist(), step))
    try:
        return _stacked(own + items)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise inputs_differ([*own[:1], items[0]]) from error


def _without_labels(items: list[Any]) -> list[Any]:
    first = items[0]
    if isinstance(first, (tuple, list)) and len(first) > 0:  # a single entry is not a label
        return [item[0] if len(item) == 1 else without_label(item) for item in items]
    return items


def _holds_graphs(item: Any) -> bool:
    """Whether PyG has to collate. PyG is not imported here: if nobody has imported it, there are no graphs."""
    module = sys.modules.get("torch_geometric.data.data")
    if module is None:
        return False
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, (tuple, list)) else (item,)
    return any(isinstance(part, module.BaseData) for part in parts)
