"""The parts of a run: what trains, validates, is tested and predicted, with labels and what else is said of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from lightning_tpauc.data.examples import (
    ArrayDataset,
    Datasets,
    Entries,
    Examples,
    ends_with_label,
    fetcher_for,
    listed,
    names_in,
    unaugmented,
)
from lightning_tpauc.data.labels import are_labels, is_table, scrambled, underlying
from lightning_tpauc.data.sampler import LabelRows, WeightedIndices
from lightning_tpauc.data.seeding import Purpose, seeded_items
from lightning_tpauc.data.splits import Indices, Labels, Names, Split
from lightning_tpauc.errors import ArgumentError, DataError, warn_on_rank_zero
from lightning_tpauc.extras import is_graph

#: So many numbers of data in memory tell these data from others.
_NUMBERS = 2**24
#: Of a set that makes its items one by one, and of a list of others than numbers and texts, so many are read.
_ITEMS = 256
_WHOLE = Split()
_PLAIN = (bool, int, float, complex, str, bytes)


class EvaluatedPart(NamedTuple):
    """Rows of a data set to evaluate, with their labels, ids and numbers of groups."""

    dataset: Any
    rows: NDArray[np.int64]
    labels: NDArray[np.int8]
    entries: Entries = Entries()
    ids: NDArray[Any] | None = None
    groups: NDArray[np.int64] | None = None


class TrainingPart:
    """Labels of the training set, ``(n,)`` or ``(n, K)``, and its rows by what they are for.

    ``parts`` holds the rows that train under ``"train"``, and those that are split off under the names of the parts.
    Rows of weight 0 do not train.
    """

    def __init__(self, labels: Labels, parts: Mapping[str, Indices], names: Names = None, weights: Any = None) -> None:
        self.labels, self.parts, self.weights, rows = labels, parts, weights, parts["train"]
        self.rows = rows if weights is None else rows[weights[rows] > 0]
        #: What is known of several labels; ``None`` with one.
        self.tasks = None if names is None else LabelRows(labels, self.rows, names)
        of_class = (labels.reshape(len(labels), -1)[self.rows] == value for value in (1, 0))
        #: Training rows of the positives and of the negatives. ``index`` counts the positives in this order. With
        #: several labels, rows that are positive, and rows that are negative, for at least one.
        self.by_class = tuple(self.rows[found.any(axis=1)] for found in of_class)

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
        self, examples: Mapping[str, Examples], negatives: Any = None, split: Split = _WHOLE, fit_transforms: Any = None
    ) -> None:
        self.examples, self.negatives, self.split = examples, negatives, split
        self._fit_transforms: Callable[..., Datasets] | None = fit_transforms

    @cached_property
    def training(self) -> TrainingPart:
        """Labels of the training set, and which of its rows train."""
        train = self.examples.get("train")
        if train is None:
            raise DataError("There is no training set: pass `train_dataset`, and call `setup('fit')` first.")
        weights, groups = train.weights, train.groups
        labels = train.labels if self.negatives is None else train.labels_of_positives()
        if self.negatives is None:
            train.refuse_label_among_inputs()
            say_most_are_positive(labels)
            if are_labels(train.given.targets) and (differing := scrambled(train.dataset, labels)):
                text = f"`targets` may be in another order than the items of `train_dataset`: {differing}. "
                warn_on_rank_zero(f"{text}Take both from one list, unless `targets` correct those labels.")
        elif argument := self.split.argument_of("val") or self.split.argument_of("calibration"):
            raise ArgumentError(f"`{argument}` can't split a stream of `negatives`. Pass a `val_dataset`.")
        if weights is not None and labels.ndim == 2:
            raise ArgumentError("`sample_weight` weighs one label or two classes. Leave it out, or choose one label.")
        names = None if labels.ndim == 1 else train.label_names
        return TrainingPart(labels, self.split.cut(labels, groups, names), names, weights)

    @cached_property
    def datasets(self) -> Datasets:
        """The data sets after ``fit_transforms``, if that is given; only then labels and split are needed for them."""
        given = Datasets(**{part: own.dataset for part, own in self.examples.items()}, negatives=self.negatives)
        if self._fit_transforms is None or given.train is None:
            return given
        return self._fit_transforms(given, self.training.rows)

    def has(self, part: str) -> bool:
        """Whether there is such a part, of its own or split off from the training set."""
        return part in self.examples or self.is_split_off(part)

    def is_split_off(self, part: str) -> bool:
        """Whether a part is taken from the training set."""
        return part not in self.examples and "train" in self.examples and self.split.argument_of(part) is not None

    def require(self, part: str) -> Examples:
        """The examples of a part."""
        if part not in self.examples:
            raise DataError(f"There are no such data: pass `{part}_dataset`, or return `{part}` from `build_datasets`.")
        return self.examples[part]

    def labelled(self, part: str, known: Any) -> EvaluatedPart:
        """A part with its labels, of its own or split off; ``known`` is the layout of inputs that the model takes."""
        splits = self.is_split_off(part)
        examples = self.require("train" if splits else part)
        if splits:
            rows, labels, _ = self.training.parts[part], self.training.labels, self._is_random
        else:
            self._refuse_other_labels(examples)
            rows, labels = np.arange(len(examples)), examples.labels
        for other in ("train", "val") if part == "calibration" and not splits else ():
            theirs = self.examples[other].dataset if other in self.examples else ()
            # the content is read only of sets of one size
            if len(theirs) == len(examples) and content_digest(theirs) == content_digest(examples.dataset):
                raise DataError(
                    f"`calibration_dataset` and `{other}_dataset` hold the same examples: a threshold takes some that "
                    "chose nothing. Leave it out, or pass `calibration_fraction` to keep a part of the training set."
                )
        ids, entries = examples.ids(search=False), examples.entries._replace(known=names_in(known, "keys"))
        ids = np.arange(len(examples)) if splits and ids is None else ids
        # nothing is chosen by the groups of a test set, which may lack them, and validation needs none
        absent = {"val": examples.is_searched, "test": examples.lacks}.get(examples.part, lambda _: False)("groups")
        groups = None if absent else examples.groups
        train = self.examples.get("train", examples)
        both = groups is not None and not splits and not any(each.is_searched("groups") for each in (train, examples))
        if both and train.groups is not None and (shared := train.group_names & examples.group_names):
            warn_on_rank_zero(
                f"{len(shared)} groups of `{examples.name}`, such as {min(shared)}, are in `train_dataset` too: what "
                "they tell of new groups is too good. Give each group to one of the two."
            )
        if part == "calibration" and groups is None and train.groups is not None:
            warn_on_rank_zero("All rows of `calibration_dataset` count as independent: name a column as `groups`.")
        named = [None if values is None else values[rows] for values in (ids, groups)]
        plain = unaugmented(dataset := getattr(self.datasets, examples.part))
        if plain is not dataset and (differing := examples.contradicted_by(plain)):
            name = f"`without_augmentation` of `{examples.name}`"
            raise DataError(f"{name} has other labels than that: {differing}. Build both from one list of rows.")
        return EvaluatedPart(dataset, rows, labels[rows], entries, *named)

    def _refuse_other_labels(self, part: Examples) -> None:
        """Raise :class:`DataError` if a part is judged by other labels than those that train, or in another order."""
        train = self.examples.get("train")
        if train is not None and self.negatives is None and (differing := train.contradicted_by_items()):
            raise DataError(
                "`targets` are the labels of `train_dataset` alone, and they are not what its items have: "
                f"{differing}. Pass a name or function, such as `targets=lambda label: label == 1`, for all parts."
            )
        inner, other = (underlying(each.dataset)[0] for each in (part, train or part))
        number, theirs = (getattr(each, "class_to_idx", {}) for each in (other, inner))
        moved = [name for name in theirs if number.get(name, theirs[name]) != theirs[name]]
        if moved and not any(getattr(each, "target_transform", None) for each in (inner, other)):
            raise DataError(
                f"`{part.name}` numbers {moved[0]!r} {theirs[moved[0]]}, and `train_dataset` {number[moved[0]]}. Give "
                "both the same folders, empty ones for what lacks: `ImageFolder(..., allow_empty=True)`."
            )
        if "training" in self.__dict__ and part.label_names != self.label_names:
            names, found = self.label_names or ("one label",), part.label_names or ("one label",)
            if found != tuple(map(str, range(len(names)))):  # labels without names stand in their order
                raise DataError(
                    f"Expected `{part.name}` to have the labels of `train_dataset` in the same order, "
                    f"{listed(names)}, but it has {listed(found)}. Choose the same columns."
                )

    @cached_property
    def _is_random(self) -> bool:
        """Whether what is split off from the training set is augmented, which is said when it is first asked for."""
        dataset, rows = self.datasets.train, self.training.parts["train"][:4].tolist()
        items = getattr(fetcher_for(dataset), "items", None)  # of what is read item by item
        differ = items and len({content_digest(items(rows, step)) for step in (0, 1)}) > 1
        if differ and unaugmented(dataset) is dataset:
            warn_on_rank_zero(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give it "
                "an attribute `without_augmentation`, a data set of the same rows, or pass a `val_dataset`."
            )
        return bool(differ)

    def predicted(self, known: Any) -> EvaluatedPart:
        """The data to predict on, or the part that is split off for validation; labels are left out and not read."""
        if "predict" not in self.examples and self.is_split_off("val"):
            part, ids = self.labelled("val", known), self.examples["train"].ids(search=True)
            return part if ids is None else part._replace(ids=ids[part.rows])
        examples, dataset = self.require("predict"), unaugmented(self.datasets.predict)
        with seeded_items(0, 0):
            labelled = isinstance(dataset, ArrayDataset) or ends_with_label(dataset[0], known)
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
        positives, negatives = training.by_class if tasks is None else (tasks.some_positive, tasks.others)
        if training.weights is not None and len(negatives):
            drawn = WeightedIndices(training.weights[negatives], len(negatives), seed, Purpose.SCORING)
            negatives = negatives[drawn.batches(0, 1)[0]]
        make = partial(EvaluatedPart, self.datasets.train, entries=self.examples["train"].entries)
        return make(positives, training.labels[positives]), make(negatives, training.labels[negatives])


def say_most_are_positive(
    labels: Labels, what: str = "labels of `train_dataset` are 1", remedy: str = "targets=lambda label: label == 0"
) -> None:
    """Warn where the class to be found is not the rarer one, of any label."""
    columns = labels.reshape(len(labels), -1)
    shares = (columns == 1).sum(axis=0) / np.maximum((columns >= 0).sum(axis=0), 1)
    if (shares > 0.5).all():
        text = f"{100 * shares.min():.0f} % of the {what}, the class to be found. If it should be the other one, "
        warn_on_rank_zero(f"{text}pass `{remedy}`.")


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
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        value = value.detach().cpu().to_dense().contiguous()
        # as bytes, since NumPy lacks some dtypes; one number may come with a stride of 0
        value = value.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.shape}{value.dtype.str}".encode())
        digest.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
    elif value is None or isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
    else:
        for part in _parts(value, reseed):
            _add(digest, part, reseed)


def _parts(value: Any, reseed: Callable[[int], None]) -> Iterable[Any]:
    """What a value consists of."""
    if is_table(value):
        return [[str(name) for name in value.columns], *(value[name].to_numpy() for name in value.columns)]
    if hasattr(value, "tocsr"):  # a sparse matrix
        rows = value.tocsr()
        return [rows.shape, rows.indptr, rows.indices, rows.data]
    if isinstance(value, (TensorDataset, Subset)):
        return value.tensors if isinstance(value, TensorDataset) else underlying(value)
    if isinstance(value, Mapping) or is_graph(value):
        return [entry for pair in (value.to_dict() if is_graph(value) else value).items() for entry in pair]
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
    inner, rows = underlying(dataset)
    held: Any = inner.tensors if isinstance(inner, TensorDataset) else ()
    held = [inner.features] if isinstance(inner, ArrayDataset) else held
    step = 1 + sum(math.prod(array.shape) for array in held) // _NUMBERS
    return f"{len(dataset)} examples, {content_digest(rows, [array[::step] for array in held])}"
