"""The callbacks that a module adds to its Trainer."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Callback

from lightning_tpauc.scoring.decision_threshold import DecisionThreshold, DefaultThreshold
from lightning_tpauc.training.finite_guard import FiniteGuard
from lightning_tpauc.training.stages import StageCallback

#: Pairs of the class to look for and the class to make if the Trainer has none.
_NEEDED: tuple[tuple[type[Callback], type[Callback]], ...] = (
    (FiniteGuard, FiniteGuard),
    (StageCallback, StageCallback),
    (DecisionThreshold, DefaultThreshold),
)


def needed_callbacks(present: Sequence[type[Callback]]) -> list[Callback]:
    """Make the needed callbacks that ``present`` lacks, with their defaults.

    Example:
        >>> [type(callback).__name__ for callback in needed_callbacks([FiniteGuard, StageCallback])]
        ['DefaultThreshold']
    """
    return [make() for kind, make in _NEEDED if not any(issubclass(p, kind) for p in present)]
