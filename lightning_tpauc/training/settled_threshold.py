"""The threshold of the weights that training leaves, and what checkpoints say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info

from lightning_tpauc.scoring.decision_threshold import DecisionThreshold
from lightning_tpauc.scoring.operating_point import OperatingPoint, OperatingPoints, restored_point

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.training.trained_module import TrainedModule

__all__ = ("record_operating_point", "recorded_operating_point", "settle_threshold")

#: In every checkpoint of a module that has one.
OPERATING_POINT = "lightning_tpauc_operating_point"


def settle_threshold(module: TrainedModule, trainer: Trainer, *, rescore: bool) -> None:
    """See to it that the operating point is that of the weights that training left.

    Args:
        module: holds the result of its training.
        trainer: that trained it.
        rescore: whether something else than the weights has changed since they were validated.
    """
    state, best = module.training_state, module.best
    step = state.batches_seen
    if best is not None and best.weights:
        module.operating_point, step = best.operating_point, best.step
    choosers = [c for c in trainer.callbacks if isinstance(c, DecisionThreshold)]  # type: ignore[attr-defined]
    point = module.operating_point
    if choosers and trainer.enable_validation and trainer.val_dataloaders is not None:
        if rescore or point is None or point.step != step:  # the last steps were not validated
            choosers[0].choose_again(trainer, module)
        choosers[0].say_what_fell_short(module)
    if choosers and choosers[0].renews and module.operating_point is None:
        rank_zero_info(
            "DecisionThreshold chose no threshold: there are no validation data with both classes. Pass `val_dataset` "
            "or `val_fraction` to PosNegDataModule, or run `Trainer.validate` on such data."
        )


def record_operating_point(point: OperatingPoint | OperatingPoints | None, checkpoint: dict[str, Any]) -> None:
    """Write down what the published weights decide by, if there is anything."""
    if point is not None:
        checkpoint[OPERATING_POINT] = point.state_dict()


def recorded_operating_point(checkpoint: dict[str, Any]) -> OperatingPoint | OperatingPoints | None:
    """What :func:`record_operating_point` wrote; ``None`` if it wrote nothing."""
    state = checkpoint.get(OPERATING_POINT)
    return None if state is None else restored_point(state)
