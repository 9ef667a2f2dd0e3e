"""When the trained rectangle shrinks, and when it stays as it is.

A small rectangle holds few pairs, which a model that knows nothing yet would choose badly. So training begins with the
unit square, where every pair counts, and shrinks it to the rectangle that was asked for. A rectangle that is out of
reach would destroy the model: once the mean loss of its pairs is near l(0), the loss of a constant model, the constant
model minimises every convex surrogate. So the rectangle stops shrinking before the loss comes near l(0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, Algorithm, TrainingScores, count_in_loss
from lightning_tpauc.functional.objective import objective_ratio
from lightning_tpauc.scoring.forward import ScoringModel
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.training.optimizer import steps_of_share
from lightning_tpauc.training.scores import ScoreMemory, score_next_batches

#: Share of the run in which the rectangle shrinks. The rest of the run trains on the rectangle that was asked for.
_SHARE = 0.5
#: The shrinking takes at most this many epochs, since early stopping may end a run long before its nominal length.
_MAX_EPOCHS = 20
#: Number of steps of the shrinking if the run has neither an end nor epochs.
_WITHOUT_END = 1000
#: A forward pass before a move takes at most so many batches.
_MOST_BATCHES = 16
#: Number of moves of the shrinking.
_MOVES = 20
#: Outside this range of ratios the scores of the last steps, of slightly older weights, decide alone.
_IN_DOUBT = (0.6, 1.0)
#: After repeated refusals, at most so many moves go by until the next forward pass.
_MOST_WAITING = 3

#: Scores of training examples of each label; ``None`` for a label whose scores are unknown.
Scores = Sequence[TrainingScores | None]


class RectangleSchedule:
    """Moves the tightness of an algorithm's rectangles from 0 towards 1, separately for each label.

    All lists have an entry for each label, one if there is one label.

    Attributes:
        held: whether the last move was refused.
        ratios: the objective at the present rectangle divided by l(0), on training or on held-out scores, whichever is
            larger; nan before the first move.
        held_out: this ratio of the last validation's scores at each tightness of :data:`TIGHTNESS_GRID`; empty before
            the first validation.
        decided_after: number of batches after which the last move was made or refused.
        refusals: how many forward passes in a row have refused a move.
        waits: how many moves in doubt are left out until the next forward pass.
    """

    #: The tightness is part of the algorithm's state.
    saved = ("held", "ratios", "held_out", "decided_after", "refusals", "waits")

    def __init__(self, algorithm: Algorithm, steps: int, hold_at: float = 0.85) -> None:
        self.algorithm, self.steps, self.hold_at = algorithm, steps, hold_at
        self.every = max(1, steps // _MOVES)
        self._forget()

    def start(self) -> None:
        """Begin with the unit square."""
        self.algorithm.tightness = 0.0
        self._forget()

    def _forget(self) -> None:
        count = self.algorithm.num_tasks or 1
        self.held, self.ratios = [False] * count, [math.nan] * count
        self.held_out: list[list[float]] = []
        self.decided_after = self.refusals = self.waits = 0

    def move_if_due(self, module: ScoringModel, batches_seen: int, memory: ScoreMemory | None) -> None:
        """Move the rectangle after a step if a move is due and was not decided on before; all ranks move alike.

        A move is due 20 times over the shrinking, and as often afterwards. Another callback may save a checkpoint
        between a step's end and its move. Resuming then makes the move.
        """
        if batches_seen % self.every == 0 and batches_seen > self.decided_after:
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
        counted = count_in_loss(self.algorithm.tasks)
        asked = [label for label, now in enumerate(reached) if now < 1.0 and counted[label]]
        doubtful = [label for label in asked if self._is_in_doubt(candidates[label], scores, label)]
        fresh = measure() if doubtful and not self.waits else None
        waiting, self.waits = self.waits > 0, max(0, self.waits - bool(doubtful))
        scores = fresh or scores
        for label, now in enumerate(reached):
            if waiting and label in doubtful:
                continue
            ratio = self._ratio(candidates[label], scores, label)
            self.held[label] = label in asked and ratio >= self.hold_at
            if not counted[label] or ratio < self.hold_at:  # false for nan, where nothing is known
                reached[label] = candidates[label]
            self.ratios[label] = ratio if reached[label] > now else self._ratio(now, scores, label)
        self.algorithm.tightness_of_tasks = reached
        if fresh is not None:
            self.refusals = self.refusals + 1 if any(self.held[label] for label in doubtful) else 0
            self.waits = min(_MOST_WAITING, max(0, self.refusals - 1))

    def _is_in_doubt(self, tightness: float, scores: Scores | None, label: int) -> bool:
        """Whether the scores of the last steps are to decide, and may be wrong."""
        training, held_out = self._both_ratios(tightness, scores, label)
        return not held_out >= self.hold_at and not (training < _IN_DOUBT[0] or training >= _IN_DOUBT[1])

    def _ratio(self, tightness: float, scores: Scores | None, label: int) -> float:
        """The larger of both ratios; nan if neither is known."""
        both = self._both_ratios(tightness, scores, label)
        return max((ratio for ratio in both if not math.isnan(ratio)), default=math.nan)

    def _both_ratios(self, tightness: float, scores: Scores | None, label: int) -> tuple[float, float]:
        """Of training and of held-out scores; nan if unknown."""
        known = None if scores is None else scores[label]
        surrogate, training = getattr(self.algorithm, "surrogate", None), math.nan
        if known is not None and surrogate is not None:
            training = float(objective_ratio(*known, *self.algorithm.rectangle_at(tightness, label), surrogate))
        held_out = _interpolate(TIGHTNESS_GRID, self.held_out[label], tightness) if self.held_out else math.nan
        return training, held_out

    def say_if_held(
        self, names: Sequence[str] | None = None, measure: Callable[[], Scores | None] = lambda: None
    ) -> None:
        """Print one line at the run's end if a rectangle that was asked for was not reached."""
        reached = self.algorithm.tightness_of_tasks
        if min(reached) == 1.0:
            return
        if names is None:
            min_tpr, max_fpr = self.algorithm.rectangle
            where = (
                f"Your rectangle was not fully trained, only {reached[0]:.0%} of the way from all pairs to it "
                f"(min_tpr={min_tpr:.2f}, max_fpr={max_fpr:.2f})"
            )
        else:
            short = [f"{name} {share:.0%}" for name, share in zip(names, reached, strict=True) if share < 1.0]
            where = (
                f"The rectangles of {len(short)} of {len(reached)} labels were not fully trained, only part of the way "
                f"from all pairs to them: {listed(short)}"
            )
        rank_zero_info(f"{where}{self._why_held(measure)}")

    def _why_held(self, measure: Callable[[], Scores | None]) -> str:
        """What the model is worth in the rectangle that was asked for; the mean of the labels that were held."""
        held = [label for label, is_held in enumerate(self.held) if is_held]
        if not held:
            return ": the run ended first. Train longer."
        scores = measure()
        both = [self._both_ratios(1.0, scores, label) for label in held]
        training, held_out = (fmean(ratios[side] for ratios in both) for side in (0, 1))
        known = ((training, "training data"), (held_out, "validation data"))
        measured = ", ".join(f"{ratio:.0%} on {data}" for ratio, data in known if not math.isnan(ratio))
        loss = f": inside it the model's loss, against that of one that gives all the same score, is {measured}"
        if training < self.hold_at <= held_out:
            return f"{loss}. It learnt few positives by heart: train on more of them, or take a smaller model."
        return f"{loss}. Train longer, lower `lr`, or enlarge it."

    def diagnostics(self) -> dict[str, Tensor]:
        """The rectangle in use, and how near its objective is to that of a constant model.

        Several labels have the mean ratio, and the rectangle of a label without one of its own at the mean tightness.
        """
        min_tpr, max_fpr = self.algorithm.rectangle
        known = [ratio for ratio in self.ratios if not math.isnan(ratio)]
        values = {"min_tpr": min_tpr, "max_fpr": max_fpr, **({"objective_ratio": fmean(known)} if known else {})}
        return {name: torch.tensor(value) for name, value in values.items()}


def shrinking_steps(trainer: Trainer) -> int:
    """Length of the shrinking, in steps: half of the run, at most 20 epochs."""
    return steps_of_share(trainer, _SHARE, _MAX_EPOCHS, _WITHOUT_END)


def shrinking_progress(trainer: Trainer, batches_seen: int, steps: int) -> float:
    """How far the shrinking should be, in [0, 1]: by steps, or by the clock where ``max_time`` ends the run earlier."""
    progress = batches_seen / steps
    for timer in trainer.callbacks:  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
        left = timer.time_remaining() if isinstance(timer, Timer) else None
        if left is not None:
            elapsed = timer.time_elapsed()
            progress = max(progress, elapsed / (_SHARE * (elapsed + left)))
    return min(1.0, progress)


def _interpolate(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    k = min(int(at * (len(grid) - 1)), len(grid) - 2)
    share = (at - grid[k]) / (grid[k + 1] - grid[k])
    return (1.0 - share) * values[k] + share * values[k + 1]
