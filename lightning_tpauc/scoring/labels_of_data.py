"""Which labels the data of a run have, and whether a model is for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from lightning_tpauc.data.core.datasets import numbered
from lightning_tpauc.data.core.loader import PosNegLoader
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning, UnsupportedError
from lightning_tpauc.scoring.labels import Labels, LabelSettings, by_position, listed

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.scoring.scoring_module import ScoringModule

__all__ = ("labels_of_data", "labels_to_evaluate")


def labels_of_data(source: Any, given: LabelSettings, num_positives: Any = None) -> Labels | None:
    """The labels of training data, with the settings that a user gave; ``None`` for data with one label.

    Args:
        source: a data module or a loader, of ours or another one.
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


def labels_to_evaluate(module: ScoringModule, trainer: Trainer, stage: str) -> Labels | None:
    """The labels of the data that a run begins with.

    Args:
        module: which knows the labels that it was trained for.
        trainer: whose data are set up.
        stage: ``"fit"``, where the training data say, or another one, where the module's have to be the data's.

    Raises:
        ArgumentError: if the data have other labels than the module.
        UnsupportedError: if the algorithm trains one label, and the training data have several.
    """
    source = _source(trainer, stage)
    known, settings = module.trained_labels, module.label_settings
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
    except (ArgumentError, DataError):  # labels that nobody needs, or whose loader will say the same
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
        f"The outputs of the model were those of the labels {listed(known.names)}, and now train for "
        f"{listed(labels.names)}. Pass the columns in the same order to train on what they learnt.",
        category=TPAUCWarning,
    )
