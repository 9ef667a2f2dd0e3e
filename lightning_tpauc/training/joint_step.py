"""What one step does with the scores of a batch, of one label or of several."""

from __future__ import annotations

from torch import Tensor

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.algorithms.base import PreviousScores
from lightning_tpauc.data.core.batch import PosNegBatch
from lightning_tpauc.distributed import GatheredScores, gather_scores, gather_scores_of_tasks
from lightning_tpauc.functional.checks import as_index


def gather_batch(scores: Tensor, batch: PosNegBatch) -> GatheredScores:
    """The scores of all ranks' batches, given this rank's: ``(N,)``, or ``(N, K)`` of K labels."""
    index = as_index(batch.index, scores.device)
    if batch.masks is not None:
        return gather_scores_of_tasks(batch.split(scores), index, batch.masks, batch.shares)
    return gather_scores(scores, index, (batch.num_pos, batch.num_neg, batch.num_dual_neg), batch.shares)


def step_of(algorithm: Algorithm, joint: GatheredScores, previous: PreviousScores | None = None) -> Tensor:
    """Take a step of the algorithm; returns the loss for the weights."""
    pos, neg, dual, index, masks = joint
    return algorithm(pos, neg, dual, index, previous=previous, masks=masks)


def undo_of(algorithm: Algorithm, joint: GatheredScores) -> tuple[Tensor, dict[str, Tensor]]:
    """What :meth:`~lightning_tpauc.algorithms.Algorithm.rollback` takes to undo the step that comes next."""
    place = joint.index if joint.masks is None else algorithm.place(joint.index, joint.masks.pos)
    return place, algorithm.snapshot(place)
