"""The parts of a run: what trains, validates, is tested and predicted, with labels and what else is said of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc.data.digest import content_digest
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
    has_label,
    host_view,
    is_random,
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
    binary_labels,
    disagreement,
    entry_of,
    find_targets,
    label_keys,
    label_names,
    numbers_of,
    row_values,
    rows_of_both_classes,
    ruled,
    stored_targets,
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


class Given(NamedTuple):
    """What the arguments of a data module say of rows: where labels are, or their values; see there."""

    targets: Any = None
    groups: Any = None
    sample_weight: Any = None
    ids: Any = None


class Examples:
    """One data set of a run, with its labels and what arguments say of its rows.

    Args:
        raw: what the user gave. Columns of a table that an argument names are taken out: they are no inputs.
        part: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
        given: the arguments. Labels as values belong to the training set.
        dtype: see :func:`~lightning_tpauc.data.examples.as_dataset`.
        known: names of the columns that the model takes, in its order; ``None`` takes those of the table.
    """

    def __init__(
        self, raw: Any, part: str, given: Given, dtype: Any = None, known: tuple[str, ...] | None = None
    ) -> None:
        self.part, self.name, self.given = part, f"{part}_dataset", given
        self.values: dict[str, Any] = {}
        #: What finds the labels in this data set.
        self.targets = given.targets if part == "train" or not are_labels(given.targets) else None
        table = raw[0] if isinstance(raw, (tuple, list)) and len(raw) == 2 else raw
        if is_table(table):
            raw = self._without_named_columns(raw, table)
        if is_table(raw) and part != "predict" and not are_labels(self.targets):
            msg = (
                f"`{self.name}` is a {type(raw).__name__}, and it is unknown which column is the label. Name it, "
                "`targets='label'`, or pass a pair: `(table.drop(columns='label'), table['label'])`."
            )
            raise DataError(msg)
        #: The data set, before any transform.
        self.dataset = aligned(as_dataset(raw, self.name, dtype), known, self.name)
        keys = label_keys(self.targets)
        if keys is not None and isinstance(raw, (tuple, list)) and isinstance(self.dataset, ArrayDataset):
            called = list(getattr(raw[1], "columns", [getattr(raw[1], "name", None)]))
            self.targets = None if called in ([None], list(keys)) else self.targets  # a pair has its labels beside it
        index = getattr(self.dataset, "index", None) if isinstance(self.dataset, ArrayDataset) else None
        for argument in ("targets", "groups", "sample_weight") if part == "train" else ():
            check_order(index, getattr(given, argument), f"`{argument}`", self.name)

    def _without_named_columns(self, raw: Any, table: Any) -> Any:
        column_names(table, self.name)
        columns, labels = list(table.columns), named_columns(self.given.targets, table)
        keys = label_keys(self.given.targets)
        if table is raw and keys is not None and self.part != "predict" and not labels:
            absent = next(key for key in keys if key not in columns)
            msg = (
                f"`targets={self.given.targets!r}` names columns of labels, but `{self.name}` has no {absent!r}: "
                f"it has {enumerated(columns)}."
            )
            raise DataError(msg)
        dropped = set(labels)
        for argument in ("groups", "sample_weight", "ids"):
            named = named_columns(getattr(self.given, argument), table)
            dropped |= {*named}
            if named and not is_column(getattr(self.given, argument)):
                self.values[argument] = table[named[0]].to_numpy()
        inputs = table[[column for column in columns if column not in dropped]] if dropped else table
        if not labels or is_column(self.given.targets) or is_table(self.given.targets) or self.part == "predict":
            return inputs if table is raw else (inputs, raw[1])
        if table is not raw:
            msg = (
                f"`targets={self.given.targets!r}` names columns of the table in `{self.name}`, which is a pair "
                "(inputs, labels) and has labels already. Pass the table alone, or the pair without `targets`; another "
                "table is a `val_dataset` or `test_dataset`, and parts of one are joined first."
            )
            raise DataError(msg)
        self.targets = None
        return inputs, table[labels if isinstance(self.given.targets, (list, tuple)) else labels[0]]

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def labels(self) -> NDArray[np.int8]:
        """Labels, int8 ``(n,)``, or ``(n, K)`` of several. Finding them may take a pass over all items."""
        return find_targets(self.dataset, self.targets, self.name)

    @cached_property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels, where they have any."""
        return None if self.labels.ndim == 1 else label_names(self.dataset, self.targets, self.labels.shape[1])

    def values_of(self, argument: str) -> NDArray[Any] | None:
        """What ``groups`` or ``sample_weight`` say of each row; ``None`` if they say nothing."""
        given = self.values.get(argument, getattr(self.given, argument))
        return None if given is None else row_values(self.dataset, given, argument, self.name)

    def ids(self, *, search: bool, given_here: bool) -> NDArray[Any] | None:
        """What each row is called: what ``ids`` says, or an index that does not just count the rows."""
        given, index = self.given.ids, getattr(self.dataset, "index", None)
        index = index if isinstance(self.dataset, ArrayDataset) else None
        found = self.values.get("ids")
        if found is None and isinstance(given, str):
            named = index is not None and index.name == given
            if not (named or search) and stored_targets(self.dataset, [given]) is None:
                return None
            found = index if named else given
        elif found is None and given_here:
            check_order(index, given, "`ids`", self.name)
            found = given
        if found is None and index is not None and not just_counts(index):
            found = index
        return None if found is None else row_values(self.dataset, found, "ids", self.name)

    def entries(self, known: Callable[[], Any] | None = None) -> Entries:
        """Which entries of items are no inputs; ``known()`` is the layout of those that the model takes."""
        others = [v for v in (self.given.groups, self.given.sample_weight, self.given.ids) if isinstance(v, str)]
        in_memory = isinstance(self.dataset, (Tensor, TensorDataset, RowsDataset))
        keys = None if known is None or in_memory else names_in(known(), "keys")
        return Entries(label_keys(self.targets), frozenset(others), known=keys)

    def first_layout(self, dataset: Any) -> Any:
        """The :func:`~lightning_tpauc.data.examples.layout` of inputs, from the first item of a data set."""
        if isinstance(dataset, (Tensor, RowsDataset)):
            return layout(0.0, columns_of(self.dataset))
        with seeded_items(0, 0):
            return layout(self.entries().inputs_of(dataset[0]), columns_of(self.dataset))

    def refuse_label_among_inputs(self) -> None:
        """Raise :class:`DataError` if a column of a table, or an entry of the items, equals the labels.

        That is so where labels are passed beside a table that still holds them.
        """
        labels = self.labels
        if labels.ndim > 1 or not 5 <= int(labels.sum()) <= len(labels) - 5:
            return
        left: list[Any] = []
        x = host_view(self.dataset.features) if isinstance(self.dataset, ArrayDataset) else None
        if isinstance(x, np.ndarray) and x.ndim == 2:
            same = labels == labels[0]
            one, other = x[0], x[int(same.argmin())]
            alike = (x[:64] == np.where(same[:64, None], one, other)).all(axis=0) & (one != other)
            alike = [k for k in np.flatnonzero(alike) if (x[:, k] == np.where(same, one[k], other[k])).all()]
            names = self.dataset.columns
            left = [int(k) if names is None else names[k] for k in alike]
        else:
            left = self._entries_like_labels()
        if left:
            what, named = f"Column {left[0]}", "Leave"
            if isinstance(left[0], str):
                what, named = repr(left[0]), f"Name it, `targets={left[0]!r}`, or leave"
            msg = (
                f"{what} in `{self.name}` equals the labels, and would be an input of the model. {named} it out of "
                "the inputs."
            )
            raise DataError(msg)

    def _entries_like_labels(self) -> list[str]:
        left: list[str] | None = None
        named = self.entries().named
        with seeded_items(0, 0):
            for row in rows_of_both_classes(self.labels, _CERTAIN):
                item = self.dataset[int(row)]
                if not isinstance(item, Mapping):
                    return []
                keys = [key for key in item if key not in named] if left is None else left
                left = [key for key in keys if numbers_of(item[key]) == [self.labels[row]]]
                if not left:
                    break
        return left or []


def is_column(given: Any) -> bool:
    """Whether this is a column of pandas or polars."""
    return hasattr(given, "to_numpy") and hasattr(given, "name")


def named_columns(given: Any, table: Any) -> list[Any]:
    """The columns of a table that an argument names: by name, or as a column or table with these names."""
    known = list(table.columns)
    if is_table(given):
        return [name for name in given.columns if name in known]
    if is_column(given):
        return [given.name] if given.name in known else []
    names = list(given) if isinstance(given, (list, tuple)) else [given]
    are_names = all(isinstance(name, (str, int)) and not isinstance(name, bool) for name in names)
    if not are_names or not all(name in known for name in names) or (len(names) > 1 and len(names) == len(table)):
        return []
    return names


class EvaluatedPart(NamedTuple):
    """Rows of a data set to evaluate, and their labels."""

    dataset: Any
    rows: NDArray[np.int64]
    labels: NDArray[np.int8]
    entries: Entries = Entries()
    label_names: tuple[str, ...] | None = None
    ids: NDArray[Any] | None = None


class TrainingPart:
    """Labels of the training set; the rows that train, and the rows that validate.

    Args:
        labels: int8 array ``(n,)`` of 0 and 1; ``(n, K)`` with several labels, with -1 where nothing was measured.
        rows: int64 array of the rows that train; all if ``None``.
        held_out: int64 array of the rows that validate.
        names: names of several labels; their numbers from 0 on if ``None``.
        weights: float array ``(n,)``: the weight of each row. Rows of weight 0 do not train. ``None`` weighs all alike.
    """

    def __init__(
        self,
        labels: NDArray[np.int8],
        rows: NDArray[np.int64] | None = None,
        held_out: NDArray[np.int64] | None = None,
        names: tuple[str, ...] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.labels, self.weights = labels, weights
        self.rows = np.arange(len(labels), dtype=np.int64) if rows is None else rows
        if weights is not None:
            self.rows = self.rows[weights[self.rows] > 0]
        self.held_out = np.empty(0, dtype=np.int64) if held_out is None else held_out
        #: What is known of several labels; ``None`` with one.
        self.tasks: LabelRows | None = None
        if labels.ndim == 2:
            self.tasks = LabelRows(labels, self.rows, names or numbered(labels.shape[1]))
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


def numbered(count: int) -> tuple[str, ...]:
    """The names of labels that have none: ``("0", "1", ...)``."""
    return tuple(map(str, range(count)))


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
        weights = train.values_of("sample_weight")
        weights = None if weights is None else as_weights(weights)
        if self.negatives is not None:
            if self.split.parts is not None:
                msg = (
                    f"`{self.split.parts}` can't split a stream of `negatives`. Pass a `val_dataset` with both classes "
                    "instead."
                )
                raise ArgumentError(msg)
            return TrainingPart(_labels_of_positives(train), weights=weights)
        labels = train.labels
        train.refuse_label_among_inputs()
        _say_most_are_positive(labels)
        if weights is not None and labels.ndim == 2:
            msg = (
                f"`sample_weight` weighs the examples of one task, but the labels have {labels.shape[1]} columns. "
                "Leave it out, or pass one column of labels."
            )
            raise ArgumentError(msg)
        groups = train.values_of("groups")
        names = None if labels.ndim == 1 else train.label_names or numbered(labels.shape[1])
        parts = self.split.cut(labels, None if groups is None else as_groups(groups), names)
        return TrainingPart(labels, *parts, names, weights)

    @cached_property
    def datasets(self) -> Datasets:
        """The data sets after ``fit_transforms``, if that is given; only then labels and split are needed for them."""
        given = Datasets(
            **{part: examples.dataset for part, examples in self.examples.items()}, negatives=self.negatives
        )
        if self._fit_transforms is None or given.train is None:
            return given
        return self._fit_transforms(given, self.training.rows)

    @property
    def splits_validation(self) -> bool:
        """Whether the validation set is split off from the training set."""
        return "val" not in self.examples and "train" in self.examples and self.split.parts is not None

    @property
    def has_validation(self) -> bool:
        """Whether there is a validation set, of its own or split off."""
        return "val" in self.examples or self.splits_validation

    def require(self, part: str) -> Examples:
        """The examples of a part."""
        if part not in self.examples:
            msg = f"There is no data set for this: pass `{part}_dataset`, or return `{part}` from `build_datasets`."
            raise DataError(msg)
        return self.examples[part]

    def labelled(self, part: str, known: Callable[[], Any]) -> EvaluatedPart:
        """The validation or test set with its labels; ``known`` as in :meth:`predicted`."""
        examples = self.require(part)
        self._refuse_another_rule(examples.name)
        if "training" in self.__dict__:
            self._check_same_labels(examples)
        dataset, rows = getattr(self.datasets, part), np.arange(len(examples), dtype=np.int64)
        ids = examples.ids(search=False, given_here=False)
        return EvaluatedPart(dataset, rows, examples.labels, examples.entries(known), examples.label_names, ids)

    def _refuse_another_rule(self, name: str) -> None:
        """Raise :class:`DataError` if labels given for the training set are not those that its items have."""
        train = self.examples.get("train")
        if train is None or not are_labels(train.targets) or self.negatives is not None:
            return
        with seeded_items(0, 0):
            differing = disagreement(train.dataset, train.labels, None)
        if differing:
            msg = (
                f"`targets` are the labels of `train_dataset` alone, and they are not what its items have: "
                f"{differing}. `{name}` would be judged by the labels of its items. Pass `targets` as a name, or as a "
                "function of one label, such as `targets=lambda label: label == 1`, which hold for all data sets; or "
                "give each data set its labels in the same way, as a pair (x, y)."
            )
            raise DataError(msg)

    def _check_same_labels(self, part: Examples) -> None:
        names, count = self.label_names, 1 if part.labels.ndim == 1 else part.labels.shape[1]
        if count == len(names or "1") and part.label_names in (None, names, numbered(count)):
            return
        expected, found = (enumerated(own) if own else "one label" for own in (names, part.label_names))
        msg = (
            f"Expected `{part.name}` to have the labels of `train_dataset` in the same order, {expected}, but it has "
            f"{found if part.label_names or count == 1 else f'{count} labels'}. Choose the same columns."
        )
        raise DataError(msg)

    @cached_property
    def held_out(self) -> EvaluatedPart:
        """The part that is split off from the training set."""
        dataset, rows, train = self.datasets.train, self.training.held_out, self.examples["train"]
        if unaugmented(dataset) is dataset and is_random(dataset, rows[:4]):
            rank_zero_warn(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give the "
                "data set an attribute `without_augmentation`, a data set with the same rows as they are, or pass a "
                "`val_dataset`.",
                category=TPAUCWarning,
            )
        tasks = self.training.tasks
        ids = train.ids(search=False, given_here="predict" not in self.examples)
        names = None if tasks is None else tasks.names
        ids = rows if ids is None else ids[rows]
        return EvaluatedPart(dataset, rows, self.training.labels[rows], train.entries(), names, ids)

    def predicted(self, known: Any) -> EvaluatedPart:
        """The data to predict on, with or without labels; without them, the part that is split off for validation."""
        if "predict" not in self.examples and self.splits_validation:
            ids = self.examples["train"].ids(search=True, given_here=True)
            return self.held_out if ids is None else self.held_out._replace(ids=ids[self.held_out.rows])
        examples = self.require("predict")
        dataset = unaugmented(self.datasets.predict)
        rows, unknown = np.arange(len(dataset), dtype=np.int64), np.full(len(dataset), -1, dtype=np.int8)
        ids = examples.ids(search=True, given_here=True)
        labelled: bool | None = True
        entries = examples.entries(known)
        if not isinstance(dataset, (Tensor, RowsDataset)):
            with seeded_items(0, 0):
                item = dataset[0]
            if isinstance(item, (tuple, list)) and len(item) > 1:
                labelled = has_label(item, known())
                if labelled is None and not (len(item) == 2 and np.size(as_array(item[1])) == 1):
                    msg = (
                        f"Nobody knows whether the last of the {len(item)} entries of the items of `predict_dataset` "
                        "is a label: pass `train_dataset`, too, or predict with a module that was trained or loaded "
                        "from a checkpoint; or let the items be `((a, b), label)`."
                    )
                    raise DataError(msg)
        if labelled is False:
            return EvaluatedPart(dataset, rows, unknown, entries._replace(labelled=False), ids=ids)
        labels = unknown
        try:
            stored = stored_targets(examples.dataset, entries.label)
            labels = unknown if stored is None else binary_labels(ruled(stored, examples.targets), examples.name)
        except DataError:  # placeholders, such as nan or zeros of another shape
            pass
        return EvaluatedPart(dataset, rows, labels, entries, ids=ids)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels; ``None`` with one. Labels that were found already come before the training set's."""
        if "training" in self.__dict__:
            return None if self.training.tasks is None else self.training.tasks.names
        others = [self.examples[part] for part in ("val", "test") if part in self.examples]
        found = [part for part in others if "labels" in part.__dict__]
        if not found and "train" in self.examples:
            return None if self.training.tasks is None else self.training.tasks.names
        first = next(iter(found or others), None)
        return None if first is None or first.labels.ndim == 1 else first.label_names or numbered(first.labels.shape[1])

    def scored(self, seed: int) -> tuple[EvaluatedPart, EvaluatedPart]:
        """The training positives and negatives; these as often as their weights say, if there are some.

        With several labels, the rows that are positive for some label, and the others that are negative for some.
        """
        training, tasks = self.training, self.training.tasks
        parts = training.by_class if tasks is None else (tasks.some_positive, tasks.others)
        if training.weights is not None and len(parts[1]):
            drawn = WeightedIndices(training.weights[parts[1]], len(parts[1]), seed, Purpose.SCORING)
            parts = parts[0], parts[1][drawn.batches(0, 1)[0]]
        entries = self.examples["train"].entries()
        pos, neg = (EvaluatedPart(self.datasets.train, rows, training.labels[rows], entries) for rows in parts)
        return pos, neg


def _labels_of_positives(train: Examples) -> NDArray[np.int8]:
    """Labels of a training set whose negatives are a stream: all 1, with or without stored labels."""
    if train.targets is None and stored_targets(train.dataset) is None and entry_of(train.dataset[0], None) is NOTHING:
        return np.ones(len(train), dtype=np.int8)
    labels = train.labels
    if labels.ndim == 2:
        msg = (
            f"A stream of `negatives` goes with one task, but the labels of `train_dataset` have {labels.shape[1]} "
            "columns. Choose one column, or put the negatives into `train_dataset`."
        )
        raise DataError(msg)
    count = int((labels == 0).sum())
    if count:
        msg = (
            f"Expected positives only in `train_dataset` beside a stream of `negatives`, but {count} of its "
            f"{len(labels)} labels are 0. Put them into the stream, and take the others with torch.utils.data.Subset."
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


def describe(dataset: Any) -> str:
    """Number of examples and a digest of a data set: of subsets' indices and of rows in memory, up to 2^24 numbers.

    Other items may be expensive to read, or random: of a :class:`RowsDataset` of another class 256 rows count.
    """
    if isinstance(dataset, Subset):
        return f"{len(dataset)} examples, {content_digest(np.asarray(dataset.indices))}, of {describe(dataset.dataset)}"
    held = [dataset.features] if isinstance(dataset, ArrayDataset) else [dataset] if isinstance(dataset, Tensor) else []
    held = list(dataset.tensors) if isinstance(dataset, TensorDataset) else held
    count = max(256, _NUMBERS // max(sum(math.prod(one.shape[1:]) for one in held), 1)) if held else 256
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(np.int64))
    if isinstance(dataset, ArrayDataset):
        dataset = copy.copy(dataset)
        dataset.dtype = None  # whatever the model asks for
    found: Any = None
    if isinstance(dataset, RowsDataset):
        found = dataset.rows(rows)
    elif held:
        found = [tensor.index_select(0, torch.from_numpy(rows).to(tensor.device)) for tensor in held]
    return f"{len(dataset)} examples, {content_digest(found)}"
