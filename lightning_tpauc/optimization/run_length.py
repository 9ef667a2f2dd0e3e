"""The number of steps in a share of the run, for schedules that need no setting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("steps_of_share",)


def steps_of_share(trainer: Trainer, share: float, most_epochs: int, without_end: int) -> int:
    """Number of optimizer steps in a share of the run.

    Args:
        trainer: whose ``max_steps`` and ``max_epochs`` say how long the run is; its training data are there.
        share: of the run, in (0, 1].
        most_epochs: upper bound in epochs, since early stopping may end a run long before its nominal length.
        without_end: the result if neither the run nor its epochs have a length.

    Returns:
        At least 1; the same on every rank.
    """
    total = float(trainer.estimated_stepping_batches)
    if total < 0:  # Lightning returns -1 if epochs have no length, even if their number is bounded
        total = math.inf
    length = min(share * total, most_epochs * float(trainer.num_training_batches))
    return max(1, int(length)) if math.isfinite(length) else without_end
