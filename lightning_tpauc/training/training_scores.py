"""Scores of the training set, from which the exact dual variables are solved: remembered, or from a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.data.core.batch import check_training_batch
from lightning_tpauc.distributed import gather_variable
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.tasks import TaskMasks
from lightning_tpauc.scoring.forward_passes import device_batches

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.data.core.loader import EvalLoader
    from lightning_tpauc.data.streaming.loader import ScoredStream
    from lightning_tpauc.scoring.scoring_module import ScoringModule

__all__ = ("ScoreMemory", "check_first_batch", "count_positives", "score_examples", "score_training_set")


class ScoreMemory:
    """The last score of every positive and of the most recent negatives, as training steps computed them.

    Remembering costs O(S + B) per step and no forward pass. The score of a positive is as old as its last visit.

    Args:
        num_positives: number of positive training examples.
        capacity: how many negatives are remembered.
        device: where the scores live.
        dtype: ``torch.float32`` or ``torch.float64``.
    """

    def __init__(
        self, num_positives: int, capacity: int, device: torch.device | str | None, dtype: torch.dtype
    ) -> None:
        self.pos_scores = torch.full((num_positives,), torch.nan, device=device, dtype=dtype)
        self.neg_scores = torch.full((capacity,), torch.nan, device=device, dtype=dtype)
        self.cursor = 0
        self.filled = 0

    def update(self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor, masks: TaskMasks | None = None) -> None:  # noqa: ARG002
        """Remember one step's scores; the oldest negatives are overwritten."""
        self.pos_scores.index_copy_(0, index, pos_scores.detach().to(self.pos_scores.dtype))
        self.update_negatives(neg_scores)

    def update_negatives(self, neg_scores: Tensor) -> None:
        """Remember the scores of further negatives."""
        capacity = len(self.neg_scores)
        fresh = neg_scores.detach().to(self.neg_scores.dtype)[-capacity:]
        count = len(fresh)
        room = capacity - self.cursor
        if count <= room:
            self.neg_scores[self.cursor : self.cursor + count].copy_(fresh)
        else:  # around the end
            self.neg_scores[self.cursor :].copy_(fresh[:room])
            self.neg_scores[: count - room].copy_(fresh[room:])
        self.cursor = (self.cursor + count) % capacity
        self.filled = min(capacity, self.filled + count)

    def fill(self, scores: TrainingScores) -> None:
        """Take the result of a forward pass over the training set."""
        self.pos_scores.copy_(scores.pos_scores)
        self.forget_negatives()
        self.update_negatives(scores.neg_scores)

    def forget_negatives(self) -> None:
        """Start a new stage: its negatives replace those of the last one."""
        self.cursor = self.filled = 0

    def training_scores(self) -> TrainingScores | None:
        """The remembered scores; ``None`` until each positive and some negatives were visited."""
        if self.filled == 0 or bool(self.pos_scores.isnan().any()):
            return None
        return TrainingScores(self.pos_scores, self.neg_scores[: self.filled])

    def known_scores(self) -> TrainingScores | None:
        """The remembered scores of the positives that were visited; ``None`` before any was. Waits for the device."""
        known = self.pos_scores[~self.pos_scores.isnan()]
        return TrainingScores(known, self.neg_scores[: self.filled]) if self.filled and known.numel() else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and counters."""
        # copies: the state stays what it was while training goes on, and a file holds no more than what is filled
        neg_scores = self.neg_scores[: self.filled].clone()
        return {"pos_scores": self.pos_scores.clone(), "neg_scores": neg_scores, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore, in place; what exceeds another capacity is dropped, oldest first."""
        self.pos_scores.copy_(state["pos_scores"])
        negatives, cursor = state["neg_scores"], int(state["cursor"])
        self.forget_negatives()
        if len(negatives) == len(self.neg_scores):  # the same layout, for equality to the last bit
            self.neg_scores.copy_(negatives)
            self.cursor, self.filled = cursor % len(negatives), len(negatives)
        else:  # the oldest one is at the cursor: a ring that went around begins there
            self.update_negatives(negatives.roll(-cursor, 0).to(self.neg_scores.device))


def check_first_batch(trainer: Trainer) -> None:
    """Raise :class:`ArgumentError` if the first batch is none to train on; called in runs that fail in any case."""
    loader: Any = trainer.fit_loop._combined_loader
    for batch, _, _ in loader or ():
        check_training_batch(batch)
        return


@torch.no_grad()
def score_examples(module: ScoringModule, loader: EvalLoader | ScoredStream) -> Tensor:
    """Scores of all examples of an evaluation loader, on every rank, in the order of ``example_id``.

    Args:
        module: attached to a Trainer; its ``forward`` scores, in evaluation mode.
        loader: yields this rank's share as :class:`~lightning_tpauc.EvalBatch`. After that it knows the number of
            examples over all ranks; ``example_id`` runs over ``0 .. loader.num_examples - 1``.

    Returns:
        Float tensor ``(loader.num_examples,)``, or ``(loader.num_examples, K)`` of K labels, on the module's device.
    """
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    ids: list[Tensor] = []
    scores: list[Tensor] = []
    try:
        for batch in device_batches(module, loader, "Scoring the training set"):
            scores.append(module.algorithm_scores(batch.inputs))
            ids.append(batch.example_id)
    finally:
        for m, training in modes:
            m.training = training
    own_ids = torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64, device=module.device)
    row = () if module.num_labels is None else (module.num_labels,)
    own_scores = torch.cat(scores) if scores else torch.empty(0, *row, device=module.device, dtype=module.score_dtype)
    all_ids, all_scores = torch.cat(gather_variable(own_ids)), torch.cat(gather_variable(own_scores))
    real = all_ids >= 0
    result = all_scores.new_zeros(loader.num_examples, *row)
    result[all_ids[real]] = all_scores[real]
    return result


def score_training_set(module: ScoringModule, max_negatives: int | None = None) -> TrainingScores:
    """One forward pass without gradients over the training positives and negatives of the attached data module.

    Args:
        module: attached to a Trainer with a :class:`~lightning_tpauc.PosNegDataModule`.
        max_negatives: score a random sample of this many negatives (of a stream, its first ones); ``None`` scores all
            (of a stream, as many as it says).

    Raises:
        ArgumentError: if the Trainer has no such data module.
    """
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if not hasattr(datamodule, "scoring_dataloaders"):
        check_first_batch(module.trainer)
        msg = (
            "The exact dual variables are solved from the scores of the training set, which only a PosNegDataModule "
            "can go through: train with one, or set `dual_init='zeros'` (and `stage_restart='ones'` in stages)."
        )
        raise ArgumentError(msg)
    positives, negatives = datamodule.scoring_dataloaders(max_negatives=max_negatives)
    return TrainingScores(score_examples(module, positives), score_examples(module, negatives))


def count_positives(
    trainer: Trainer, given: int | Sequence[int] | None, owner: str
) -> tuple[int | tuple[int, ...], bool]:
    """Number of training positives, of each of several labels, and whether the data tell it.

    Args:
        trainer: whose data module or loader may tell the number.
        given: what the user passed as ``num_positives``.
        owner: name of the class that takes ``num_positives``, for error messages.

    Raises:
        ArgumentError: if nobody knows the number, or ``given`` contradicts the data.
    """
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set at run time, declared nowhere
    sources = [getattr(source, "num_positives", None) for source in (datamodule, trainer.train_dataloader)]
    found = next((number for number in sources if number is not None), None)
    given = tuple(given) if isinstance(given, Sequence) else given
    if given is not None and found is not None and given != found:
        msg = (
            f"`num_positives={given}` of {owner} contradicts the data, which have {found} "
            "training positives. Leave it out."
        )
        raise ArgumentError(msg)
    num_positives: int | tuple[int, ...] | None = given if given is not None else found
    if num_positives is None:
        check_first_batch(trainer)
        msg = (
            "The number of training positives is unknown: train with a PosNegDataModule, or pass `num_positives` "
            f"to {owner}."
        )
        raise ArgumentError(msg)
    return num_positives, found is not None
