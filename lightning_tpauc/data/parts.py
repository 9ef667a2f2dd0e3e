"""The parts of a run: what trains, validates, is tested and predicted, with labels and what else is said of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_tpauc.data.examples import (
    ArrayDataset,
    Datasets,
    Entries,
    RowsDataset,
    aligned,
    as_dataset,
    check_order,
    column_names,
    columns_of,
    enumerated,
    fetcher_for,
    has_label,
    host_view,
    index_of,
    is_table,
    layout,
    names_in,
    unaugmented,
)
from lightning_tpauc.data.labels import (
    NOTHING,
    are_labels,
    as_array,
    as_groups,
    as_weights,
    disagreement,
    entry_of,
    find_targets,
    label_keys,
    label_names,
    row_values,
    rows_of_both_classes,
    same_numbers,
    stored_values,
)
from lightning_tpauc.data.sampler import LabelRows, WeightedIndices
from lightning_tpauc.data.seeding import Purpose, seeded_items
from lightning_tpauc.data.splits import Split
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.functional.checks import just_counts

#: Fits preprocessing on rows of the training set, and returns transformed data sets.
FitTransforms = Callable[[Datasets, NDArray[np.int64]], Datasets]
#: An entry of the items that equals the labels in so many of each class is the label.
_CERTAIN = 64
#: So many numbers of data in memory tell these data from others.
_NUMBERS = 2**24
#: Of a set that makes its items one by one, and of a list of others than numbers and texts, so many are read.
_ITEMS = 256
_PLAIN = (bool, int, float, complex, str, bytes)


class Given(NamedTuple):
    """What the arguments of a data module say of rows: where it is, or the values; see there."""

    targets: Any = None
    groups: Any = None
    sample_weight: Any = None
    ids: Any = None


class Examples:
    """One data set of a run, with its labels and what arguments say of its rows.

    ``known`` are the columns that the model takes, in its order. ``has_ids`` says whether ids that came as values
    belong to this data set; other values belong to the training set, and names to all.
    """

    def __init__(
        self,
        raw: Any,
        part: str,
        given: Given,
        *,
        has_ids: bool = True,
        dtype: Any = None,
        known: tuple[str, ...] | None = None,
    ) -> None:
        self.part, self.name, trains = part, f"{part}_dataset", part == "train"
        # Names hold for all data sets, values for one of them.
        holds = {"targets": trains or not are_labels(given.targets), "ids": has_ids}
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
        named = {argument: named_columns(value, table) for argument, value in given._asdict().items()}
        by_name = [
            argument for argument, names in named.items() if names and not hasattr(getattr(given, argument), "to_numpy")
        ]
        values = {argument: table[named[argument][0]].to_numpy() for argument in by_name if argument != "targets"}
        index = index_of(table)
        for argument, value in given._asdict().items():
            if argument not in by_name and isinstance(value, str) and value == getattr(index, "name", None):
                values[argument] = index
        self.given = self.given._replace(**values)
        dropped = {name for names in named.values() for name in names}
        inputs = table[[column for column in table.columns if column not in dropped]] if dropped else table
        if self.part == "predict":
            return inputs, labels
        if "targets" in by_name and labels is None:
            self.given = self.given._replace(targets=None)
            return inputs, table[given.targets if isinstance(given.targets, (str, int)) else named["targets"]]
        msg = ""
        if "targets" in by_name:
            msg = (
                f"`targets={given.targets!r}` names columns of the table in `{self.name}`, which is a pair (inputs, "
                "labels) and has labels already. Pass the table alone, or the pair without `targets`."
            )
        elif labels is None and not are_labels(self.given.targets):
            absent = [repr(key) for key in label_keys(given.targets) or () if key not in table.columns]
            what = f"It is unknown which column of `{self.name}` is the label"
            if absent:
                what = f"`targets={given.targets!r}` names columns of labels, but `{self.name}` has no {absent[0]}"
            msg = f"{what}: name one of {enumerated(table.columns)} by `targets`, or pass a pair `(inputs, labels)`."
        if msg:
            raise DataError(msg)
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

    def values_of(self, argument: str) -> NDArray[Any] | None:
        """What ``groups`` or ``sample_weight`` say of each row; ``None`` if they say nothing."""
        given = getattr(self.given, argument)
        return None if given is None else row_values(self.dataset, given, argument, self.name)

    def ids(self, *, search: bool) -> NDArray[Any] | None:
        """What each row is called: what ``ids`` says, or an index that does not just count the rows."""
        if isinstance(self.given.ids, str) and not search and stored_values(self.dataset, [self.given.ids]) is None:
            return None
        if self.given.ids is None and self.index is not None and not just_counts(self.index):
            return row_values(self.dataset, self.index, "ids", self.name)
        return self.values_of("ids")

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
        left: list[Any] = []
        x = host_view(self.dataset.features) if isinstance(self.dataset, ArrayDataset) else None
        if isinstance(x, np.ndarray) and x.ndim == 2:
            alike = [k for k in np.flatnonzero(_tells(x[some], labels[some])) if _tells(x[:, [k]], labels)]
            left = [repr(self.dataset.columns[k]) if self.dataset.columns else f"Column {k}" for k in alike]
        elif x is None:
            with seeded_items(0, 0):
                first = self.dataset[int(some[0])]
                keys = first.keys() - self.entries.named if isinstance(first, Mapping) else set()
                for key in keys:
                    if all(same_numbers(self.dataset[int(row)].get(key), labels[row]) for row in some):
                        left.append(repr(key))
        if left:
            msg = (
                f"{left[0]} in `{self.name}` equals the labels, and would be an input of the model. Name it as "
                "`targets`, or leave it out of the inputs."
            )
            raise DataError(msg)


def _tells(x: NDArray[Any], labels: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which columns have one number where labels are 1, and another one where they are 0."""
    pos, neg = x[labels == 1], x[labels == 0]
    tell: NDArray[np.bool_] = (pos == pos[0]).all(axis=0) & (neg == neg[0]).all(axis=0) & (pos[0] != neg[0])
    return tell


def named_columns(given: Any, table: Any) -> list[Any]:
    """The columns of a table that an argument names: by name, or as a column or table with these names."""
    known = list(table.columns)
    if hasattr(given, "to_numpy"):
        names = list(given.columns) if is_table(given) else [getattr(given, "name", None)]
        return [name for name in names if name in known]
    names = list(given) if isinstance(given, (list, tuple)) else [given]
    are_names = all(isinstance(name, (str, int)) and not isinstance(name, bool) and name in known for name in names)
    return [] if not are_names or (len(names) > 1 and len(names) == len(table)) else names


class EvaluatedPart(NamedTuple):
    """Rows of a data set to evaluate, and their labels."""

    dataset: Any
    rows: NDArray[np.int64]
    labels: NDArray[np.int8]
    entries: Entries = Entries()
    ids: NDArray[Any] | None = None


class TrainingPart:
    """Labels of the training set, ``(n,)`` or ``(n, K)``; the rows that train, those of weight 0 left out."""

    def __init__(
        self,
        labels: NDArray[np.int8],
        rows: NDArray[np.int64],
        held_out: NDArray[np.int64],
        names: tuple[str, ...] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.labels, self.weights, self.held_out = labels, weights, held_out
        self.rows = rows if weights is None else rows[weights[rows] > 0]
        #: What is known of several labels; ``None`` with one.
        self.tasks: LabelRows | None = None
        if names is not None:
            self.tasks = LabelRows(labels, self.rows, names)
            self.by_class = self.tasks.some_positive, self.tasks.negatives
        else:
            #: Training rows of the positives and of the negatives. ``index`` counts the positives in this order. With
            #: several labels, rows that are positive, and rows that are negative, for at least one.
            self.by_class = self.rows[labels[self.rows] == 1], self.rows[labels[self.rows] == 0]

    @property
    def num_positives(self) -> Any:
        """Number of training positives; with several labels, a tuple with the number of each."""
        return len(self.by_class[0]) if self.tasks is None else self.tasks.num_positives

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that identify which examples the positives 0 .. n+ - 1 are, with all labels and weights."""
        weights = None if self.weights is None else self.weights[self.rows]
        return content_digest(len(self.labels), self.rows, self.labels[self.rows], weights)


class PreparedData:
    """The data sets of a run. It owns their labels, the split and the transformed data sets."""

    def __init__(
        self,
        examples: Mapping[str, Examples],
        negatives: Any = None,
        split: Split | None = None,
        fit_transforms: FitTransforms | None = None,
    ) -> None:
        self.examples, self.negatives, self.split = examples, negatives, split or Split()
        self._fit_transforms = fit_transforms

    @cached_property
    def training(self) -> TrainingPart:
        """Labels of the training set, and which of its rows train."""
        train = self.examples.get("train")
        if train is None:
            msg = "There is no training set: pass `train_dataset`, and call `setup('fit')` first."
            raise DataError(msg)
        weights, groups = train.values_of("sample_weight"), train.values_of("groups")
        weights = None if weights is None else as_weights(weights)
        labels = train.labels if self.negatives is None else _labels_of_positives(train)
        if self.negatives is None:
            train.refuse_label_among_inputs()
            _say_most_are_positive(labels)
        elif self.split.parts is not None:
            msg = f"`{self.split.parts}` can't split a stream of `negatives`. Pass a `val_dataset` with both classes."
            raise ArgumentError(msg)
        if weights is not None and labels.ndim == 2:
            msg = "`sample_weight` weighs the examples of one label. Leave it out, or pass one column of labels."
            raise ArgumentError(msg)
        names = None if labels.ndim == 1 else train.label_names
        parts = self.split.cut(labels, None if groups is None else as_groups(groups), names)
        return TrainingPart(labels, *parts, names, weights)

    @cached_property
    def datasets(self) -> Datasets:
        """The data sets after ``fit_transforms``, if that is given; only then labels and split are needed for them."""
        given = Datasets(**{part: own.dataset for part, own in self.examples.items()}, negatives=self.negatives)
        if self._fit_transforms is None or given.train is None:
            return given
        return self._fit_transforms(given, self.training.rows)

    @property
    def splits_validation(self) -> bool:
        """Whether the validation set is split off from the training set."""
        return "val" not in self.examples and "train" in self.examples and self.split.parts is not None

    @property
    def validates(self) -> bool:
        """Whether there is a validation set, of its own or split off."""
        return "val" in self.examples or self.splits_validation

    def require(self, part: str) -> Examples:
        """The examples of a part."""
        if part not in self.examples:
            msg = f"There is no data set for this: pass `{part}_dataset`, or return `{part}` from `build_datasets`."
            raise DataError(msg)
        return self.examples[part]

    def labelled(self, part: str, known: Any) -> EvaluatedPart:
        """The validation or test set with its labels; ``known`` is the layout of the inputs that the model takes."""
        examples = self.require(part)
        self._refuse_other_labels(examples)
        rows, entries = np.arange(len(examples)), examples.entries._replace(known=names_in(known, "keys"))
        return EvaluatedPart(getattr(self.datasets, part), rows, examples.labels, entries, examples.ids(search=False))

    def _refuse_other_labels(self, part: Examples) -> None:
        """Raise :class:`DataError` if a part is judged by other labels than those that train, or in another order."""
        train, msg = self.examples.get("train"), ""
        if train is not None and are_labels(train.given.targets) and self.negatives is None:
            with seeded_items(0, 0):
                differing = disagreement(train.dataset, train.labels, None)
            if differing:
                msg = (
                    "`targets` are the labels of `train_dataset` alone, and they are not what its items have: "
                    f"{differing}. `{part.name}` would be judged by the labels of its items. Pass a name, or a "
                    "function such as `targets=lambda label: label == 1`, which hold for all parts, or pairs (x, y)."
                )
        if "training" in self.__dict__ and part.label_names != self.label_names:
            names, found = self.label_names or ("one label",), part.label_names or ("one label",)
            if found != tuple(map(str, range(len(names)))):  # labels without names stand in their order
                msg = (
                    f"Expected `{part.name}` to have the labels of `train_dataset` in the same order, "
                    f"{enumerated(names)}, but it has {enumerated(found)}. Choose the same columns."
                )
        if msg:
            raise DataError(msg)

    @cached_property
    def held_out(self) -> EvaluatedPart:
        """The part that is split off from the training set."""
        dataset, rows, train = self.datasets.train, self.training.held_out, self.examples["train"]
        items = getattr(fetcher_for(dataset), "items", None)  # of what is read item by item
        differ = items and len({content_digest(items(rows[:4].tolist(), step)) for step in (0, 1)}) > 1
        if differ and unaugmented(dataset) is dataset:
            rank_zero_warn(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give the "
                "data set an attribute `without_augmentation`, a data set with the same rows as they are, or pass a "
                "`val_dataset`.",
                category=TPAUCWarning,
            )
        ids = train.ids(search=False)
        return EvaluatedPart(
            dataset, rows, self.training.labels[rows], train.entries, rows if ids is None else ids[rows]
        )

    def predicted(self, known: Any) -> EvaluatedPart:
        """The data to predict on, or the part that is split off for validation; labels are left out and not read."""
        if "predict" not in self.examples and self.splits_validation:
            ids = self.examples["train"].ids(search=True)
            return self.held_out if ids is None else self.held_out._replace(ids=ids[self.held_out.rows])
        examples, dataset = self.require("predict"), unaugmented(self.datasets.predict)
        with seeded_items(0, 0):
            labelled = isinstance(dataset, (Tensor, RowsDataset)) or _ends_with_label(dataset[0], known)
        entries = examples.entries._replace(known=names_in(known, "keys"), labelled=labelled)
        rows, unknown = np.arange(len(dataset)), np.full(len(dataset), -1, dtype=np.int8)
        return EvaluatedPart(dataset, rows, unknown, entries, examples.ids(search=True))

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels; ``None`` with one. Labels that were found already come before the training set's."""
        parts = [self.examples[part] for part in ("train", "val", "test") if part in self.examples]
        known = [part for part in parts if "labels" in part.__dict__] or parts
        return known[0].label_names if known and self.negatives is None else None

    def scored(self, seed: int) -> tuple[EvaluatedPart, EvaluatedPart]:
        """The training positives and negatives; these as often as their weights say, if there are some.

        With several labels, the rows that are positive for some label, and the others that are negative for some.
        """
        training, tasks = self.training, self.training.tasks
        parts = training.by_class if tasks is None else (tasks.some_positive, tasks.others)
        if training.weights is not None and len(parts[1]):
            drawn = WeightedIndices(training.weights[parts[1]], len(parts[1]), seed, Purpose.SCORING)
            parts = parts[0], parts[1][drawn.batches(0, 1)[0]]
        dataset, entries = self.datasets.train, self.examples["train"].entries
        pos, neg = (EvaluatedPart(dataset, rows, training.labels[rows], entries) for rows in parts)
        return pos, neg


def _ends_with_label(item: Any, known: Any) -> bool:
    """Whether items to predict on hold a label, by the layout that the model knows, or else by what they look like."""
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        return True
    labelled = has_label(item, known)
    if labelled is None and not (len(item) == 2 and np.size(as_array(item[1])) == 1):
        msg = (
            f"Nobody knows whether the last of the {len(item)} entries of the items of `predict_dataset` is a label: "
            "pass `train_dataset`, too, or predict with a trained module; or let the items be `((a, b), label)`."
        )
        raise DataError(msg)
    return labelled is not False


def _labels_of_positives(train: Examples) -> NDArray[np.int8]:
    """Labels of a training set whose negatives are a stream: all 1, with or without stored labels."""
    stored = train.given.targets is not None or stored_values(train.dataset) is not None
    if not stored and entry_of(train.dataset[0], None) is NOTHING:
        return np.ones(len(train), dtype=np.int8)
    labels = train.labels
    if labels.ndim == 2 or not labels.all():
        found = f"its labels have {labels.shape[1]} columns" if labels.ndim == 2 else f"{(labels == 0).sum()} are 0"
        msg = (
            "Expected `train_dataset` to hold positives of one label beside a stream of `negatives`, but "
            f"{found}. Choose one column, and put the negatives into the stream."
        )
        raise DataError(msg)
    return labels


def _say_most_are_positive(labels: NDArray[np.int8]) -> None:
    columns = labels.reshape(len(labels), -1)
    shares = (columns == 1).sum(axis=0) / np.maximum((columns >= 0).sum(axis=0), 1)
    if (shares > 0.5).all():
        rank_zero_warn(
            f"{100 * shares.min():.0f} % of the labels of `train_dataset` are 1: was the other class meant? 1 is the "
            "class to be found, most often the rarer one. `targets=lambda label: label == 0` turns labels round.",
            category=TPAUCWarning,
        )


# ---------------------------------------------------------------- data known by their content


def content_digest(*values: Any) -> str:
    """16 hex digits of the content of data: the same in every process, others if a number, a name or a label differs.

    Tensors, arrays, sparse matrices, tables with the names of their columns, and lists of numbers and texts are read
    whole. Of data sets that make their items one by one, and of other lists, 256 items count, at equal distances.
    Anything else counts by its type and text. The global random numbers stay as they are.
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


def describe(dataset: Any) -> str:
    """Number of examples, and a digest of indices and of up to 2^24 numbers in memory; items may cost much, or vary."""
    if isinstance(dataset, Subset):
        return f"{len(dataset)} examples, {content_digest(np.asarray(dataset.indices))}, of {describe(dataset.dataset)}"
    held: Any = (
        dataset.tensors if isinstance(dataset, TensorDataset) else [dataset] if isinstance(dataset, Tensor) else []
    )
    held = [dataset.features] if isinstance(dataset, ArrayDataset) else held
    step = 1 + sum(math.prod(array.shape) for array in held) // _NUMBERS
    return f"{len(dataset)} examples, {content_digest([array[::step] for array in held])}"
