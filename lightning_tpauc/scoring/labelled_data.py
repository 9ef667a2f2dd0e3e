"""Which labels the data of a run have, and which entries of a batch are inputs and which is the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_tpauc.data.batch import EvalBatch
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Entries, has_label, names_in
from lightning_tpauc.data.labels import NAMES, NOTHING, entry_of
from lightning_tpauc.data.loader import PosNegLoader
from lightning_tpauc.data.parts import numbered
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning, UnsupportedError
from lightning_tpauc.extras import is_graph
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.scoring.labels import Labels, LabelSettings, by_position, listed


def inputs_and_target(batch: Any, known: Any = None, num_labels: int | None = None) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch for validation or test.

    Args:
        batch: an :class:`~lightning_tpauc.EvalBatch`, or what the loader of a data set gives: tuples with the label as
            their last entry, as in the training set, ``(inputs, target)`` or ``(a, b, target)``; or mappings or graphs
            of PyG with the label in one of the usual places. The target has N entries, which may be the floats 0.0 and
            1.0.
        known: the :func:`~lightning_tpauc.data.examples.layout` of the inputs that the model was trained on.
            Without it only pairs are unambiguous.
        num_labels: K, if there are several labels. The target is then ``(N, K)``, and holds nan or -1 where nothing was
            measured.

    Returns:
        The inputs, several of them as a tuple, and an integer tensor ``(N,)``, or ``(N, K)`` with -1 for what was not
        measured.

    Raises:
        ArgumentError: if the batch has another form, if it is unknown which entry is the label, or if a label is
            neither 0 nor 1.

    Example:
        >>> import torch
        >>> inputs_and_target([torch.zeros(2, 3), torch.tensor([[1.0], [0.0]])])[1]
        tensor([1, 0])
    """
    if isinstance(batch, EvalBatch):
        _check_number(batch.target, num_labels)
        return batch.inputs, batch.target
    if isinstance(batch, Mapping) or is_graph(batch):
        entries = _entries(known)
        label = next((found for key in entries.named if (found := entry_of(batch, [key])) is not NOTHING), None)
        if isinstance(label, Tensor):
            return entries.inputs_of(batch), _labels(label, num_labels)
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[-1], Tensor):
        kinds = f" of {', '.join(type(part).__name__ for part in batch)}" if isinstance(batch, (tuple, list)) else ""
        msg = (
            f"Expected batches (inputs, target) to validate and test on, but got a {type(batch).__name__}{kinds}. Let "
            "the data set return such pairs, or give it to PosNegDataModule, which takes labels under any name."
        )
        raise ArgumentError(msg)
    labelled = has_label(batch, known)
    if labelled is False or (labelled is None and len(batch) > 2):
        _refuse_entries(batch, known, "(inputs, target)")
    return _entries(known).inputs_of(batch), _labels(batch[-1], num_labels)


def inputs_to_predict(batch: Any, known: Any = None) -> Any:
    """Inputs of a batch to predict on, which may hold labels or not; arguments as in :func:`inputs_and_target`.

    Without ``known`` the second of two entries is a label if it holds one number per example.

    Raises:
        ArgumentError: if it is unknown whether the last entry is a label.

    Example:
        >>> import torch
        >>> ids, mask, y = torch.zeros(2, 5), torch.ones(2, 5), torch.tensor([0, 1])
        >>> [len(inputs_to_predict(batch, ["tensor", "tensor"])) for batch in ((ids, mask), (ids, mask, y))]
        [2, 2]
    """
    if not isinstance(batch, (tuple, list)):
        return _entries(known).inputs_of(batch)
    if len(batch) == 1:
        return batch[0]
    labelled = has_label(batch, known)
    if labelled is None and not (len(batch) == 2 and isinstance(batch[1], Tensor) and _one_per_example(batch[1])):
        _refuse_entries(batch, known, "inputs or (inputs, target)")
    return _entries(known)._replace(labelled=labelled is not False).inputs_of(batch)


def _entries(known: Any) -> Entries:
    keys = names_in(known, "keys")
    return Entries(tuple(name for name in NAMES if name not in (keys or ())), known=keys)


def _refuse_entries(batch: Any, known: Any, expected: str) -> None:
    trained = "what was trained on is unknown" if known is None else f"the model was trained on inputs {known}"
    msg = (
        f"Expected batches {expected}, but got {len(batch)} entries, and {trained}: nobody knows which of them is the "
        "label. Let the data set return pairs, several inputs as a tuple of their own: `((a, b), target)`."
    )
    raise ArgumentError(msg)


def _one_per_example(target: Tensor) -> bool:
    return target.ndim > 0 and target.numel() == len(target)


def _check_number(target: Tensor, num_labels: int | None) -> None:
    found = target.shape[1] if target.ndim > 1 else None
    if found != num_labels:
        data, model = ("one label" if count is None else f"{count} labels" for count in (found, num_labels))
        msg = f"The data have {data}, but the model was trained for {model}: evaluate it on the same columns."
        raise ArgumentError(msg)


def _labels(target: Tensor, num_labels: int | None) -> Tensor:
    """Labels 0 and 1 as integers; of several labels -1 where nothing was measured."""
    fits = _one_per_example(target) if num_labels is None else target.ndim == 2 and target.shape[1] == num_labels
    if not fits:
        expected = "one label" if num_labels is None else f"{num_labels} labels"
        msg = (
            f"Expected {expected} per example as the last entry of the batches, but got shape {tuple(target.shape)}. "
            "A model knows how many labels there are once it was trained, or from a PosNegDataModule."
        )
        raise ArgumentError(msg)
    target = target.detach().reshape(len(target), *([] if num_labels is None else [num_labels]))
    known = (target == 0) | (target == 1)
    missing = (target.isnan() | (target == -1)) & (num_labels is not None)
    if not bool((known | missing).all()):
        found = target[~(known | missing)][0].item()
        chosen = (
            "y > 0" if found < 0 else "y > 0.5" if not float(found).is_integer() else f"y == {target.max().item():g}"
        )
        several = ", or nan or -1 for what was not measured," if num_labels is not None else ""
        msg = (
            f"Expected labels 0 and 1{several} in the batches, but found {found:g}. Pass, for instance, ({chosen}) as "
            "labels, and leave out unlabelled examples."
        )
        raise ArgumentError(msg)
    return target.where(known, -1).long()


def labels_of_data(source: Any, given: LabelSettings, num_positives: Any = None) -> Labels | None:
    """The labels of training data, with the settings that a user gave; ``None`` for data with one label.

    Args:
        source: a data module or a loader, ours or any other.
        given: what came as ``tasks``, checked.
        num_positives: what came as ``num_positives``: a sequence tells the number of labels where the data do not.

    Raises:
        ArgumentError: if settings are of labels that the data do not have.
    """
    ours = isinstance(source, (PosNegDataModule, PosNegLoader))  # others may call classes labels
    count = source.num_labels if ours else None
    if not ours and isinstance(num_positives, Sequence):
        count = len(num_positives)
    if count is None:
        if given:
            msg = (
                f"`tasks` has options of {listed(given)}, but the data have one label. Set `min_tpr` and `max_fpr` of "
                "the algorithm, or pass data with a column of labels for each."
            )
            raise ArgumentError(msg)
        return None
    names = (source.label_names if ours else None) or tuple(map(str, range(count)))
    return Labels(tuple(names), by_position(given, tuple(names)))


def labels_to_evaluate(module: ScoringModel, trainer: Trainer, stage: str) -> Labels | None:
    """The labels of the data that a run begins with.

    Raises:
        ArgumentError: if the data have other labels than the module.
        UnsupportedError: if the algorithm trains one label, and the training data have several.
    """
    source = _source(trainer, stage)
    known: Labels | None = module.trained_labels
    settings = module.label_settings
    if stage == TrainerFn.FITTING:
        labels = labels_of_data(source, settings, getattr(module, "num_positives", None))
        if labels is not None and not module.algorithm.takes_tasks:
            msg = (
                f"{type(module.algorithm).__name__} trains one label, but the data have {len(labels.names)}: "
                f"{listed(labels.names)}. Take STACO, SOTA, SOTAs or CrossEntropy, or pass one column of labels."
            )
            raise UnsupportedError(msg)
        _say_reordered(known, labels)
        return labels
    if stage == TrainerFn.PREDICTING or (known is None and module.knows_labels):
        return known  # without a search for labels, which may take a pass over the data
    if not isinstance(source, PosNegDataModule):
        return known
    try:
        there = source.num_labels is not None
    except (ArgumentError, DataError):  # nobody needs these labels, or their loader will raise the same error
        there = False
    found = labels_of_data(source, settings) if there else None
    if known is None or found is None:
        return found or known
    # arrays have no names: their columns stand for the labels in order, as those of a `val_dataset` do
    if found.names not in (known.names, numbered(len(known.names))):
        msg = (
            f"The model was trained for the labels {listed(known.names)}, but the data's are {listed(found.names)}. "
            "Pass the same columns in the same order."
        )
        raise ArgumentError(msg)
    return known


def _source(trainer: Trainer, stage: str) -> Any:
    """What the data of this run come from; ``trainer.datamodule`` may be that of an earlier run."""
    loops: dict[str, Any] = {
        TrainerFn.FITTING: trainer.fit_loop,
        TrainerFn.VALIDATING: trainer.validate_loop,
        TrainerFn.TESTING: trainer.test_loop,
        TrainerFn.PREDICTING: trainer.predict_loop,
    }
    return loops[stage]._data_source.instance


def _say_reordered(known: Labels | None, labels: Labels | None) -> None:
    if known is None or labels is None or known.names == labels.names or {*known.names} != {*labels.names}:
        return
    rank_zero_warn(
        f"The model's outputs were trained for the labels {listed(known.names)}, but are now trained for "
        f"{listed(labels.names)}. Pass the columns in the former order to build on what each output has learnt.",
        category=TPAUCWarning,
    )
