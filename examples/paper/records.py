"""What identifies a trial, and what it yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_tpauc.comparison.store import Ended, Keyed, Store

__all__ = ("Outcome", "Results", "Trial", "results_in")


@dataclass(frozen=True)
class Trial(Keyed):
    """One training.

    Attributes:
        experiment: name of the experiment.
        method: name of the method.
        settings: value of each searched argument.
        fold: fold that validates; ``None`` for data with a validation part of its own.
        seed: seed of the initial weights and of the batches.
        rectangle: rectangle that is trained on, as (min_tpr, max_fpr); ``None`` if the settings or nothing decides.
        kind: ``"pretrain"`` makes the start of the others, ``"search"`` sees validation data only, ``"final"`` is the
            chosen setting again, with test values and training curves.
        protocol: whatever else changes the result: schedule, data, model, fixed arguments.

    Example:
        >>> a, b = (Trial("ijcnn1", "CE", {"lr": lr}, fold=0) for lr in (0.1, 1.0))
        >>> a.key == b.key
        False
    """

    experiment: str
    method: str
    settings: Mapping[str, Any]
    fold: int | None
    seed: int = 0
    rectangle: tuple[float, float] | None = None
    kind: Literal["pretrain", "search", "final"] = "search"
    protocol: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcome(Ended):
    """What a trial yields; rectangles are named as in :func:`~lightning_tpauc.metrics.reporting.metric_name`.

    Attributes:
        val: validation TPAUC by rectangle.
        test: test TPAUC by rectangle, for final trials.
        interval: ends of the bootstrap interval of ``test``, by rectangle.
        curve: points during training, for final trials, as
            :class:`~examples.paper.recorders.CurveRecorder` makes them.
    """

    val: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


#: Finished trials.
Results = Store[Outcome]


def results_in(folder: Path) -> Results:
    """The finished trials of an experiment, a file each."""
    return Store(folder / "cells", Outcome)
