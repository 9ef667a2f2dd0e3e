"""Scores of the training set of several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.functional.tasks import TaskMasks
from lightning_tpauc.training.training_scores import ScoreMemory, score_training_set

if TYPE_CHECKING:
    from lightning_tpauc.scoring.scoring_module import ScoringModule

__all__ = ("TaskScoreMemory", "score_training_tasks")


def score_training_tasks(
    module: ScoringModule, max_negatives: int | None = None
) -> TrainingScores | list[TrainingScores]:
    """:func:`~lightning_tpauc.training.training_scores.score_training_set`, with several labels of each of them."""
    together = score_training_set(module, max_negatives)
    if module.num_labels is None:
        return together
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    return [TrainingScores(*own) for own in datamodule.scores_of_tasks(*together, max_negatives)]


class TaskScoreMemory(ScoreMemory):
    """The last score of every positive of every task, and those of the most recent negatives, for all tasks.

    An example of the ring has a score of each task, nan where it was not measured or is positive.

    Args:
        sizes: number of positive training examples of each task.
        capacity: how many negatives are remembered.
        device: where the scores live.
        dtype: ``torch.float32`` or ``torch.float64``.

    Example:
        >>> memory = TaskScoreMemory((2, 1), 8, "cpu", torch.float32)
        >>> masks = TaskMasks(torch.tensor([[True], [False]]), torch.tensor([[True, True], [False, True]]))
        >>> memory.update(torch.ones(2, 1), torch.zeros(2, 2), torch.tensor([[1], [0]]), masks)
        >>> [None if known is None else len(known.neg_scores) for known in memory.known_scores()]
        [2, None]
    """

    def __init__(
        self, sizes: Sequence[int], capacity: int, device: torch.device | str | None, dtype: torch.dtype
    ) -> None:
        super().__init__(sum(sizes) + 1, capacity, device, dtype)  # the spare one takes what pads a batch
        self.sizes = tuple(sizes)
        self._first = torch.tensor([0, *self.sizes[:-1]], device=device).cumsum(0).unsqueeze(-1)
        self.neg_scores = torch.full((capacity, len(self.sizes)), torch.nan, device=device, dtype=dtype)

    def update(self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor, masks: TaskMasks | None = None) -> None:
        """Remember one step's scores, ``(K, S)`` and ``(K, B)``."""
        assert masks is not None  # noqa: S101  # batches of several tasks have them
        place = torch.where(masks.pos, index + self._first, sum(self.sizes))
        scores = pos_scores.detach().to(self.pos_scores.dtype)
        self.pos_scores.index_copy_(0, place.reshape(-1), scores.reshape(-1))
        self.update_negatives(neg_scores.detach().masked_fill(~masks.neg, torch.nan).T)

    def fill(self, scores: Sequence[TrainingScores]) -> None:  # type: ignore[override]  # of each task
        """Take the result of a forward pass over the training set."""
        self.pos_scores[:-1] = torch.cat([own.pos_scores for own in scores])
        self.forget_negatives()
        columns = [own.neg_scores.to(self.neg_scores.dtype) for own in scores]
        self.update_negatives(torch.nn.utils.rnn.pad_sequence(columns, padding_value=torch.nan))

    def training_scores(self) -> list[TrainingScores] | None:  # type: ignore[override]  # of each task
        """The remembered scores; ``None`` until each positive, and some negatives of every task, were visited."""
        known = self.known_scores()
        complete = not bool(self.pos_scores[:-1].isnan().any())
        return [own for own in known if own is not None] if complete and None not in known else None

    def known_scores(self) -> list[TrainingScores | None]:  # type: ignore[override]  # of each task
        """The remembered scores of what was visited of each task; ``None`` of one without a class of these."""
        known: list[TrainingScores | None] = []
        negatives = self.neg_scores[: self.filled].unbind(1)
        for own, column in zip(self.pos_scores[:-1].split_with_sizes(self.sizes), negatives, strict=True):
            pos, neg = own[~own.isnan()], column[~column.isnan()]
            known.append(TrainingScores(pos, neg) if pos.numel() and neg.numel() else None)
        return known

    def state_dict(self) -> dict[str, Any]:
        """Tensors and counters, without the spare entry."""
        return {**super().state_dict(), "pos_scores": self.pos_scores[:-1].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, in place."""
        spare = self.pos_scores.new_full((1,), torch.nan)
        super().load_state_dict({**state, "pos_scores": torch.cat([state["pos_scores"].to(spare), spare])})
