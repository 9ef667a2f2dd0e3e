"""The data sets that users give, and the rows and labels that loaders take from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from lightning_tpauc.data.core.arrays import ArrayDataset, RowsDataset, as_features, warn_of_another_order
from lightning_tpauc.data.core.subset_indices import check_positions
from lightning_tpauc.data.core.targets import (
    as_array,
    binary_labels,
    find_targets,
    label_names,
    label_of_item,
    stored_targets,
)
from lightning_tpauc.data.core.tree_utils import has_label, layout, without_label
from lightning_tpauc.data.sampler import TaskRows
from lightning_tpauc.data.seeding import Purpose, permute, seeded_items
from lightning_tpauc.errors import ArgumentError, DataError


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


class TrainingPart:
    """Labels of the training set; the rows that train, and the rows that validate.

    Args:
        labels: int8 array ``(n,)`` of 0 and 1; ``(n, K)`` with several tasks, with -1 where nothing was measured.
        rows: int64 array of the rows that train; all if ``None``.
        held_out: int64 array of the rows that validate.
        label_names: names of several tasks; their numbers from 0 on if ``None``.
        weights: float array ``(n,)``: the weight of each row. Rows of weight 0 do not train. ``None`` weighs all alike.
    """

    def __init__(
        self,
        labels: NDArray[np.int8],
        rows: NDArray[np.int64] | None = None,
        held_out: NDArray[np.int64] | None = None,
        label_names: tuple[str, ...] | None = None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.labels, self.weights = labels, weights
        self.rows = np.arange(len(labels), dtype=np.int64) if rows is None else rows
        if weights is not None:
            self.rows = self.rows[weights[self.rows] > 0]
        self.held_out = np.empty(0, dtype=np.int64) if held_out is None else held_out
        #: What is known of several tasks; ``None`` with one.
        self.tasks: TaskRows | None = None
        if labels.ndim == 2:
            self.tasks = TaskRows(labels, self.rows, label_names or numbered(labels.shape[1]))
            self.by_class = self.tasks.some_positive, self.tasks.negatives
        else:
            #: Training rows of the positives and of the negatives. ``index`` counts the positives in this order. With
            #: several tasks, rows that are positive, and rows that are negative, for at least one task.
            self.by_class = self.rows[labels[self.rows] == 1], self.rows[labels[self.rows] == 0]

    @property
    def num_positives(self) -> Any:
        """Number of training positives; with several tasks, a tuple with the number of each task."""
        return len(self.by_class[0]) if self.tasks is None else self.tasks.num_positives

    def scores_of_tasks(
        self, pos: Tensor, others: Tensor, max_negatives: int | None, seed: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Scores of the positives and negatives of each of several tasks.

        Raises:
            ArgumentError: if there is one task.
        """
        if self.tasks is None:
            msg = "The labels are those of one task: the scores of the two loaders are those of its two classes."
            raise ArgumentError(msg)
        return self.tasks.cut_scores(self.tasks.scored(max_negatives, seed), pos, others)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that identify which examples the positives 0 .. n+ - 1 are; with several tasks, all labels.

        Weights, if any, are part of it.
        """
        digest = hashlib.blake2b(f"{len(self.labels)}:".encode(), digest_size=8)
        if self.tasks is None:
            digest.update(self.by_class[0].astype("<i8").data)
        else:
            digest.update(f"{self.labels.shape[1]}:".encode() + self.tasks.rows.astype("<i8").tobytes())
            digest.update(self.labels[self.tasks.rows].tobytes())
        if self.weights is not None:
            digest.update(self.weights[self.rows].astype("<f8").data)
        return digest.hexdigest()


def numbered(count: int) -> tuple[str, ...]:
    """The names of tasks that have none.

    Example:
        >>> numbered(3)
        ('0', '1', '2')
    """
    return tuple(map(str, range(count)))


def check_same_tasks(training: TrainingPart, part: EvaluatedPart, name: str) -> None:
    """Raise :class:`DataError` if a data set to evaluate has labels of other tasks than the training set."""
    names = () if training.tasks is None else training.tasks.names
    own, other = len(names) or 1, part.num_labels or 1
    if own != other:
        msg = (
            f"Expected as many labels per example in `{name}` as in `train_dataset`, but it has {other}, and that has "
            f"{own}. Choose the same columns."
        )
        raise DataError(msg)
    if part.label_names is None or names in (part.label_names, numbered(own)):
        return
    wrong = next(pair for pair in zip(part.label_names, names, strict=True) if pair[0] != pair[1])
    msg = (
        f"Expected the same labels in the same order in `{name}` and `train_dataset`, but it has {wrong[0]!r} where "
        f"that has {wrong[1]!r}. Choose the same columns in the same order."
    )
    raise DataError(msg)


def labels_of_positives(dataset: Any, targets: Any) -> NDArray[np.int8]:
    """Labels of a training set whose negatives are a stream: all 1, with or without stored labels.

    Raises:
        DataError: if it has negatives.

    Example:
        >>> labels_of_positives(ArrayDataset(np.zeros((2, 3)), [1, 1]), None)
        array([1, 1], dtype=int8)
    """
    try:
        if targets is None and stored_targets(dataset) is None:
            label_of_item(dataset[0])
    except DataError:  # inputs alone
        return np.ones(len(dataset), dtype=np.int8)
    labels = find_targets(dataset, targets)
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


def sampled_rows(rows: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """A sorted random sample of sorted rows; all rows if ``count`` is ``None`` or not smaller than their number.

    Example:
        >>> len(sampled_rows(np.arange(10), 4, seed=0))
        4
    """
    if count is None or count >= len(rows):
        return rows
    return rows[np.sort(permute(np.arange(count), np.array(0), len(rows), seed=seed, purpose=Purpose.SCORING))]


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
        inputs: returns the :func:`~lightning_tpauc.data.core.tree_utils.layout` of the inputs that the model was
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
    """The :func:`~lightning_tpauc.data.core.tree_utils.layout` of the inputs of a training set, from its first item.

    Example:
        >>> training_layout([("some words", 3.0, 1)])
        ['words', 'tensor']
    """
    if isinstance(dataset, (Tensor, RowsDataset)):
        return "tensor"
    with seeded_items(0, 0):
        item = dataset[0]
    return layout(without_label(item) if isinstance(item, (tuple, list)) and len(item) > 1 else item)
