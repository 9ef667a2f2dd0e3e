"""The callbacks that a module adds to its Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BatchSizeFinder, Checkpoint, EarlyStopping, LearningRateFinder

from lightning_tpauc.scoring.operating_point import DecisionThreshold, DefaultThreshold
from lightning_tpauc.training.guards import FiniteGuard
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


def in_order(callbacks: Sequence[Callback]) -> list[Callback]:
    """The Trainer's callbacks in the order in which they are called: the needed ones, ``EarlyStopping``, all others.

    A checkpoint that another callback saves in a hook of its own then holds what that hook does for the training.
    Lightning's tuners stay in front, and its checkpoints at the end.

    Example:
        >>> [type(callback).__name__ for callback in in_order([Callback(), EarlyStopping("val/tpauc"), FiniteGuard()])]
        ['FiniteGuard', 'EarlyStopping', 'Callback']
    """
    first: tuple[Any, ...] = (
        (BatchSizeFinder, LearningRateFinder),
        *(kind for kind, _ in _NEEDED),
        EarlyStopping,
    )

    def place(callback: Callback) -> int:
        found = next((k for k, kind in enumerate(first) if isinstance(callback, kind)), len(first))
        return found + isinstance(callback, Checkpoint)

    return sorted(callbacks, key=place)
