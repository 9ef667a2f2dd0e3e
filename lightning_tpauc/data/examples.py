"""Sets of examples: what users give, how rows are fetched, and what the model's inputs look like."""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from lightning_tpauc.data.labels import (
    NAMES,
    NOTHING,
    are_labels,
    as_array,
    check_positions,
    disagreement,
    entry_of,
    find_targets,
    is_table,
    item_label,
    label_keys,
    label_names,
    numbers_of,
    row_values,
    rows_of_both_classes,
    same_numbers,
    scrambled,
    stored_values,
    underlying,
)
from lightning_tpauc.data.seeding import Indices, ItemReader, seeded_items
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra, is_graph
from lightning_tpauc.functional.checks import in_other_order, just_counts

#: A dtype for floats of numpy; ``None`` leaves them as they are.
Float = type[np.floating[Any]] | None
#: ``fetch(rows, step) -> inputs``.
Fetcher = Callable[[Indices, int], Any]
#: An entry of the items that equals the labels in so many of each class is the label.
_CERTAIN = 64
_ARRAYS = (Tensor, np.ndarray)


class Datasets(NamedTuple):
    """The data sets of a run; ``None`` where there is none.

    Attributes:
        train: training set; validation may be split off from it.
        val: validation set of its own.
        test: test set.
        predict: data to predict on; labels are not needed.
        negatives: a stream of training negatives; ``train`` then holds the positives.
        calibration: data to choose thresholds and probabilities on; validation may do both.
    """

    train: Any = None
    val: Any = None
    test: Any = None
    predict: Any = None
    negatives: Any = None
    calibration: Any = None


# ---------------------------------------------------------------- whole batches at once


class ArrayDataset(Dataset[Any]):
    """Rows of one array and their labels. A whole batch is fetched by one indexing call.

    Args:
        features: tensor, numpy array or memory map of shape ``(n, ...)``, a table, or a sparse matrix of scipy of shape
            ``(n, m)``, of any dtype of numbers. Sparse rows become dense when they are fetched.
        targets: tensor, array, sequence or column of a table with n labels, or with n rows of several labels;
            ``None`` if there are none.
        shift: float array that broadcasts against a row. It is subtracted from fetched rows.
        scale: float array that broadcasts against a row. Fetched rows are multiplied by it after the shift. A memory
            map is so standardised without a copy.
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
        self, features: Any, targets: Any, shift: Any = None, scale: Any = None, *, dtype: Float = None, name: str = "x"
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
        self.dtype = None if isinstance(features, Tensor) else dtype
        if self.targets is not None and len(self.targets) != len(self):
            raise DataError(f"Expected one label per row, but got {len(self.targets)} labels for {len(self)} rows.")

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def __getitem__(self, row: int) -> Any:
        x = self.rows(np.array([row]))[0]
        return x if self.targets is None else (x, item_label(self.targets[row]))

    def rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of shape ``(len(rows), ...)``."""
        host = host_view(self.features)
        if host is None:
            device = self.features.device
            found = self.features.index_select(0, torch.from_numpy(rows).to(device))
        elif hasattr(host, "toarray"):
            found = host[rows].toarray()
        else:
            found = host.take(rows, axis=0) if host.flags.c_contiguous else host[rows]
        for change, value in ((operator.sub, self.shift), (operator.mul, self.scale)):
            if value is not None:
                found = change(found, value if host is not None else torch.from_numpy(value).to(device))
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
        return features.detach().numpy()
    except TypeError:  # on a GPU, or a dtype or layout that numpy does not have
        return None


# ---------------------------------------------------------------- tables


def column_names(x: Any, name: str) -> tuple[str, ...] | None:
    """The names of a table's columns as text; ``None`` for what is no table."""
    if not is_table(x):
        return None
    names = tuple(map(str, x.columns))
    if twice := [column for column, times in Counter(names).items() if times > 1]:
        raise DataError(f"`{name}` has more than one column {twice[0]!r}. Rename or drop them.")
    return names


def index_of(x: Any) -> Any:
    """The index of a table or column of pandas; ``None`` for everything else."""
    index = getattr(x, "index", None)
    return index if hasattr(index, "equals") else None  # a list has a method of this name


def check_order(index: Any, other: Any, what: str, name: str) -> None:
    """Raise :class:`DataError` if two columns have one index in two orders, since rows are paired by position."""
    if in_other_order(index, index_of(other)):
        raise DataError(
            f"The inputs and {what} in `{name}` have the same index in different orders, or parts of it. Pass "
            "`y.loc[x.index]` to pair them by the index, `y.to_numpy()` by position."
        )


def as_features(x: Any, name: str = "train_dataset") -> Any:
    """Features in a form that :class:`ArrayDataset` takes; tables become arrays."""
    wrong = ""
    if hasattr(x, "to_numpy"):
        x, wrong = _numbers_of_table(x)
    elif isinstance(x, np.ndarray):
        if x.dtype.kind not in "buifc":
            wrong = f"an array of dtype {x.dtype}. Encode it as numbers"
        elif np.ma.is_masked(x):
            wrong = "masked entries. Fill them, for instance with `x.filled(0)`"
        elif not x.dtype.isnative:  # torch asks for the machine's byte order
            x = x.astype(x.dtype.newbyteorder("="))
    elif not isinstance(x, Tensor) and not hasattr(x, "tocsr"):
        wrong = f"a {type(x).__name__}. Convert it with `torch.tensor(x)`"
    if wrong:
        raise DataError(f"Expected x in `{name}` to be a tensor, array or table of numbers, but got {wrong}.")
    return x


def _numbers_of_table(x: Any) -> tuple[Any, str]:
    """A table or column as an array; and what is none of numbers, and how it becomes some."""
    columns = {str(column): x[column] for column in x.columns} if is_table(x) else {"x": x}
    # as numpy calls them; dtypes of polars have no kind, so their columns are converted
    kinds = {c: getattr(v.dtype, "kind", None) or np.asarray(v.to_numpy()).dtype.kind for c, v in columns.items()}
    if others := [column for column, kind in kinds.items() if kind not in "buif"]:
        dates = "dates become numbers by `(t - t.min()).dt.days`" if {*kinds.values()} & {"M", "m"} else ""
        remedy = dates or "texts by `pd.get_dummies` of all rows together, or scikit-learn's ColumnTransformer"
        names = "or name them as `ids` or `groups`, if that is what they are"
        return x, f"no numbers in {listed(others)}. Encode or drop these columns ({remedy}), {names}"
    array = x.to_numpy()
    if array.dtype.kind == "O":  # columns of several kinds, which all fit into float64
        array = x.to_numpy(dtype=np.float64, na_value=np.nan)
    # a table of whole numbers alone is one of numbers, too; what is looked up by number comes as an array
    return array if array.dtype.kind == "f" else array.astype(np.float64), ""


def listed(names: Iterable[Any]) -> str:
    """Up to twenty names for a sentence, and how many there are besides."""
    names = list(map(str, names))
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def columns_of(dataset: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data set made from a table, also inside subsets; ``None`` for others."""
    inner, _ = underlying(dataset)
    return inner.columns if isinstance(inner, ArrayDataset) else None


def subset(inner: Any, rows: Indices | None) -> Any:
    """The rows of a data set; itself for all of them."""
    return inner if rows is None else Subset(inner, rows.tolist())


def aligned(dataset: Any, known: tuple[str, ...] | None, name: str) -> Any:
    """A data set with its columns in the order that the model knows; what has no names stays as it is."""
    found = columns_of(dataset)
    if known is None or found is None or found == known:
        return dataset
    if set(found) != set(known):
        lacking, others = [c for c in known if c not in found], [c for c in found if c not in known]
        has = [f"has {listed(others)} besides"] * bool(others) + [f"lacks {listed(lacking)}"] * bool(lacking)
        raise DataError(
            f"`{name}` has other columns than the model is trained on: it {' and '.join(has)}. Encode it by "
            "what was fitted to the training table, such as `OneHotEncoder(handle_unknown='ignore')`, and name what is "
            "no input with `targets`, `groups`, `sample_weight` or `ids`."
        )
    inner, rows = underlying(dataset)
    return subset(inner.in_order([found.index(column) for column in known]), rows)


# ---------------------------------------------------------------- data sets as users give them


def as_dataset(dataset: Any, name: str, dtype: Float = None) -> Any:
    """Turn arrays, tables and pairs ``(x, y)`` of them into a data set; refuse what is no map-style data set."""
    several, named = isinstance(dataset, (tuple, list)) and _are_columns(dataset), isinstance(dataset, Mapping)
    items = _has(dataset, "__len__") and _has(dataset, "__getitem__")
    if several and len(dataset) == 2:
        dataset = ArrayDataset(*dataset, dtype=dtype, name=name)
    elif isinstance(dataset, _ARRAYS) or (not isinstance(dataset, Dataset) and _has(dataset, "to_numpy", "tocsr")):
        dataset = ArrayDataset(dataset, None, dtype=dtype, name=name)
    elif several or (named and 0 not in dataset) or isinstance(dataset, str) or not items:
        held = f" of {len(dataset)} arrays" if several else f" with {listed(list(dataset))}" if named else ""
        raise DataError(
            f"Expected `{name}` to be a map-style data set (`__len__` and `__getitem__`) or a pair (x, y), but got a "
            f"{type(dataset).__name__}{held}. Several inputs are a `TensorDataset`, a file is read first, as by "
            "`pd.read_csv`; only `negatives` may be a stream."
        )
    if len(dataset) == 0:
        raise DataError(f"Expected `{name}` to have examples, but got 0. Pass None where there is no data.")
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
    """The attribute ``without_augmentation`` of a data set, or inside subsets; without it, the data set itself."""
    inner, rows = (dataset, None) if hasattr(dataset, "without_augmentation") else underlying(dataset)
    plain = getattr(inner, "without_augmentation", inner)
    if len(plain) != len(inner):
        raise DataError(f"`without_augmentation` has {len(plain)} rows, not the {len(inner)} of its data set.")
    return dataset if plain is inner else subset(plain, rows)


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
            item = _of_tuple(item, labelled=self.labelled)
        if isinstance(item, _ARRAYS):  # nothing in it has a name; most items get no further, each time they are read
            return item
        item = without(item, self.named)
        if self.known is None or not isinstance(item, Mapping):
            return item
        if lacking := [key for key in self.known if key not in item]:
            known = listed(self.known)
            raise DataError(f"The model was trained on items with {known}, but these lack {listed(lacking)}.")
        return without(item, {*item} - {*self.known})


def without(inputs: Any, keys: Iterable[str]) -> Any:
    """A mapping without some keys, or a graph of PyG without some attributes; anything else as it is."""
    is_mapping = isinstance(inputs, Mapping)
    if not is_mapping and not is_graph(inputs):
        return inputs
    dropped = [key for key in keys if (key in inputs if is_mapping else getattr(inputs, key, None) is not None)]
    kept: Any = copy.copy(inputs) if dropped else inputs
    for key in dropped:
        (operator.delitem if is_mapping else delattr)(kept, key)
    return kept


def _of_tuple(entries: Any, *, labelled: bool) -> Any:
    """The inputs in entries that may end with the label: ``(a, b, y)`` gives ``(a, b)``, and ``(a, y)`` gives a."""
    count = len(entries) - 1 if labelled and len(entries) > 1 else len(entries)
    return entries[0] if count == 1 else tuple(entries[:count])


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
    """Whether the last of several entries is a label, by how many inputs the model knows; ``None`` if it is unknown."""
    counts = [_count(layout(_of_tuple(entries, labelled=labelled))) for labelled in (True, False)]
    return None if known is None or _count(known) not in counts else len(entries) > 1 and counts[0] == _count(known)


def _count(known: Any) -> int:
    return len(known) if isinstance(known, list) else 1


def ends_with_label(item: Any, known: Any) -> bool:
    """Whether items to predict on hold a label, by the layout that the model knows, or else by what they look like."""
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        return True
    labelled = has_label(item, known)
    if labelled is None and (len(item) > 2 or np.size(as_array(item[1])) != 1):
        raise DataError(
            f"It is unknown whether the last of the {len(item)} entries of the items of `predict_dataset` is a label: "
            "pass `train_dataset`, too, or predict with a trained module; or let the items be `((a, b), label)`."
        )
    return labelled is not False


# ---------------------------------------------------------------- one data set of a run


class Given(NamedTuple):
    """What the arguments of a data module say of rows: where it is, or the values; see there."""

    targets: Any = None
    groups: Any = None
    sample_weight: Any = None
    ids: Any = None


class Examples:
    """One data set of a run, with its labels and what arguments say of its rows.

    ``known`` are the columns that the model takes, in its order. Ids that come as values belong to this data set; other
    values belong to the training set, and names to all.
    """

    def __init__(self, raw: Any, part: str, given: Given, dtype: Float = None, known: Any = None) -> None:
        self.part, self.name, trains = part, f"{part}_dataset", part == "train"
        holds = {"targets": trains or not are_labels(given.targets), "ids": True}
        said = {a: v if isinstance(v, str) or holds.get(a, trains) else None for a, v in given._asdict().items()}
        #: What is said of the rows of this data set: values, or names under which it or its items hold them.
        self.given = Given(**said)
        x, y = raw if isinstance(raw, (tuple, list)) and len(raw) == 2 else (raw, None)
        if is_table(x):
            x, y = self._without_named_columns(x, y, given)
            raw = x if y is None else (x, y)
        #: The data set, before any transform.
        self.dataset = aligned(as_dataset(raw, self.name, dtype), known, self.name)
        self.index = self.dataset.index if isinstance(self.dataset, ArrayDataset) else None
        keys = label_keys(self.given.targets)
        if isinstance(self.dataset, ArrayDataset) and y is not None and keys:
            called = list(getattr(y, "columns", [getattr(y, "name", None)]))
            if called in ([None], list(keys)):  # a pair has its labels beside it
                self.given = self.given._replace(targets=None)
        #: Which entries of the items are no inputs.
        others = frozenset(value for value in self.given[1:] if isinstance(value, str))
        self.entries = Entries(label_keys(self.given.targets), others)
        for argument, value in self.given._asdict().items():
            check_order(self.index, value, f"`{argument}`", self.name)

    def _without_named_columns(self, table: Any, labels: Any, given: Given) -> tuple[Any, Any]:
        """Inputs and labels of a table; the values of columns that arguments name take the place of the names."""
        column_names(table, self.name)
        taken = {argument: named_columns(value, table) for argument, value in given._asdict().items()}
        inputs = table[[column for column in table.columns if not any(column in names for names in taken.values())]]
        index, values = index_of(table), dict[str, Any]()
        for argument, names in taken.items():
            value = getattr(given, argument)
            if names and argument != "targets" and not hasattr(value, "to_numpy"):
                values[argument] = table[names[0]].to_numpy()
            elif isinstance(value, str) and value == getattr(index, "name", None):
                values[argument] = index
        by_name = bool(taken["targets"]) and not hasattr(given.targets, "to_numpy")
        if self.part == "predict":
            pass
        elif by_name and labels is not None:
            raise DataError(
                f"`targets={given.targets!r}` names columns of the table in `{self.name}`, which is a pair that has "
                "labels already. Pass the table alone, or the pair without `targets`."
            )
        elif by_name:
            labels = table[taken["targets"] if isinstance(given.targets, (list, tuple)) else given.targets]
            values["targets"] = None
        elif labels is None and not are_labels(self.given.targets):
            absent = [repr(key) for key in label_keys(given.targets) or () if key not in table.columns]
            what = f"It is unknown which column of `{self.name}` is the label"
            if absent:
                what = f"`targets={given.targets!r}` names columns of labels, but `{self.name}` has no {absent[0]}"
            raise DataError(f"{what}: name one of {listed(table.columns)}, or pass a pair `(inputs, labels)`.")
        self.given = self.given._replace(**values)
        return inputs, labels

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def labels(self) -> NDArray[np.int8]:
        """Labels, int8 ``(n,)``, or ``(n, K)`` of several. Finding them may take a pass over all items."""
        return find_targets(self.dataset, self.given.targets, self.name)

    @cached_property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels; their numbers where they have none."""
        return None if self.labels.ndim == 1 else label_names(self.dataset, self.given.targets, self.labels.shape[1])

    def contradicted_by_items(self) -> str | None:
        """Where labels that came as values differ from those that the items have; ``None`` if they don't."""
        return disagreement(self.dataset, self.labels, None) if are_labels(self.given.targets) else None

    def contradicted_by(self, plain: Any) -> str | None:
        """Where another data set of the same rows has other labels; ``None`` if it does not."""
        if not are_labels(self.given.targets):
            return disagreement(plain, self.labels, self.given.targets)
        return scrambled(plain, self.labels) if scrambled(self.dataset, self.labels) is None else None

    def labels_of_positives(self) -> NDArray[np.int8]:
        """Labels of a training set whose negatives are a stream: all 1, with or without stored labels."""
        stored = self.given.targets is not None or stored_values(self.dataset) is not None
        if not stored and entry_of(self.dataset[0], None) is NOTHING:
            return np.ones(len(self), dtype=np.int8)
        if self.labels.ndim == 2 or not self.labels.all():
            columns, zeros = self.labels.shape[1:], (self.labels == 0).sum()
            raise DataError(
                "Expected `train_dataset` to hold positives of one label beside a stream of `negatives`, but "
                f"{f'its labels have {columns[0]} columns' if columns else f'{zeros} are 0'}. Choose one column, and "
                "put the negatives into the stream."
            )
        return self.labels

    def _values(self, argument: str) -> Any:
        given = getattr(self.given, argument)
        return None if given is None else row_values(self.dataset, given, argument, self.name)

    def is_searched(self, argument: str) -> bool:
        """Whether all items are to be read to learn what an argument says of them."""
        given = getattr(self.given, argument)
        return isinstance(given, str) and stored_values(self.dataset, [given]) is None

    def lacks(self, argument: str) -> bool:
        """Whether neither the data set nor its first item has what an argument names."""
        return self.is_searched(argument) and entry_of(self._item(0), [getattr(self.given, argument)]) is NOTHING

    @cached_property
    def groups(self) -> Any:
        """The number of each row's group, int64 ``(n,)``; ``None`` without groups."""
        return self._values("groups")

    @property
    def group_names(self) -> set[str]:
        """What the groups are called in the data."""
        return set(map(str, row_values(self.dataset, self.given.groups, "ids", self.name).tolist()))

    @cached_property
    def weights(self) -> Any:
        """The weight of each row, float64 ``(n,)``; ``None`` without weights."""
        return self._values("sample_weight")

    def ids(self, *, search: bool) -> Any:
        """What each row is called: what ``ids`` says, or an index that does not just count the rows."""
        if not search and self.is_searched("ids"):
            return None
        if self.given.ids is None and self.index is not None and not just_counts(self.index):
            return row_values(self.dataset, self.index, "ids", self.name)
        return self._values("ids")

    def _item(self, row: int) -> Any:
        with seeded_items(0, 0):
            return self.dataset[int(row)]

    def first_layout(self, dataset: Any) -> Any:
        """The :func:`~lightning_tpauc.data.examples.layout` of inputs, from the first item of a data set."""
        with seeded_items(0, 0):
            return layout(self.entries.inputs_of(dataset[0]), columns_of(self.dataset))

    def refuse_label_among_inputs(self) -> None:
        """Raise :class:`DataError` if a column of a table, or an entry of the items, equals the labels.

        That is so where labels are passed beside a table that still holds them.
        """
        labels, some = self.labels, rows_of_both_classes(self.labels, _CERTAIN)
        if labels.ndim > 1 or not 5 <= int(labels.sum()) <= len(labels) - 5:
            return
        x, left = host_view(self.dataset.features) if isinstance(self.dataset, ArrayDataset) else None, list[str]()
        if isinstance(x, np.ndarray) and x.ndim == 2:
            alike = [k for k in np.flatnonzero(_tells(x[some], labels[some])) if _tells(x[:, [k]], labels)]
            left = [repr(self.dataset.columns[k]) if self.dataset.columns else f"Column {k}" for k in alike]
        elif x is None and isinstance(self._item(some[0]), Mapping):
            items = [without(self._item(row), self.entries.named) for row in some]
            left = [repr(key) for key in items[0] if same_numbers([i.get(key) for i in items], labels[some])]
        if left:
            raise DataError(f"{left[0]} in `{self.name}` equals the labels. Name it as `targets`, or leave it out.")


def _tells(x: NDArray[Any], labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which columns have one number where labels are 1, and another one where they are 0."""
    pos, neg = x[labels == 1], x[labels == 0]
    return (pos == pos[0]).all(axis=0) & (neg == neg[0]).all(axis=0) & (pos[0] != neg[0])


def named_columns(given: Any, table: Any) -> list[Any]:
    """The columns of a table that an argument names: by name, or as a column or table with these names."""
    known = list(table.columns)
    if hasattr(given, "to_numpy"):
        names = list(given.columns) if is_table(given) else [getattr(given, "name", None)]
        return [name for name in names if name in known]
    names = list(given) if isinstance(given, (list, tuple)) else [given]
    are_names = all(isinstance(name, (str, int)) and not isinstance(name, bool) and name in known for name in names)
    return [] if not are_names or (len(names) > 1 and len(names) == len(table)) else names


# ---------------------------------------------------------------- fetching rows


def fetcher_for(dataset: Any, seed: int = 0, collate_fn: Any = None, entries: Entries | None = None) -> Fetcher:
    """Loads the inputs of a batch: by one index of arrays, else as :class:`ItemFetcher` does."""
    entries, (inner, indices) = entries or Entries(), underlying(dataset)
    if collate_fn is not None or not isinstance(inner, (ArrayDataset, TensorDataset, *_ARRAYS)):
        return ItemFetcher(dataset, seed, collate_fn, entries)
    held: Any = [inner]
    if isinstance(inner, TensorDataset):
        held = inner.tensors[:-1] if entries.labelled and len(inner.tensors) > 1 else inner.tensors
    arrays = [each if isinstance(each, ArrayDataset) else ArrayDataset(each, None) for each in held]
    return partial(_fetch_arrays, arrays, indices)


def _fetch_arrays(arrays: Sequence[ArrayDataset], indices: Indices | None, rows: Indices, step: int) -> Any:  # noqa: ARG001
    """Rows of one array, or a tuple of rows of several arrays; they are the same in every step."""
    found = [array.rows(rows if indices is None else indices[rows]) for array in arrays]
    return found[0] if len(found) == 1 else tuple(found)


class ItemFetcher:
    """Loads the inputs of a batch by ``__getitems__``, or item by item, each seeded."""

    def __init__(self, dataset: Any, seed: int, collate_fn: Any, entries: Entries) -> None:
        self.dataset, self.seed, self.collate_fn, self.entries = dataset, seed, collate_fn, entries
        self.reader = ItemReader(seed)
        self.reads_batches = hasattr(underlying(dataset)[0], "__getitems__")  # a Subset has the method in any case

    def __call__(self, rows: Indices, step: int) -> Any:
        """The inputs of some rows as they are in a step."""
        return self.beside(rows, step, [])

    def beside(self, rows: Indices | None, step: int, others: list[Any]) -> Any:
        """A batch of some rows, followed by examples of a stream of negatives."""
        items = [] if rows is None else self.items(rows.tolist(), step)
        if self.collate_fn is None:
            others = [without(other, self.entries.named) for other in others]
            return collate_items([self.entries.inputs_of(item) for item in items] + others)
        if self.entries.labelled and isinstance((items or self.items([0], 0))[0], (tuple, list)):
            others = [(*other, 0) if isinstance(other, (tuple, list)) else (other, 0) for other in others]
        return self.collated(items + others, step, rows)

    def items(self, rows: list[int], step: int) -> list[Any]:
        """The items of some rows as they are in a step."""
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
        labelled, is_tuple, right = all(label is not NOTHING for label in labels), type(batch) in (tuple, list), True
        left_out = self.entries.named.union({*NAMES} - {*(items[0] if isinstance(items[0], Mapping) else ())})
        if labelled and is_tuple:
            right = len(batch) > 1 and same_numbers(batch[-1], labels)
        elif labelled and isinstance(batch, Mapping):
            own = [numbers_of(batch[key]) for key in batch if key in left_out - self.entries.others]
            right = all(same_numbers(entry, labels) for entry in own if len(entry) == len(labels))
        batch = without(_of_tuple(batch, labelled=labelled) if is_tuple and right else batch, left_out)
        parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else [batch]
        shapes = [tuple(part.shape[:2]) for part in parts if isinstance(part, Tensor) and part.ndim]
        # Some batches have the examples on their second axis.
        complete = not shapes or len(parts) == len(items) or any(len(items) in shape for shape in shapes)
        if not right or not complete:
            raise DataError(
                f"Expected `collate_fn` to return all {len(items)} items in their order, a tuple as (inputs, labels), "
                f"but {'the number of examples differs' if right else 'it does not hold the labels of the items'}."
            )
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
        raise DataError(
            f"Items of type {type(first).__name__} can't be put into one batch ({str(error).splitlines()[0]}). Pass a "
            "`collate_fn`, or `Resize` and `ToTensor` images. A stream of negatives yields what `train_dataset` has."
        ) from error
    # torch and PyG collate tuples into a list. Arrays give a tuple, and the model should see no difference.
    return tuple(collated) if isinstance(collated, list) and isinstance(first, (tuple, list)) else collated
