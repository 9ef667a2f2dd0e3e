"""The data sets of a run, with their labels and their split; each is worked out once, when it is first needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_tpauc.data.core.arrays import RowsDataset
from lightning_tpauc.data.core.datasets import (
    Datasets,
    EvaluatedPart,
    TrainingPart,
    check_same_tasks,
    evaluated_part,
    labels_of_positives,
    numbered,
    sampled_rows,
)
from lightning_tpauc.data.core.fetch import is_random, unaugmented
from lightning_tpauc.data.core.row_values import as_groups, as_weights, row_values
from lightning_tpauc.data.core.splits import (
    group_fold,
    group_holdout,
    stratified_fold,
    stratified_holdout,
    task_fold,
    task_holdout,
)
from lightning_tpauc.data.core.targets import find_targets, label_names
from lightning_tpauc.data.sampler import SampleWeights
from lightning_tpauc.data.seeding import Purpose
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning

#: Fits preprocessing on rows of the training set, and returns transformed data sets.
FitTransforms = Callable[[Datasets, NDArray[np.int64]], Datasets]


class Split(NamedTuple):
    """Which part of the training set validates instead of training.

    Attributes:
        val_fraction: share of the training set.
        num_folds: number of folds.
        fold: number of the fold.
        seed: seed of the split.
        groups: as in :func:`~lightning_tpauc.data.core.row_values.row_values`; no group is in both parts. ``None``: any
            two rows may be parted.
    """

    val_fraction: float | None = None
    num_folds: int | None = None
    fold: int | None = None
    seed: int = 0
    groups: Any = None


class PreparedData:
    """The data sets of a run. It owns their labels, the split and the transformed data sets.

    Args:
        given: data sets as loaders can read them.
        targets: as in :func:`~lightning_tpauc.data.core.targets.find_targets`.
        split: what is split off from the training set for validation.
        fit_transforms: preprocessing to fit on the rows that train; ``None`` leaves the data sets as they are.
        sample_weight: as in :func:`~lightning_tpauc.data.core.row_values.row_values`; ``None`` for none.

    Example:
        >>> prepared = PreparedData(Datasets(train=torch.zeros(4, 2)), [0, 1, 0, 1])
        >>> prepared.training.by_class
        (array([1, 3]), array([0, 2]))
    """

    def __init__(
        self,
        given: Datasets,
        targets: Any = None,
        split: Split | None = None,
        fit_transforms: FitTransforms | None = None,
        sample_weight: Any = None,
    ) -> None:
        self.given, self.targets, self.split, self.sample_weight = given, targets, split or Split(), sample_weight
        self._fit_transforms = fit_transforms
        self._labelled: dict[str, EvaluatedPart] = {}

    @cached_property
    def training(self) -> TrainingPart:
        """Labels of the training set, and which of its rows train.

        Raises:
            ArgumentError: if a part is to be split off from positives alone.
            DataError: if there is no training set.
        """
        if self.given.train is None:
            msg = "There is no training set: pass `train_dataset`, and call `setup('fit')` first."
            raise DataError(msg)
        if self.given.negatives is not None:
            self._refuse_split_of_stream()
            return TrainingPart(labels_of_positives(self.given.train, self.targets), weights=self._weights())
        labels = find_targets(self.given.train, self.targets)
        if labels.ndim == 2:
            return self._training_of_tasks(labels)
        return TrainingPart(labels, *self._parts(labels), weights=self._weights())

    def _parts(
        self, labels: NDArray[np.int8], tasks: tuple[str, ...] | None = None
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Rows that train and rows that validate; ``None`` if all train."""
        split = self.split
        groups = None if split.groups is None else as_groups(row_values(self.given.train, split.groups, "groups"))
        if split.val_fraction is not None:
            if groups is not None:
                return group_holdout(labels, groups, split.val_fraction, split.seed)
            if tasks is not None:
                return task_holdout(labels, split.val_fraction, split.seed, tasks)
            return stratified_holdout(labels, split.val_fraction, split.seed)
        if split.num_folds is not None and split.fold is not None:
            if groups is not None:
                return group_fold(labels, groups, split.num_folds, split.fold, split.seed)
            if tasks is not None:
                return task_fold(labels, split.num_folds, split.fold, split.seed, tasks)
            return stratified_fold(labels, split.num_folds, split.fold, split.seed)
        if groups is not None:
            msg = "`groups` says what a split keeps together: set `val_fraction`, or `num_folds` and `fold`, as well."
            raise ArgumentError(msg)
        return None, None

    def _weights(self) -> NDArray[np.float64] | None:
        given = self.sample_weight
        return None if given is None else as_weights(row_values(self.given.train, given, "sample_weight"))

    @cached_property
    def sample_weights(self) -> SampleWeights | None:
        """The weights by which training examples are drawn; ``None`` if all count alike.

        Raises:
            DataError: if no example of a class has a weight above 0.
        """
        if self.sample_weight is None or self.training.weights is None:
            return None
        pos, neg = (self.training.weights[rows] for rows in self.training.by_class)
        missing = "positive" if not len(pos) else "negative" if not len(neg) and self.given.negatives is None else None
        if missing:
            msg = f"No {missing} training example has a `sample_weight` above 0: both classes are needed."
            raise DataError(msg)
        return SampleWeights(pos, neg if self.given.negatives is None else None)

    def _training_of_tasks(self, labels: NDArray[np.int8]) -> TrainingPart:
        if self.sample_weight is not None:
            msg = (
                f"`sample_weight` weighs the examples of one task, but the labels have {labels.shape[1]} columns. "
                "Leave it out, or pass one column of labels."
            )
            raise ArgumentError(msg)
        names = label_names(self.given.train, self.targets, labels.shape[1]) or numbered(labels.shape[1])
        return TrainingPart(labels, *self._parts(labels, names), names)

    def _refuse_split_of_stream(self) -> None:
        name = "val_fraction" if self.split.val_fraction is not None else "num_folds"
        value = getattr(self.split, name)
        if value is not None:
            msg = (
                f"`{name}={value}` can't split a stream of `negatives`. Pass a `val_dataset` with both classes instead."
            )
            raise ArgumentError(msg)

    @cached_property
    def datasets(self) -> Datasets:
        """The data sets after ``fit_transforms``, if that is given; only then labels and split are needed for them."""
        if self._fit_transforms is None or self.given.train is None:
            return self.given
        return self._fit_transforms(self.given, self.training.rows)

    @property
    def splits_validation(self) -> bool:
        """Whether the validation set is split off from the training set."""
        split = self.split.val_fraction is not None or self.split.num_folds is not None
        return self.given.val is None and self.given.train is not None and split

    @property
    def has_validation(self) -> bool:
        """Whether there is a validation set, of its own or split off."""
        return self.given.val is not None or self.splits_validation

    def require(self, name: str) -> Any:
        """A data set by its field in :class:`~lightning_tpauc.data.Datasets`.

        Raises:
            DataError: if there is none.
        """
        dataset = getattr(self.datasets, name)
        if dataset is None:
            msg = f"There is no data set for this: pass `{name}_dataset`, or return `{name}` from `build_datasets`."
            raise DataError(msg)
        return dataset

    def labelled(self, name: str) -> EvaluatedPart:
        """The validation or test set with its labels. Finding them may take a pass over all items, so it is done once.

        Args:
            name: ``"val"`` or ``"test"``.
        """
        if name not in self._labelled:
            part = evaluated_part(self.require(name), self.targets, f"{name}_dataset")
            if "training" in self.__dict__:
                check_same_tasks(self.training, part, f"{name}_dataset")
            self._labelled[name] = part
        return self._labelled[name]

    @cached_property
    def validation(self) -> EvaluatedPart | None:
        """The validation set, or the part that is split off from the training set; ``None`` if there is neither."""
        if not self.has_validation:
            return None
        if not self.splits_validation:
            return self.labelled("val")
        dataset, rows = self.datasets.train, self.training.held_out
        if unaugmented(dataset) is dataset and is_random(dataset, rows[:4]):
            rank_zero_warn(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give the "
                "data set an attribute `without_augmentation`, a data set with the same rows as they are, or pass a "
                "`val_dataset`.",
                category=TPAUCWarning,
            )
        tasks = self.training.tasks
        return EvaluatedPart(dataset, rows, self.training.labels[rows], None if tasks is None else tasks.names)

    @property
    def num_labels(self) -> int | None:
        """Number of several tasks; ``None`` with one."""
        return None if self.label_names is None else len(self.label_names)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several tasks; ``None`` with one. Labels that were found already come before the training set's."""
        if "training" not in self.__dict__ and (self._labelled or self.given.train is None):
            known = [*self._labelled] or [name for name in ("val", "test") if getattr(self.given, name) is not None]
            part = self.labelled(known[0]) if known else None
            if part is None or part.num_labels is None:
                return None
            return part.label_names or numbered(part.num_labels)
        return None if self.training.tasks is None else self.training.tasks.names

    def scored(self, max_negatives: int | None, seed: int) -> tuple[EvaluatedPart, EvaluatedPart]:
        """The training positives, and the training negatives or a random sample of them, drawn by their weights if any.

        With several tasks, they are the first two parts of :class:`~lightning_tpauc.data.sampler.ScoredRows`.
        """
        labels, train, tasks = self.training.labels, self.datasets.train, self.training.tasks
        if tasks is None:
            positives, negatives = self.training.by_class
            if self.sample_weights is not None and len(negatives):
                count = min(len(negatives), max_negatives or len(negatives))
                negatives = negatives[self.sample_weights.indices(count, seed, Purpose.SCORING).batches(0, 1)[0]]
            parts = positives, sampled_rows(negatives, max_negatives, seed)
        else:
            parts = tasks.scored(max_negatives, seed)[:2]
        pos, neg = (EvaluatedPart(train, rows, labels[rows]) for rows in parts)
        return pos, neg

    def description(self, names: Collection[str], labelled: Collection[str], *, splits: bool) -> dict[str, Any]:
        """Short descriptions, by name, of what all processes of a run must have in common.

        Args:
            names: data sets to describe, by field.
            labelled: those whose labels are compared, too.
            splits: whether to describe the split.
        """
        found: dict[str, Any] = {}
        for name in names:
            dataset = getattr(self.datasets, name)
            found[f"`{name}_dataset`"] = None if dataset is None else describe(dataset)
            if dataset is not None and name in labelled:
                found[f"labels of `{name}_dataset`"] = _digest(self.labelled(name).labels)
        if splits and self.given.train is not None:
            part = self.training
            found["rows of the training positives"] = part.fingerprint
            found["rows that train"], found["rows that validate"] = _digest(part.rows), _digest(part.held_out)
        return found


def describe(dataset: Any) -> str:
    """Number of examples and checksums of a data set, as far as these are cheap.

    Checksums are made of the indices of subsets, and of a few rows in memory. Other items may be expensive to read, or
    random.

    Example:
        >>> describe(TensorDataset(torch.zeros(5, 2))) == describe(TensorDataset(torch.zeros(5, 2)))
        True
    """
    if isinstance(dataset, Subset):
        return f"{len(dataset)} examples, {_digest(np.asarray(dataset.indices))}, of {describe(dataset.dataset)}"
    count = len(dataset)
    rows = np.array(sorted({0, count // 2, count - 1}))
    fetched: tuple[Any, ...] = ()
    if isinstance(dataset, RowsDataset):
        fetched = (dataset.rows(rows),)
    elif isinstance(dataset, (Tensor, TensorDataset)):
        tensors = (dataset,) if isinstance(dataset, Tensor) else dataset.tensors
        fetched = tuple(t[torch.from_numpy(rows).to(t.device)] for t in tensors if t.layout == torch.strided)
    found = [part for part in fetched if isinstance(part, Tensor)]
    shapes = [f"{tuple(part.shape[1:])} {part.dtype}" for part in found]
    return ", ".join([f"{count} examples", *shapes, *(_digest(_bytes(part)) for part in found)])


def _digest(values: NDArray[Any]) -> str:
    """Eight hex digits that depend on an array's shape, dtype and content."""
    array = np.ascontiguousarray(values)
    text = f"{array.shape}{array.dtype.newbyteorder('=')}".encode()
    return hashlib.blake2b(text + array.tobytes(), digest_size=4).hexdigest()


def _bytes(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
