"""Scores of the training set, remembered or from a forward pass, and how many positives there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.data.batch import check_training_batch
from lightning_tpauc.data.examples import names_in
from lightning_tpauc.data.loader import EvalLoader, PosNegLoader
from lightning_tpauc.data.streaming import ScoredStream, StreamedLoader
from lightning_tpauc.distributed import GatheredScores, gather_variable
from lightning_tpauc.errors import ArgumentError, NonFiniteError
from lightning_tpauc.scoring.forward import ScoringModel, device_batches

#: The scores of so many steps are as good as a forward pass: the weights hardly move meanwhile.
_RECENT = 16
#: At most so many negatives are remembered, or those of one step.
_MOST_NEGATIVES = 2**20


class Step(NamedTuple):
    """Scores ``(K, S)`` and ``(K, B)`` of K labels in one step, nan where a label has no such example."""

    pos: Tensor
    neg: Tensor
    number: Tensor


class ScoreMemory:
    """Scores as training steps computed them, which costs no forward pass.

    The rectangle goes by those of the last steps. Older ones would mislead: positives and negatives of other weights
    are not comparable. A stage's restart needs a score of every positive, which is as old as its last visit, and takes
    the negatives of the whole stage.

    Example:
        >>> memory = ScoreMemory([3], whole_stages=True)
        >>> pos, neg, index = torch.tensor([0.5, 0.7]), torch.tensor([0.1, 0.2]), torch.tensor([2, 0])
        >>> memory.add(GatheredScores(pos, neg, neg[:0], index))
        >>> memory.of_last_steps()[0].pos_scores, memory.of_stage()
        (tensor([0.5000, 0.7000]), None)
        >>> memory.add(GatheredScores(pos[:1], neg, neg[:0], torch.tensor([1])))
        >>> memory.of_stage()[0].pos_scores
        tensor([0.7000, 0.5000, 0.5000])
    """

    saved = ("_last", "_steps", "_of_stage")

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        whole_stages: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.sizes, self.whole_stages = tuple(sizes), whole_stages
        # one place more than there are positives: it takes what pads a batch of several labels
        places = sum(sizes) + 1 if whole_stages else 0
        self._last = torch.full((places,), torch.nan, device=device, dtype=dtype)
        self._first = torch.tensor([0, *self.sizes[:-1]], device=device).cumsum(0).unsqueeze(-1)
        self._steps: deque[Step] = deque()
        self._of_stage, self.device = 0, self._last.device

    def add(self, scores: GatheredScores) -> None:
        """Remember one step's scores."""
        pos, neg, _, index, masks = scores
        pos, neg = pos.detach(), neg.detach()
        if masks is None:
            step = Step(pos.clone()[None], neg.clone()[None], index[None])
        else:
            step = Step(pos.masked_fill(~masks.pos, torch.nan), neg.masked_fill(~masks.neg, torch.nan), index)
        self._steps.append(step)
        self._of_stage += 1
        limit = max(1, _MOST_NEGATIVES // max(1, neg.numel()))
        while len(self._steps) > (limit if self.whole_stages else min(limit, _RECENT)):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        step = self._steps.popleft()
        self._of_stage = min(self._of_stage, len(self._steps))
        if self.whole_stages:
            self._note(step)

    def _note(self, step: Step) -> None:
        place = torch.where(step.pos.isnan(), len(self._last) - 1, step.number + self._first)
        self._last.index_copy_(0, place.reshape(-1), step.pos.reshape(-1).to(self._last.dtype))

    def of_last_steps(self) -> list[TrainingScores | None]:
        """Of each label, the scores of the last steps; ``None`` without a positive or a negative of it."""
        return self._each(_RECENT)

    def of_stage(self) -> list[TrainingScores] | None:
        """Of each label, the last score of every positive and all negatives since the stage began.

        ``None`` until every positive, and a negative of every label, was visited.
        """
        for step in self._steps:
            self._note(step)
        known = [scores for scores in self._each(self._of_stage) if scores is not None]
        if len(known) < len(self.sizes) or bool(self._last[:-1].isnan().any()):
            return None
        every = self._last[:-1].clone().split_with_sizes(self.sizes)
        return [TrainingScores(pos, own.neg_scores) for pos, own in zip(every, known, strict=True)]

    def _each(self, count: int) -> list[TrainingScores | None]:
        """Of each label, the scores of the last ``count`` steps."""
        steps = list(islice(reversed(self._steps), count))
        if not steps:
            return [None] * len(self.sizes)
        joint = torch.cat([step.pos for step in steps], -1), torch.cat([step.neg for step in steps], -1)
        known = ((pos[~pos.isnan()], neg[~neg.isnan()]) for pos, neg in zip(*joint, strict=True))
        return [TrainingScores(pos, neg) if pos.numel() and neg.numel() else None for pos, neg in known]

    def fill(self, scores: Sequence[TrainingScores]) -> None:
        """Take the positives' scores of a forward pass over the training set."""
        if self.whole_stages:
            self._last[:-1] = torch.cat([each.pos_scores for each in scores])

    def begin_stage(self) -> None:
        """Count negatives of the stage from now on."""
        self._of_stage = 0
        while len(self._steps) > _RECENT:
            self._drop_oldest()


@torch.no_grad()
def score_next_batches(module: ScoringModel, count: int) -> list[TrainingScores | None] | None:
    """Scores of each label in the next training batches under the present weights, in evaluation mode; a collective.

    ``None`` if the Trainer's loader can't show what comes next.
    """
    loader: Any = module.trainer.train_dataloader
    if not isinstance(loader, PosNegLoader) or isinstance(loader, StreamedLoader):  # a stream may be read once only
        return None
    seen = ScoreMemory(module.algorithm.task_sizes or (0,), whole_stages=False, device=module.device)
    with _evaluating(module):
        for batch in islice(device_batches(module, loader.whole_epoch(count), "Scoring training batches"), count):
            seen.add(module.joint_scores(batch))
    return seen.of_last_steps()


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def score_every_label(module: ScoringModel) -> list[TrainingScores] | None:
    """The result of :func:`score_training_set` for each label, one entry if there is one label.

    ``None`` if only batches of the user's own can be had, and the algorithm can start from these.
    """
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if module.algorithm.starts_from_batch and not hasattr(datamodule, "scoring_dataloaders"):
        return None
    together = score_training_set(module)
    if module._num_labels is None:
        return [together]
    return [TrainingScores(*scores) for scores in datamodule.scores_of_tasks(*together)]


def score_training_set(module: ScoringModel) -> TrainingScores:
    """One forward pass without gradients over the training positives and negatives of the attached data module.

    Args:
        module: attached to a Trainer with a :class:`~lightning_tpauc.PosNegDataModule`.

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
    positives, negatives = datamodule.scoring_dataloaders()
    return TrainingScores(score_examples(module, positives), score_examples(module, negatives))


@torch.no_grad()
def score_examples(module: ScoringModel, loader: EvalLoader | ScoredStream) -> Tensor:
    """Scores of all examples of an evaluation loader, on every rank, in the order of ``example_id``."""
    ids: list[Tensor] = []
    scores: list[Tensor] = []
    with _evaluating(module):
        for batch in device_batches(module, loader, "Scoring the training set"):
            scores.append(module.algorithm_scores(batch.inputs))
            ids.append(batch.example_id)
            if not bool(scores[-1].isfinite().all()) and (columns := columns_not_finite(batch.inputs, module)):
                msg = f"The training set can't be scored: {columns}"
                raise NonFiniteError(msg)
    own_ids = torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64, device=module.device)
    row = () if module._num_labels is None else (module._num_labels,)
    own_scores = torch.cat(scores) if scores else torch.empty(0, *row, device=module.device, dtype=module._score_dtype)
    all_ids, all_scores = torch.cat(gather_variable(own_ids)), torch.cat(gather_variable(own_scores))
    real = all_ids >= 0
    result = all_scores.new_zeros(loader.num_examples, *row)
    result[all_ids[real]] = all_scores[real]
    return result


def is_feature_matrix(inputs: Any) -> bool:
    """Whether inputs are a dense floating tensor ``(N, D)``."""
    dense = isinstance(inputs, Tensor) and inputs.layout == torch.strided
    return bool(dense and inputs.is_floating_point() and inputs.ndim == 2)


def column_name(number: int, model: Any) -> str:
    """What to call a column of the inputs of a model, whose ``input_layout`` may hold its name."""
    names = names_in(getattr(model, "input_layout", None), "columns")
    if names is None and isinstance(model, LightningModule):  # before the first batch
        names = getattr(model.trainer.train_dataloader, "columns", None)
    return f"Column {number}" if names is None or number >= len(names) else f"Column {names[number]!r}"


def columns_not_finite(inputs: Any, model: Any) -> str:
    """Says which columns of a table are nan or infinite somewhere; empty if none is."""
    bad = (~inputs.isfinite()).sum(0) if is_feature_matrix(inputs) else torch.zeros(0)
    if not bool(bad.any()):
        return ""
    shown = [f"{column_name(k, model)} has {int(bad[k])}" for k in bad.nonzero()[:3, 0].tolist()]
    return (
        f"the inputs of a batch are nan or infinite in {int((bad > 0).sum())} of {len(bad)} columns: "
        f"{', '.join(shown)}. Fill these in, or leave such rows out before training."
    )


def count_positives(trainer: Trainer, given: int | Sequence[int] | None, owner: str) -> int | tuple[int, ...]:
    """Number of training positives, with several labels of each."""
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
    return num_positives


def check_first_batch(trainer: Trainer) -> None:
    """Raise :class:`ArgumentError` if the first batch is no training batch; runs that fail anyway call this first."""
    loader: Any = trainer.fit_loop._combined_loader
    for batch, _, _ in loader or ():
        check_training_batch(batch)
        return
