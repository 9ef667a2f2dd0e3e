"""Sets of examples: what users give, how rows are fetched, and what inputs look like."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from lightning_tpauc.data.labels import (
    as_array,
    as_positions,
    binary_labels,
    check_positions,
    find_targets,
    item_label,
    label_names,
    labels_of_items,
    stored_targets,
)
from lightning_tpauc.data.seeding import seeded_items
from lightning_tpauc.errors import DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra


def take_columns(
    datasets: Datasets, groups: Any, sample_weight: Any, targets: Any = None, ids: Any = None
) -> tuple[Datasets, Any, Any, Any, Any]:
    """Take out of all tables the columns that arguments name, so that they do not become inputs of the model.

    Args:
        datasets: as users give them.
        groups: the argument: an array, a name, which need not be that of a column, or ``None``.
        sample_weight: the argument.
        targets: the argument. A table that has the column of this name, or the columns of a list of names, becomes a
            pair of inputs and labels, but for a table to predict on.
        ids: the argument.

    Returns:
        The data sets without these columns, then the four arguments. ``groups`` and ``sample_weight`` become the
        training set's column if they were its name. ``targets`` becomes ``None`` if the training set was such a table.
        ``ids`` becomes the column of the data to predict on, or their index if it has that name; without ``ids`` the
        index is taken unless it just counts the rows.

    Example:
        >>> take_columns(Datasets(train=(np.zeros((2, 3)), [0, 1])), "patient", None)[1:]  # an array has no columns
        ('patient', None, None, None)
    """
    datasets, targets = _take_labels(datasets, targets)
    names = {given for given in (groups, sample_weight, ids) if isinstance(given, str)}
    taken: dict[str, dict[Any, Any]] = {}
    rest: dict[str, Any] = {}
    for part, dataset in datasets._asdict().items():
        table = _inputs_of(dataset)
        known = _columns(table)
        own = [name for name in known if name in names]
        if own:
            taken[part] = {name: table[name].to_numpy() for name in own}
            kept = table[[name for name in known if name not in names]]
            rest[part] = kept if table is dataset else (kept, dataset[1])
    found = taken.get("train", {})
    groups, sample_weight = (found.get(v, v) if isinstance(v, str) else v for v in (groups, sample_weight))
    found_ids = taken.get("predict", {}).get(ids) if isinstance(ids, str) else None
    ids = _index_or(ids, _inputs_of(datasets.predict)) if found_ids is None else found_ids
    return datasets._replace(**rest), groups, sample_weight, targets, ids


def _inputs_of(dataset: Any) -> Any:
    return dataset[0] if isinstance(dataset, (tuple, list)) and len(dataset) == 2 else dataset


def _index_or(ids: Any, table: Any) -> Any:
    """The index of a table if ``ids`` names it, or if there are no ``ids`` and it does not just count; else ``ids``."""
    index: Any = getattr(table, "index", None)
    if not hasattr(index, "equals"):  # a list has a method of this name
        return ids
    labels = index.to_numpy()
    if ids is None:
        return None if np.array_equal(labels, np.arange(len(labels))) else labels
    return labels if isinstance(ids, str) and index.name == ids else ids


def _columns(table: Any) -> list[Any]:
    return list(table.columns) if hasattr(table, "columns") and hasattr(table, "to_numpy") else []


def _take_labels(datasets: Datasets, targets: Any) -> tuple[Datasets, Any]:
    """Tables with the columns of labels that ``targets`` names, as pairs of inputs and labels."""
    several = isinstance(targets, (list, tuple)) and all(isinstance(name, str) for name in targets)
    names = list(targets) if several else [targets] if isinstance(targets, str) else []
    made: dict[str, Any] = {}
    for part, table in datasets._asdict().items():
        known = _columns(table)
        absent = [name for name in names if name not in known]
        if known and absent and part in ("train", "val", "test"):
            msg = (
                f"`targets={targets!r}` names columns of labels, but `{part}_dataset` has no {absent[0]!r}: it has "
                f"{enumerated(known)}."
            )
            raise DataError(msg)
        if names and known and not absent:
            inputs = table[[name for name in known if name not in names]]
            made[part] = inputs if part == "predict" else (inputs, table[list(targets) if several else targets])
    return datasets._replace(**made), None if "train" in made else targets


def join_inputs(parts: Sequence[Any]) -> Any:
    """Concatenate collated inputs along the examples.

    Args:
        parts: tensors, or tuples, lists or mappings of these, all of one structure.

    Raises:
        DataError: if structures or shapes differ, or something else than tensors is in them.

    Example:
        >>> join_inputs([torch.zeros(1, 2), torch.ones(2, 2)]).shape
        torch.Size([3, 2])
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    try:
        if isinstance(first, Tensor):
            return torch.cat(list(parts))
        if isinstance(first, Mapping):
            if {frozenset(part) for part in parts} != {frozenset(first)}:
                raise inputs_differ(parts)
            return {key: join_inputs([part[key] for part in parts]) for key in first}
        if isinstance(first, (tuple, list)):
            joined = [join_inputs(entries) for entries in zip(*parts, strict=True)]
            return tuple(joined) if isinstance(first, tuple) else joined
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise inputs_differ(parts) from error
    raise inputs_differ(parts)


def cut_inputs(inputs: Any, part: slice | int) -> Any:
    """A slice of the examples, or one example.

    Example:
        >>> cut_inputs({"x": torch.arange(4)}, slice(1, 3))
        {'x': tensor([1, 2])}
    """
    return _mapped(inputs, lambda tensor: tensor[part])


def as_tensors(inputs: Any) -> Any:
    """Turn arrays into tensors that share their memory.

    Example:
        >>> as_tensors((np.arange(2), torch.zeros(2)))
        (tensor([0, 1]), tensor([0., 0.]))
    """
    return _mapped(inputs, torch.as_tensor)


def num_examples(inputs: Any) -> int:
    """Length of the first axis.

    Raises:
        DataError: if the inputs are not tensors or arrays with a first axis.

    Example:
        >>> num_examples((torch.zeros(3, 2), torch.zeros(3)))
        3
    """
    while isinstance(inputs, (Mapping, tuple, list)) and len(inputs):
        inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs))
    if not isinstance(inputs, (Tensor, np.ndarray)) or inputs.ndim == 0:
        raise _no_block(inputs)
    return len(inputs)


def _mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _mapped(value, change) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(_mapped(value, change) for value in inputs)
    if isinstance(inputs, (Tensor, np.ndarray)):
        return change(inputs)
    raise _no_block(inputs)


def _no_block(inputs: Any) -> DataError:
    return DataError(
        f"Expected a block of negatives to be a tensor, an array, or a tuple or mapping of these, but got "
        f"{_described(inputs)}. Yield single examples and leave out `blocks=True`."
    )


def inputs_differ(parts: Sequence[Any]) -> DataError:
    """The error for inputs of positives and negatives that can't be put into one batch.

    Example:
        >>> str(inputs_differ([torch.zeros(2), (1, 2, 3)])).split("but got ")[1][:51]
        'a float32 tensor of shape (2,) and a tuple of 3. Le'
    """
    shown = " and ".join(dict.fromkeys(_described(part) for part in parts))
    return DataError(
        f"Expected the inputs of positives and negatives to be of one kind, but got {shown}. Let the stream of "
        "negatives yield what `train_dataset` has as inputs."
    )


def _described(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"a {str(inputs.dtype).removeprefix('torch.')} tensor of shape {tuple(inputs.shape)}"
    if isinstance(inputs, Mapping):
        return f"a mapping with {sorted(map(str, inputs))}"
    if isinstance(inputs, (tuple, list)):
        return f"a tuple of {len(inputs)}"
    return f"a {type(inputs).__name__}"


def layout(inputs: Any) -> Any:
    """The kinds of collated inputs, as a string or a list of strings, which a checkpoint can hold.

    Example:
        >>> import torch
        >>> layout((torch.zeros(2, 3), {"age": torch.zeros(2)}, ["a", "b"]))
        ['tensor', 'mapping', 'words']
    """
    if isinstance(inputs, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return "tensor"  # Numbers are collated to tensors.
    if isinstance(inputs, Mapping):
        return "mapping"
    if isinstance(inputs, str):
        return "words"
    if isinstance(inputs, (tuple, list)):
        return "words" if inputs and all(isinstance(entry, str) for entry in inputs) else [layout(e) for e in inputs]
    return type(inputs).__name__.removesuffix("Batch")  # PyG collates Data to a DataBatch.


def without_label(entries: Any) -> Any:
    """The inputs of an item or batch that ends with the label: ``(a, b, y)`` gives ``(a, b)``, and ``(a, y)`` gives a.

    Example:
        >>> without_label([1, 2, 0]), without_label([1, 0])
        ((1, 2), 1)
    """
    return entries[0] if len(entries) == 2 else tuple(entries[:-1])


def has_label(entries: Any, known: Any) -> bool | None:
    """Whether the last of several entries is a label; ``None`` if it is unknown.

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


class EvaluatedPart(NamedTuple):
    """Rows of a data set to evaluate, and their labels.

    Attributes:
        dataset: map-style data set.
        rows: int64 array ``(n,)``.
        labels: int8 array ``(n,)`` of 0 and 1, ``(n, K)`` with several tasks; -1 where unknown.
        label_names: names of several tasks, where the labels have them.
    """

    dataset: Any
    rows: NDArray[np.int64]
    labels: NDArray[np.int8]
    label_names: tuple[str, ...] | None = None

    @property
    def num_labels(self) -> int | None:
        """Number of tasks; ``None`` with one."""
        return self.labels.shape[1] if self.labels.ndim == 2 else None


def as_dataset(dataset: Any, name: str, dtype: type[np.floating[Any]] | None = None) -> Any:
    """Turn arrays and pairs ``(x, y)`` of them into a data set; refuse what is no map-style data set.

    Args:
        dataset: the user's data set; ``None`` stays ``None``.
        name: name of the argument in messages.
        dtype: dtype of fetched floats of numpy, pandas and scipy; ``None`` leaves it as it is.

    Raises:
        DataError: if it is not a map-style data set, is empty, or is a subset with a mask as indices.

    Example:
        >>> type(as_dataset((np.zeros((2, 3)), [0, 1]), "train_dataset")).__name__
        'ArrayDataset'
    """
    if dataset is None:
        return None
    dataset = _from_arrays(dataset, name, dtype)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        msg = (
            f"Expected `{name}` to be a map-style data set (`__len__` and `__getitem__`), but got a "
            f"{type(dataset).__name__}. Sampling by class needs access by row; only `negatives` may be a stream."
        )
        raise DataError(msg)
    if len(dataset) == 0:
        msg = f"Expected `{name}` to have examples, but got 0. Pass None where there is no data."
        raise DataError(msg)
    check_positions(dataset, name)
    return dataset


def _from_arrays(dataset: Any, name: str, dtype: type[np.floating[Any]] | None) -> Any:
    if isinstance(dataset, (tuple, list)) and _are_columns(dataset):
        if len(dataset) > 2:
            msg = (
                f"`{name}` is a {type(dataset).__name__} of {len(dataset)} arrays. Pass a data set: "
                "`TensorDataset(*map(torch.as_tensor, arrays))`, whose last array is the label."
            )
            raise DataError(msg)
        features, targets = dataset
        x = as_features(features, name)
        warn_of_another_order(features, targets, name)
        return ArrayDataset(x, targets, dtype=None if isinstance(x, Tensor) else dtype)
    if isinstance(dataset, Mapping) and 0 not in dataset:
        msg = (
            f"`{name}` is a {type(dataset).__name__} with {', '.join(map(repr, list(dataset)[:5]))}, not a data set. "
            "Pass one of its data sets, or a pair of arrays (x, y)."
        )
        raise DataError(msg)
    if _has(dataset, "columns") and _has(dataset, "to_numpy") and name != "predict_dataset":
        msg = (
            f"`{name}` is a {type(dataset).__name__}, and it is unknown which column is the label. Name it, "
            "`targets='label'`, or pass a pair: `(table.drop(columns='label'), table['label'])`."
        )
        raise DataError(msg)
    if isinstance(dataset, np.ndarray) or (not isinstance(dataset, Dataset) and _has(dataset, "to_numpy", "tocsr")):
        return ArrayDataset(as_features(dataset, name), None, dtype=dtype)
    return dataset


def _are_columns(arrays: Any) -> bool:
    """Whether entries are whole arrays and not items: a tuple of two, or a matrix and a vector of labels."""
    entries = list(arrays)
    if isinstance(arrays, tuple) and len(entries) == 2 and _is_array(entries[0]):
        return True
    shapes: list[Any] = [getattr(array, "shape", ()) for array in (*entries[:1], *entries[-1:])]
    return len(entries) > 1 and len(shapes[0]) > 1 and len(shapes[1]) == 1 and shapes[0][0] == shapes[1][0]


def _is_array(x: Any) -> bool:
    return isinstance(x, (Tensor, list)) or _has(x, "__array__", "to_numpy", "tocsr")


def _has(x: Any, *names: str) -> bool:
    return any(hasattr(x, name) for name in names)


def float_dtype(trainer: Trainer | None) -> type[np.floating[Any]] | None:
    """The dtype that floats of numpy are fetched as: numpy's default is float64, most models are float32.

    Returns:
        ``np.float32``, or ``None`` to keep the dtype. Precisions such as ``"64-true"`` convert inputs themselves.
    """
    module = getattr(trainer, "lightning_module", None)
    if trainer is None or module is None or str(trainer.precision) in ("64-true", "16-true", "bf16-true"):
        return None
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
    model_dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    return np.float32 if model_dtype == torch.float32 else None


def evaluated_part(dataset: Any, targets: Any, name: str) -> EvaluatedPart:
    """All rows of a data set to evaluate, with labels.

    Args:
        dataset: map-style data set.
        targets: name under which the data set keeps its labels. Anything else is ignored: arrays of labels belong to
            the training set.
        name: ``"val_dataset"`` or ``"test_dataset"``.

    Example:
        >>> evaluated_part(ArrayDataset(np.zeros((2, 3)), [0, 1]), None, "val_dataset").labels
        array([0, 1], dtype=int8)
    """
    key = targets if isinstance(targets, str) else None
    labels = find_targets(dataset, key, name)
    names = label_names(dataset, key, labels.shape[1]) if labels.ndim == 2 else None
    return EvaluatedPart(dataset, np.arange(len(dataset), dtype=np.int64), labels, names)


def predicted_part(dataset: Any, targets: Any, inputs: Callable[[], Any]) -> EvaluatedPart:
    """All rows of a data set to predict on, with or without labels.

    Args:
        dataset: map-style data set. Tuples as long as those of the training set end with a label, shorter ones do not.
        targets: as in :func:`evaluated_part`.
        inputs: returns the :func:`~lightning_tpauc.data.examples.layout` of the inputs that the model was
            trained on, or ``None``.

    Raises:
        DataError: if nobody knows whether the items' last entry is a label.

    Example:
        >>> part = predicted_part([("some words", 3.0)], None, lambda: ["words", "tensor"])
        >>> part.labels, part.dataset[0]
        (array([-1], dtype=int8), (('some words', 3.0),))
    """
    rows, unknown = np.arange(len(dataset), dtype=np.int64), np.full(len(dataset), -1, dtype=np.int8)
    if not isinstance(dataset, (Tensor, RowsDataset)):
        with seeded_items(0, 0):
            item = dataset[0]
        if isinstance(item, (tuple, list)) and len(item) > 1:
            labelled = has_label(item, inputs())
            if labelled is None and not (len(item) == 2 and np.size(as_array(item[1])) == 1):
                msg = (
                    f"Nobody knows whether the last of the {len(item)} entries of the items of `predict_dataset` is a "
                    "label: pass `train_dataset`, too, or predict with a module that was trained or loaded from a "
                    "checkpoint; or let the items be `((a, b), label)`."
                )
                raise DataError(msg)
            if labelled is False:
                return EvaluatedPart(_inputs_alone(dataset), rows, unknown)
    stored = stored_targets(dataset, targets if isinstance(targets, str) else None)
    try:
        return EvaluatedPart(dataset, rows, unknown if stored is None else binary_labels(stored, "predict_dataset"))
    except DataError:  # placeholders, such as nan or zeros of another shape
        return EvaluatedPart(dataset, rows, unknown)


def _inputs_alone(dataset: Any) -> Any:
    if isinstance(dataset, TensorDataset):
        # The empty last tensor stands for the label, so that the others are fetched at once.
        return TensorDataset(*dataset.tensors, torch.empty(len(dataset), 0))
    return InputsAlone(dataset)


class InputsAlone(Dataset[Any]):
    """A data set of unlabelled tuples, for readers that take the last entry of a tuple for its label.

    Example:
        >>> InputsAlone([(1, 2)])[0]
        ((1, 2),)
    """

    def __init__(self, dataset: Any) -> None:
        self.items = dataset

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> tuple[Any]:
        return (tuple(self.items[row]),)


def training_layout(dataset: Any) -> Any:
    """The :func:`~lightning_tpauc.data.examples.layout` of the inputs of a training set, from its first item.

    Example:
        >>> training_layout([("some words", 3.0, 1)])
        ['words', 'tensor']
    """
    if isinstance(dataset, (Tensor, RowsDataset)):
        return "tensor"
    with seeded_items(0, 0):
        item = dataset[0]
    return layout(without_label(item) if isinstance(item, (tuple, list)) and len(item) > 1 else item)


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
