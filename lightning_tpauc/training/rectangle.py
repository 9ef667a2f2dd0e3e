"""When the trained rectangle shrinks, and the training scores that this and the dual variables go by.

A small rectangle holds few pairs, which a model that knows nothing yet would choose badly. So training begins with the
unit square, where every pair counts, and shrinks it to the rectangle that was asked for. A rectangle that is out of
reach would destroy the model: once the mean loss of its pairs is near l(0), the loss of a constant model, the constant
model minimises every convex surrogate. So the rectangle stops shrinking before the loss comes near l(0).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, Algorithm, Task, TrainingScores, shrunk_rectangle
from lightning_tpauc.data.batch import check_training_batch
from lightning_tpauc.data.examples import listed
from lightning_tpauc.data.loader import EvalLoader, PosNegLoader
from lightning_tpauc.data.streaming import ScoredStream, StreamedLoader
from lightning_tpauc.distributed import GatheredScores, gather_objects
from lightning_tpauc.errors import ArgumentError, NonFiniteError
from lightning_tpauc.functional.staco import objective_ratios
from lightning_tpauc.scoring.forward import ScoringModel, device_batches, evaluation_mode
from lightning_tpauc.training.guards import columns_not_finite
from lightning_tpauc.training.optimizer import share_of_time

#: Share of the run in which the rectangle shrinks. The rest of the run trains on the rectangle that was asked for.
SHARE = 0.5
#: A forward pass before a move takes at most so many batches.
_MOST_BATCHES = 16
#: Number of moves of the shrinking.
_MOVES = 20
#: The shrinking waits where the loss comes to this share of that of a model that gives all the same score.
HOLD_AT = 0.85
#: Outside this range of ratios the scores of the last steps, of slightly older weights, decide alone.
_IN_DOUBT = (0.6, 1.0)
#: After repeated refusals, at most so many moves go by until the next forward pass.
_MOST_WAITING = 3
#: The scores of so many steps are as good as a forward pass: the weights hardly move meanwhile.
_RECENT = 16
#: At most so many negatives are remembered, or those of one step.
_MOST_NEGATIVES = 2**20

#: Scores of training examples of each label; ``None`` for a label whose scores are unknown.
Scores = Sequence[TrainingScores | None]

# ---------------------------------------------------------------- scores that the steps computed


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
        self._last = torch.full((sum(sizes) + 1 if whole_stages else 0,), torch.nan, device=device, dtype=dtype)
        self._last[-1:] = 0.0
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
        absent = step.pos.isnan()
        place = torch.where(absent, len(self._last) - 1, step.number + self._first)
        self._last.index_copy_(0, place.reshape(-1), step.pos.masked_fill(absent, 0.0).reshape(-1).to(self._last.dtype))

    def of_stage(self) -> list[TrainingScores] | None:
        """The last score of every positive, and the stage's negatives; ``None`` until all were visited."""
        for step in self._steps:
            self._note(step)
        known = [scores for scores in self.of_last_steps(self._of_stage) if scores is not None]
        if len(known) < len(self.sizes) or bool(self._last[:-1].isnan().any()):
            return None
        every = self._last[:-1].clone().split_with_sizes(self.sizes)
        return [TrainingScores(pos, own.neg_scores) for pos, own in zip(every, known, strict=True)]

    def of_last_steps(self, count: int = _RECENT) -> list[TrainingScores | None]:
        """Of each label, the scores of the last steps; ``None`` without a positive or a negative of it."""
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


# ---------------------------------------------------------------- scores of a forward pass


def score_next_batches(module: ScoringModel, count: int) -> list[TrainingScores | None] | None:
    """Scores of each label in the next training batches, in evaluation mode, if the loader shows them; a collective."""
    loader: Any = module.trainer.train_dataloader
    if not isinstance(loader, PosNegLoader) or isinstance(loader, StreamedLoader):  # a stream may be read once only
        return None
    seen = ScoreMemory(module.algorithm.task_sizes or (0,), whole_stages=False, device=module.device)
    with evaluation_mode(module):
        for batch in device_batches(module, loader.next_batches(count), "Scoring training batches"):
            seen.add(module.joint_scores(batch))
    return seen.of_last_steps()


def score_training_set(module: ScoringModel) -> list[TrainingScores] | None:
    """Scores of each label in the whole training set; ``None`` if the algorithm starts from the user's own batches."""
    datamodule: Any = module.trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    if not hasattr(datamodule, "scoring_dataloaders"):
        if module.algorithm.starts_from_batch:
            return None
        _check_first_batch(module.trainer)
        raise ArgumentError(
            "The exact dual variables need the scores of the whole training set: train with a PosNegDataModule, or set "
            "`dual_init='zeros'` (and `stage_restart='ones'` in stages)."
        )
    together = [_score_examples(module, loader) for loader in datamodule.scoring_dataloaders()]
    of_labels = [together] if module._num_labels is None else datamodule.scores_of_tasks(*together)
    return [TrainingScores(*scores) for scores in of_labels]


def _score_examples(module: ScoringModel, loader: EvalLoader | ScoredStream) -> Tensor:
    """Scores of all examples of an evaluation loader, on every rank, in the order of ``example_id``."""
    row = () if module._num_labels is None else (module._num_labels,)
    # a rank may have no batch
    ids = [torch.empty(0, dtype=torch.int64, device=module.device)]
    scores = [torch.empty(0, *row, device=module.device, dtype=module._score_dtype)]
    with evaluation_mode(module):
        for batch in device_batches(module, loader, "Scoring the training set"):
            scores.append(module.algorithm_scores(batch.inputs))
            ids.append(batch.example_id)
            if not bool(scores[-1].isfinite().all()) and (columns := columns_not_finite(batch.inputs, module)):
                raise NonFiniteError(f"The training set can't be scored: {columns}")
    joint = gather_objects((torch.cat(ids).cpu(), torch.cat(scores).cpu()))
    all_ids, all_scores = (torch.cat(parts).to(module.device) for parts in zip(*joint, strict=True))
    real = all_ids >= 0
    result = all_scores.new_zeros(loader.num_examples, *row)
    result[all_ids[real]] = all_scores[real]
    return result


def count_positives(trainer: Trainer, given: int | Sequence[int] | None, owner: str) -> int | tuple[int, ...]:
    """Number of training positives, with several labels of each."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set at run time, declared nowhere
    sources = [getattr(source, "num_positives", None) for source in (datamodule, trainer.train_dataloader)]
    found: int | tuple[int, ...] | None = next((number for number in sources if number is not None), None)
    asked = tuple(given) if isinstance(given, Sequence) else given
    if asked is None and found is None:
        _check_first_batch(trainer)
        raise ArgumentError(
            "The number of training positives is unknown: train with a PosNegDataModule, or pass `num_positives` "
            f"to {owner}."
        )
    if found is None:
        return asked  # type: ignore[return-value]  # one of them is known
    if asked not in (None, found):
        raise ArgumentError(f"`num_positives={asked}` of {owner} contradicts the data's {found}. Leave it out.")
    return found


def _check_first_batch(trainer: Trainer) -> None:
    """Raise :class:`ArgumentError` if the first batch is no training batch, which explains why its run fails."""
    for batch in islice(trainer.train_dataloader or (), 1):
        check_training_batch(batch)


# ---------------------------------------------------------------- the rectangle


class RectangleSchedule:
    """Moves the tightness of an algorithm's rectangles from 0 towards 1, separately for each label.

    All lists have an entry for each label, one if there is one label.

    Attributes:
        held: whether the last move was refused.
        ratios: the objective at the present rectangle divided by l(0), on training or on held-out scores, whichever is
            larger; nan before the first move.
        held_out: this ratio of the last validation's scores at each tightness of :data:`TIGHTNESS_GRID`, nan where it
            can't be asked for any more; empty before the first validation.
        decided_after: number of batches after which the last move was made or refused.
        refusals: how many forward passes in a row have refused a move.
        waits: how many moves in doubt are left out until the next forward pass.
    """

    #: The tightness is part of the algorithm's state.
    saved = ("held", "ratios", "held_out", "decided_after", "refusals", "waits")

    def __init__(self, algorithm: Algorithm, steps: int) -> None:
        self.algorithm, self.steps, self.hold_at = algorithm, steps, HOLD_AT
        self.every = max(1, steps // _MOVES)
        count = len(algorithm.rectangles)
        self.held, self.ratios = [False] * count, [math.nan] * count
        self.held_out: list[list[float]] = []
        self.decided_after = self.refusals = self.waits = 0

    def move_if_due(self, module: ScoringModel, batches_seen: int, memory: ScoreMemory | None) -> None:
        """Move the rectangle after every ``every``-th step unless that was decided on before; all ranks move alike.

        A move is due 20 times over the shrinking, and as often afterwards. Another callback may save a checkpoint
        between a step's end and its move. Resuming then makes the move.
        """
        if batches_seen > self.decided_after:
            self.decided_after = batches_seen
            trainer = module.trainer
            progress = trainer.strategy.broadcast(shrinking_progress(trainer, batches_seen, self.steps))
            remembered = memory.of_last_steps() if memory is not None else None
            self.move(progress, remembered, lambda: score_next_batches(module, min(_MOST_BATCHES, 2 * self.every)))

    def move(self, progress: float, scores: Scores | None, measure: Callable[[], Scores | None] = lambda: None) -> None:
        """Shrink each label's rectangle to where it should be by now, unless its objective would come too near to l(0).

        One call moves it by two regular moves at most. A label of weight 0 is never held: it trains nothing.
        """
        reached = list(self.algorithm.tightness_of_tasks)
        candidates = [min(max(progress, now), now + 2.0 / _MOVES) for now in reached]
        counted = [task.weight > 0.0 for task in self.algorithm.tasks or (Task(0),)]
        asked = [label for label, now in enumerate(reached) if now < 1.0 and counted[label]]
        places = list(zip(reached, candidates, strict=True))
        known = [self._both_ratios(place, scores, label) for label, place in enumerate(places)]
        doubtful = [label for label in asked if self._is_in_doubt(*known[label][1])]
        fresh = measure() if doubtful and not self.waits else None
        waiting, self.waits = self.waits > 0, max(0, self.waits - bool(doubtful))
        if fresh:
            known = [self._both_ratios(place, fresh, label) for label, place in enumerate(places)]
        for label, now in enumerate(reached):
            if waiting and label in doubtful:
                continue
            before, ratio = (max((r for r in both if not math.isnan(r)), default=math.nan) for both in known[label])
            self.held[label] = label in asked and ratio >= self.hold_at
            if not counted[label] or ratio < self.hold_at:  # false for nan, where nothing is known
                reached[label] = candidates[label]
            self.ratios[label] = ratio if reached[label] > now else before
        self.algorithm.tightness_of_tasks = reached
        if fresh is not None:
            self.refusals = self.refusals + 1 if any(self.held[label] for label in doubtful) else 0
            self.waits = min(_MOST_WAITING, max(0, self.refusals - 1))

    def _is_in_doubt(self, training: float, held_out: float) -> bool:
        """Whether the scores of the last steps are to decide, and may be wrong."""
        return not held_out >= self.hold_at and not (training < _IN_DOUBT[0] or training >= _IN_DOUBT[1])

    def _both_ratios(self, places: Sequence[float], scores: Scores | None, label: int) -> list[tuple[float, float]]:
        """Those of training and of held-out scores at each tightness; nan if unknown."""
        known, unknown = None if scores is None else scores[label], [math.nan] * len(places)
        surrogate, training, held_out = getattr(self.algorithm, "surrogate", None), unknown, unknown
        if known is not None and surrogate is not None:
            asked = self.algorithm.asked_rectangles[label]
            training = objective_ratios(*known, [shrunk_rectangle(*asked, t) for t in places], surrogate).tolist()
        if self.held_out:
            held_out = np.interp(places, TIGHTNESS_GRID, self.held_out[label]).tolist()
        return list(zip(training, held_out, strict=True))

    def say_if_held(
        self, names: Sequence[str] | None = None, measure: Callable[[], Scores | None] = lambda: None
    ) -> None:
        """Print one line at the run's end if a rectangle that was asked for was not reached; its loss is a mean."""
        reached = self.algorithm.tightness_of_tasks
        if min(reached) == 1.0:
            return
        if names is None:
            min_tpr, max_fpr = self.algorithm.rectangle
            where = (
                f"Your rectangle was not fully trained. Training shrank it {reached[0]:.0%} of the way, "
                f"to min_tpr={min_tpr:.2f} and max_fpr={max_fpr:.2f}"
            )
        else:
            short = [f"{name} {share:.0%}" for name, share in zip(names, reached, strict=True) if share < 1.0]
            where = (
                f"The rectangles of {len(short)} of {len(reached)} labels were not fully trained. Training shrank them "
                f"part of the way: {listed(short)}"
            )
        held = [label for label, is_held in enumerate(self.held) if is_held]
        if not held:
            rank_zero_info(f"{where}. Then the run ended: train longer.")
            return
        scores = measure()
        both = zip(*(self._both_ratios([1.0], scores, label)[0] for label in held), strict=True)
        known = [(fmean(ratios), data) for ratios, data in zip(both, ("training", "validation"), strict=True)]
        measured = " and ".join(f"{ratio:.0%} ({data})" for ratio, data in known if not math.isnan(ratio))
        rank_zero_info(
            f"{where}. Inside yours, the loss is {measured} of that of a model that gives all the same score. "
            "Train longer, lower `lr`, or ask for a larger rectangle."
        )

    def diagnostics(self) -> dict[str, Tensor]:
        """The rectangle in use, of several labels at their mean tightness, and the mean ratio."""
        min_tpr, max_fpr = self.algorithm.rectangle
        known = [ratio for ratio in self.ratios if not math.isnan(ratio)]
        values = {"min_tpr": min_tpr, "max_fpr": max_fpr, **({"objective_ratio": fmean(known)} if known else {})}
        return {name: torch.tensor(value) for name, value in values.items()}


def shrinking_progress(trainer: Trainer, batches_seen: int, steps: int) -> float:
    """How far the shrinking should be, in [0, 1]: by steps, or by the clock where ``max_time`` ends the run earlier."""
    return min(1.0, max(batches_seen / steps, share_of_time(trainer) / SHARE))
