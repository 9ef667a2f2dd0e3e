"""Scores of the training set, remembered or from a forward pass, and how many positives there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.data.batch import check_training_batch
from lightning_tpauc.data.loader import EvalLoader
from lightning_tpauc.data.streaming import ScoredStream
from lightning_tpauc.distributed import gather_variable, world_size
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.checks import as_index
from lightning_tpauc.functional.pairwise import TaskMasks
from lightning_tpauc.scoring.forward import ScoringModel, device_batches


class ScoreMemory:
    """The last score of every positive and of the most recent negatives, as training steps computed them.

    Remembering costs O(S + B) per step and no forward pass. The score of a positive is as old as its last visit.
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


class TaskScoreMemory(ScoreMemory):
    """The last score of every positive of every task, and those of the most recent negatives, for all tasks.

    An example of the ring has a score of each task, nan where it was not measured or is positive.

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
        """The remembered scores of each task; ``None`` for a task with no visited positive or no visited negative."""
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


def score_training_tasks(
    module: ScoringModel, max_negatives: int | None = None
) -> TrainingScores | list[TrainingScores] | None:
    """The result of :func:`score_training_set`; with several labels, a list with the scores of each.

    ``None`` if only batches of the user's own can be had, and the algorithm can start from these.
    """
    if module.algorithm.starts_from_batch and not hasattr(module.trainer.datamodule, "scoring_dataloaders"):  # type: ignore[attr-defined]  # Trainer sets it at run time
        return None
    together = score_training_set(module, max_negatives)
    if module._num_labels is None:
        return together
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    return [TrainingScores(*own) for own in datamodule.scores_of_tasks(*together, max_negatives)]


def score_training_set(module: ScoringModel, max_negatives: int | None = None) -> TrainingScores:
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


@torch.no_grad()
def score_examples(module: ScoringModel, loader: EvalLoader | ScoredStream) -> Tensor:
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
    row = () if module._num_labels is None else (module._num_labels,)
    own_scores = torch.cat(scores) if scores else torch.empty(0, *row, device=module.device, dtype=module._score_dtype)
    all_ids, all_scores = torch.cat(gather_variable(own_ids)), torch.cat(gather_variable(own_scores))
    real = all_ids >= 0
    result = all_scores.new_zeros(loader.num_examples, *row)
    result[all_ids[real]] = all_scores[real]
    return result


def count_positives(
    trainer: Trainer, given: int | Sequence[int] | None, owner: str
) -> tuple[int | tuple[int, ...], bool]:
    """Number of training positives (with several labels, of each), and whether the data tell it.

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


def check_first_batch(trainer: Trainer) -> None:
    """Raise :class:`ArgumentError` if the first batch is no training batch; runs that fail anyway call this first."""
    loader: Any = trainer.fit_loop._combined_loader
    for batch, _, _ in loader or ():
        check_training_batch(batch)
        return


class VisitedPositives:
    """Compares ``num_positives`` with the indices of positives in batches; no step waits for a GPU.

    Example:
        >>> visited = VisitedPositives(num_positives=3)
        >>> visited.visit(torch.tensor([0, 2]), batch_idx=0)
        >>> visited.count
        2
    """

    def __init__(self, num_positives: int) -> None:
        self.num_positives = num_positives
        self._seen = torch.zeros(num_positives, dtype=torch.bool)
        #: Whether this is the first epoch and it was seen from its first batch on; ``None`` before the first batch.
        self._counts: bool | None = None

    @property
    def count(self) -> int:
        """Number of positives seen."""
        return int(self._seen.sum())

    def visit(self, index: Tensor, batch_idx: int) -> None:
        """Note a batch's positives.

        Raises:
            ArgumentError: if an index is not below ``num_positives``. Batches on a GPU are not checked.
        """
        index = as_index(index)
        if self._counts is None:
            self._counts = batch_idx == 0 and index.device.type == "cpu"
        if index.device.type != "cpu" or index.numel() == 0:
            return
        if int(index.max()) >= self.num_positives or int(index.min()) < 0:
            msg = (
                f"Expected `index` in batches to number the training positives, 0 .. {self.num_positives - 1} for "
                f"`num_positives={self.num_positives}`, but got {int(index.min())} .. {int(index.max())}. Pass the "
                "number of positive training examples, whole, as `num_positives`."
            )
            raise ArgumentError(msg)
        self._seen[index] = True

    def end_epoch(self) -> None:
        """Warn if the first epoch has visited all positives up to some index, and none above it."""
        counts, self._counts = self._counts, False
        complete = bool(self._seen[: self.count].all())
        if counts and complete and world_size() == 1 and 0 < self.count < self.num_positives:
            rank_zero_warn(
                f"The first epoch visited the positives 0 .. {self.count - 1} and no other, but `num_positives="
                f"{self.num_positives}`: the dual variables of the others keep their start, and count. Pass the number "
                "of positive training examples.",
                category=TPAUCWarning,
            )
