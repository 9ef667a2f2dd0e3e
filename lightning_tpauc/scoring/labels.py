"""Labels: which ones the data of a run have, what is asked of each, and where those of a batch are."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_tpauc.algorithms import Algorithm, Task
from lightning_tpauc.data.batch import EvalBatch
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Entries, has_label, listed, names_in
from lightning_tpauc.data.labels import NAMES, NOTHING, entry_of
from lightning_tpauc.data.loader import PosNegLoader
from lightning_tpauc.errors import ArgumentError, DataError, UnsupportedError, warn_on_rank_zero
from lightning_tpauc.extras import is_graph
from lightning_tpauc.functional.checks import check_rectangle, require_range
from lightning_tpauc.scoring.forward import ScoringModel

#: Rectangle and weight of labels by their names or positions.
LabelSettings = Mapping[str | int, Mapping[str, float]]
_OPTIONS = {"min_tpr", "max_fpr", "weight"}


class Labels(NamedTuple):
    """The K labels of a model with K outputs: what the data call them, and what is asked of each.

    Example:
        >>> labels = Labels(("liver", "x/y"), {0: {"max_fpr": 0.1}})
        >>> labels.keys, labels.tasks([3, 5])[0].max_fpr
        (('liver', 'x_y'), 0.1)
    """

    names: tuple[str, ...]
    #: ``min_tpr``, ``max_fpr`` and ``weight`` of labels by position, where not the algorithm's and 1.
    settings: Mapping[int, Mapping[str, float]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names in metrics and in columns of files: letters, digits, ``-`` and ``_`` only, and no two alike."""
        plain = [re.sub(r"[^\w-]+", "_", name).strip("_") for name in self.names]
        plain = [f"label_{name}" if not name or name.startswith("dataloader_idx") else name for name in plain]
        return tuple(plain if len(set(plain)) == len(plain) else (f"{name}_{k}" for k, name in enumerate(plain)))

    def tasks(self, num_positives: Sequence[int]) -> list[Task]:
        """What :meth:`~lightning_tpauc.algorithms.Algorithm.setup` takes."""
        return [Task(count, **self.settings.get(k, {})) for k, count in enumerate(num_positives)]

    def rectangles(self, algorithm: Algorithm) -> list[tuple[float, float]]:
        """``(min_tpr, max_fpr)`` of each: its own, or the algorithm's."""
        own = [self.settings.get(k, {}) for k in range(len(self.names))]
        return [(o.get("min_tpr", algorithm.min_tpr), o.get("max_fpr", algorithm.max_fpr)) for o in own]


def rectangles_of(module: Any) -> list[tuple[float, float]]:
    """``(min_tpr, max_fpr)`` of each output of a module."""
    labels, algorithm = module.trained_labels, module.algorithm
    return [(algorithm.min_tpr, algorithm.max_fpr)] if labels is None else labels.rectangles(algorithm)


# -------------------------------------------------------------------- what is asked of each label


def check_label_settings(given: Any) -> LabelSettings:
    """Check the argument ``tasks``; the names are compared with the data's when these are known.

    Example:
        >>> check_label_settings({"liver": {"max_fpr": 0.1, "weight": 2}})
        {'liver': {'max_fpr': 0.1, 'weight': 2.0}}
    """
    given = {} if given is None else given
    example = "{'liver': {'min_tpr': 0.8, 'max_fpr': 0.2, 'weight': 2.0}}"
    each = given.values() if isinstance(given, Mapping) else [None]
    if not all(isinstance(own, Mapping) and {*own} <= _OPTIONS for own in each):
        raise ArgumentError(f"Expected `tasks` to be options by label, such as {example}, but got {given!r}.")
    label: Any = None
    try:
        for label in given:
            check_rectangle(given[label].get("min_tpr", 0.0), given[label].get("max_fpr", 1.0))
            require_range("weight", given[label].get("weight", 1.0), 0.0)
    except ArgumentError as error:
        raise ArgumentError(f"`tasks` of {label!r}: {error}") from None
    return {label: {name: float(value) for name, value in own.items()} for label, own in given.items()}


def by_position(given: LabelSettings, names: tuple[str, ...]) -> dict[int, Mapping[str, float]]:
    """Settings by the positions of their labels. Text may be a position, too: a command line's keys are text.

    Example:
        >>> by_position({"lung": {"weight": 2.0}}, ("liver", "lung"))
        {1: {'weight': 2.0}}
    """
    places = {str(k): k for k in range(len(names))} | {name: k for k, name in enumerate(names)}
    for label in given:
        # a number that is a position, and the name of another label, could mean either
        if str(label) not in places or (isinstance(label, int) and places[str(label)] != label):
            there = f"the data's labels are {listed(names) or 'not several'}"
            raise ArgumentError(f"`tasks` has options of {label!r}, but {there}. Pass a name as text.")
    return {places[str(label)]: own for label, own in given.items()}


# -------------------------------------------------------------------- the labels of a run


def labels_of_data(source: Any, given: LabelSettings, num_positives: Any = None) -> Labels | None:
    """The labels of a data module or loader, with the settings that a user gave; ``None`` for data with one label.

    ``num_positives`` tells by its length how many there are where the data do not.
    """
    names = tuple(map(str, range(len(num_positives)))) if isinstance(num_positives, Sequence) else None
    if isinstance(source, (PosNegDataModule, PosNegLoader)):  # others may call classes labels
        names = source.label_names
    if names is None and not given:
        return None
    return Labels(tuple(names or ()), by_position(given, tuple(names or ())))


def labels_to_evaluate(module: ScoringModel, trainer: Trainer, stage: str) -> Labels | None:
    """The labels of the data that a run begins with; refused where the module, or its algorithm, can't have them."""
    # `trainer.datamodule` may be that of an earlier run
    source: Any = getattr(trainer, f"{TrainerFn(stage).value}_loop")._data_source.instance
    known: Labels | None = module.trained_labels
    settings = module.label_settings
    if stage == TrainerFn.FITTING:
        labels = labels_of_data(source, settings, getattr(module, "num_positives", None))
        if labels is not None and not module.algorithm.takes_tasks:
            raise UnsupportedError(
                f"{type(module.algorithm).__name__} trains one label, but the data have {len(labels.names)}: "
                f"{listed(labels.names)}. Take STACO, SOTA, SOTAs or CrossEntropy, or pass one column of labels."
            )
        if known and labels and known.names != labels.names and {*known.names} == {*labels.names}:
            text = f"The model's outputs were trained for the labels {listed(known.names)}, now {listed(labels.names)}"
            warn_on_rank_zero(f"{text}. Pass the columns in the former order.")
        return labels
    # a search for labels may take a pass over the data
    if stage == TrainerFn.PREDICTING or (known is None and module.knows_labels):
        return known
    found = None
    if isinstance(source, PosNegDataModule):
        with suppress(ArgumentError, DataError):  # nobody needs these labels, or their loader raises the same error
            found = None if source.num_labels is None else labels_of_data(source, settings)
    if known is None or found is None:
        return found or known
    # arrays have no names: their columns stand for the labels in order, as those of a `val_dataset` do
    if found.names not in (known.names, tuple(map(str, range(len(known.names))))):
        trained = f"The model was trained for the labels {listed(known.names)}"
        raise ArgumentError(
            f"{trained}, but the data's are {listed(found.names)}. Pass the same columns in the same order."
        )
    return known


# -------------------------------------------------------------------- the labels of a batch


def known_layout(module: ScoringModel, batch: Any) -> Any:
    """What the inputs consist of, which tells inputs from labels in batches of other loaders than ours."""
    datamodule: Any = getattr(module._trainer, "datamodule", None)
    if module.input_layout is None and not isinstance(batch, EvalBatch) and hasattr(datamodule, "input_layout"):
        module.input_layout = datamodule.input_layout()  # before the first step of a training
    return module.input_layout


def inputs_and_target(batch: Any, known: Any = None, num_labels: int | None = None) -> tuple[Any, Tensor]:
    """Inputs and integer labels, ``(N,)`` or ``(N, K)`` with -1 for what was not measured, of a batch to evaluate.

    Batches are an :class:`~lightning_tpauc.EvalBatch`, or what the loader of a data set gives: tuples with the label as
    their last entry, or mappings or graphs of PyG with the label in one of the usual places. Without ``known``, the
    layout of the inputs that the model was trained on, only pairs are unambiguous.

    Example:
        >>> import torch
        >>> inputs_and_target([torch.zeros(2, 3), torch.tensor([[1.0], [0.0]])])[1]
        tensor([1, 0])
    """
    if isinstance(batch, EvalBatch):
        return batch.inputs, _integers(batch.target, num_labels, may_miss=True)
    inputs, label = _taken_apart(batch, known)
    if not isinstance(label, Tensor):
        got, remedy = type(batch).__name__, "Let the data set return such pairs, or give it to PosNegDataModule."
        raise ArgumentError(f"Expected batches (inputs, target) to validate and test on, but got a {got}. {remedy}")
    return inputs, _integers(label, num_labels, may_miss=num_labels is not None)


def inputs_to_predict(batch: Any, known: Any = None) -> Any:
    """Inputs of a batch to predict on, which may hold labels or not.

    Without ``known`` the second of two entries is a label if it holds one number per example.

    Example:
        >>> import torch
        >>> ids, mask, y = torch.zeros(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
        >>> [len(inputs_to_predict(batch, ["tensor", "tensor"])) for batch in ((ids, mask), (ids, mask, y))]
        [2, 2]
    """
    return _taken_apart(batch, known, may_lack=True)[0]


def _taken_apart(batch: Any, known: Any, *, may_lack: bool = False) -> tuple[Any, Any]:
    """Inputs and label of a batch; ``None`` where there is no label, as ``may_lack`` allows in tuples."""
    keys = names_in(known, "keys")
    entries = Entries(tuple(name for name in NAMES if name not in (keys or ())), known=keys)
    if not isinstance(batch, (tuple, list)):
        named = isinstance(batch, Mapping) or is_graph(batch)
        found = [entry_of(batch, [key]) for key in entries.named] if named else []
        return entries.inputs_of(batch), next((label for label in found if label is not NOTHING), None)
    if len(batch) == 1:
        return entries.inputs_of(batch), None
    labelled = has_label(batch, known)
    if labelled is None and len(batch) == 2 and isinstance(batch[1], Tensor):
        labelled = True if not may_lack or _one_per_example(batch[1]) else None
    if labelled is None or not (labelled or may_lack):
        trained = "what was trained on is unknown" if known is None else f"the model was trained on inputs {known}"
        expected = "inputs or (inputs, target)" if may_lack else "(inputs, target)"
        raise ArgumentError(
            f"Expected batches {expected}, but got {len(batch)} entries, and {trained}: it can't be told which is "
            "the label. Let the data set return pairs, several inputs as a tuple of their own: `((a, b), target)`."
        )
    return entries._replace(labelled=labelled).inputs_of(batch), batch[-1] if labelled else None


def _one_per_example(target: Tensor) -> bool:
    return target.ndim > 0 and target.numel() == len(target)


def _integers(target: Tensor, num_labels: int | None, *, may_miss: bool) -> Tensor:
    """Labels 0 and 1, ``(N,)`` or ``(N, K)``, as integers; -1 where nothing was measured."""
    fits = _one_per_example(target) if num_labels is None else target.ndim == 2 and target.shape[1] == num_labels
    if not fits:
        expected = "one label" if num_labels is None else f"{num_labels} labels"
        asked = f"Expected {expected} per example in the batches, as the model was trained for"
        raise ArgumentError(
            f"{asked}, but got shape {tuple(target.shape)}. Evaluate on the same columns, by a PosNegDataModule."
        )
    target = target.detach().reshape(len(target), *([] if num_labels is None else [num_labels]))
    known = (target == 0) | (target == 1)
    wrong = ~known & ~((target.isnan() | (target == -1)) & may_miss)
    if bool(wrong.any()):
        found, highest = target[wrong][0].item(), target.max().item()
        chosen = f"y == {highest:g}" if float(found).is_integer() else "y > 0.5"
        also = ", or nan or -1 for what was not measured," if may_miss else ""
        raise ArgumentError(
            f"Expected labels 0 and 1{also} in the batches, but found {found:g}. Pass, for instance, ({chosen})."
        )
    return target.where(known, -1).long()
