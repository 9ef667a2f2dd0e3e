"""When the trained rectangle shrinks, and when it stays as it is.

A small rectangle holds few pairs, which a model that knows nothing yet would choose badly. So training begins with the
unit square, where every pair counts, and shrinks it to the rectangle that was asked for. A rectangle that is out of
reach would destroy the model: once the mean loss of its pairs is near l(0), the loss of a constant model, the constant
model minimises every convex surrogate. So the rectangle stops shrinking before the loss comes near l(0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, Algorithm, TrainingScores, count_in_loss
from lightning_tpauc.functional.objective import objective_ratio
from lightning_tpauc.scoring.labels import listed
from lightning_tpauc.training.schedules import steps_of_share
from lightning_tpauc.training.scores import ScoreMemory

#: Share of the run in which the rectangle shrinks. The rest of the run trains on the rectangle that was asked for.
_SHARE = 0.5
#: The shrinking takes at most this many epochs, since early stopping may end a run long before its nominal length.
_MAX_EPOCHS = 20
#: Number of steps of the shrinking if the run has neither an end nor epochs.
_WITHOUT_END = 1000
#: Number of moves of the shrinking.
_MOVES = 20

#: Training scores of one task, or of each of several; ``None`` for a task whose scores are unknown.
Scores = TrainingScores | Sequence[TrainingScores | None]


class RectangleSchedule:
    """Moves :attr:`Algorithm.tightness` from 0 towards 1, separately for each of several tasks.

    Args:
        algorithm: whose rectangle shrinks.
        steps: length of the shrinking, see :func:`shrinking_steps`.
        hold_at: share of l(0), the loss of a constant model, that the objective must stay below.

    Attributes:
        held: for each task, whether its last move was refused. Lists by task have one entry if there is one task.
        refused: for each task, the ratios of training and of held-out scores at the move that was refused last; nan if
            unknown.
        ratios: for each task, the objective at the present rectangle divided by l(0), on training or on held-out
            scores, whichever is larger; nan before the first move.
        held_out: for each task, this ratio of the last validation's scores at each tightness of
            :data:`TIGHTNESS_GRID`; empty before the first validation.
        decided_after: number of batches after which the last move was made or refused.
    """

    def __init__(self, algorithm: Algorithm, steps: int, hold_at: float = 0.85) -> None:
        self.algorithm, self.steps, self.hold_at = algorithm, steps, hold_at
        self._forget()

    def start(self) -> None:
        """Begin with the unit square."""
        self.algorithm.tightness = 0.0
        self._forget()

    def _forget(self) -> None:
        count = self.algorithm.num_tasks or 1
        self.held, self.ratios = [False] * count, [math.nan] * count
        self.refused = [(math.nan, math.nan)] * count
        self.held_out: list[list[float]] = []
        self.decided_after = 0

    def move_if_due(self, trainer: Trainer, batches_seen: int, memory: ScoreMemory | None) -> None:
        """Move the rectangle after a step if a move is due and was not decided on before; all ranks move alike.

        Another callback may save a checkpoint between a step's end and its move. Resuming then makes the move.
        """
        if move_is_due(batches_seen, self.steps) and batches_seen > self.decided_after:
            self.decided_after = batches_seen
            progress = trainer.strategy.broadcast(shrinking_progress(trainer, batches_seen, self.steps))
            self.move(progress, memory.known_scores() if memory is not None else None)

    def move(self, progress: float, scores: Scores | None) -> None:
        """Shrink each task's rectangle to where it should be by now, unless its objective would come too near to l(0).

        One call moves it by two regular moves at most. A task of weight 0 is never held: it trains nothing.

        Args:
            progress: how far the shrinking should be, in [0, 1].
            scores: the last known training scores. Without them the held-out scores decide alone; without both nothing
                moves.
        """
        reached = list(self.algorithm.tightness_of_tasks)
        of_tasks = [scores] * len(reached) if scores is None or isinstance(scores, TrainingScores) else scores
        count = count_in_loss(self.algorithm.tasks)
        for task, (now, own) in enumerate(zip(reached, of_tasks, strict=True)):
            if now < 1.0:
                candidate = min(progress, now + 2.0 / _MOVES)
                both = self._both_ratios(candidate, own, task)
                ratio = _larger(both) if count[task] else 0.0  # nothing is trained there
                self.held[task] = ratio >= self.hold_at
                if self.held[task]:
                    self.refused[task] = both
                if ratio < self.hold_at:  # false for nan, where nothing is known
                    reached[task], self.ratios[task] = candidate, ratio
                    continue
            self.ratios[task] = self.ratio_at(now, own, task)
        self.algorithm.tightness_of_tasks = reached

    def ratio_at(self, tightness: float, scores: TrainingScores | None, task: int = 0) -> float:
        """The larger of the ratios of a task's training and held-out scores; nan if neither is known."""
        return _larger(self._both_ratios(tightness, scores, task))

    def _both_ratios(self, tightness: float, scores: TrainingScores | None, task: int) -> tuple[float, float]:
        return self._training_ratio(tightness, scores, task), self._held_out_ratio(tightness, task)

    def say_if_held(self, names: Sequence[str] | None = None) -> None:
        """Print one line at the run's end if a rectangle that was asked for was not reached.

        Args:
            names: of several tasks.
        """
        algorithm = self.algorithm
        reached = algorithm.tightness_of_tasks
        if min(reached) == 1.0:
            return
        reason = self._why_held()
        if names is None:
            min_tpr, max_fpr = algorithm.rectangle
            rank_zero_info(
                f"Trained at TPR >= {min_tpr:.2f}, FPR <= {max_fpr:.2f}, {reached[0]:.0%} of the way to "
                f"min_tpr={algorithm.min_tpr:g}, max_fpr={algorithm.max_fpr:g}: {reason}"
            )
            return
        short = [f"{name} {own:.0%}" for name, own in zip(names, reached, strict=True) if own < 1.0]
        rank_zero_info(
            f"{len(short)} of {len(reached)} labels were trained on a part of the way from the unit square to their "
            f"rectangle: {listed(short)}. {reason[0].upper()}{reason[1:]}"
        )

    def _why_held(self) -> str:
        """Why the rectangle was held; of several tasks, the mean of those that were."""
        held = [k for k, refused in enumerate(self.held) if refused]
        if not held:
            return "the run ended first."
        training, held_out = (fmean(self.refused[k][side] for k in held) for side in (0, 1))
        if training < self.hold_at <= held_out:
            return (
                f"nearer to it, the objective came to {held_out:.0%} of that of a constant model on validation data, "
                f"and to {training:.0%} on training data."
            )
        reached = fmean(self.ratios[k] for k in held)
        if reached >= 1.0:
            return f"there already, the objective came to {reached:.0%} of that of a constant model."
        return (
            f"nearer to it, the objective came to {self.hold_at:.0%} of that of a constant model, and training there "
            "makes a model constant."
        )

    def diagnostics(self) -> dict[str, Tensor]:
        """The rectangle in use, and how near its objective is to that of a constant model.

        Several tasks have the mean ratio, and the rectangle of a task without one of its own at the mean tightness.
        """
        min_tpr, max_fpr = self.algorithm.rectangle
        known = [ratio for ratio in self.ratios if not math.isnan(ratio)]
        values = {"min_tpr": min_tpr, "max_fpr": max_fpr, **({"objective_ratio": fmean(known)} if known else {})}
        return {name: torch.tensor(value) for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """The last decisions and what they were based on; the tightness is part of the algorithm's state."""
        return {
            "held": list(self.held),
            "refused": list(self.refused),
            "ratio": list(self.ratios),
            "held_out": [list(own) for own in self.held_out],
            "decided_after": self.decided_after,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; earlier versions kept one entry for all tasks."""
        count, names = len(self.held), ("held", "ratio", "held_out")
        if not isinstance(state["held"], list):
            state = {**state, **{name: [state[name]] * count for name in names}}
        self.held, self.ratios = list(state["held"]), list(state["ratio"])
        self.held_out = [list(own) for own in state["held_out"] if own]
        # earlier versions kept neither; deciding once more does no harm
        self.refused = [(own[0], own[1]) for own in state.get("refused", [(math.nan, math.nan)] * count)]
        self.decided_after = int(state.get("decided_after", 0))

    def _training_ratio(self, tightness: float, scores: TrainingScores | None, task: int) -> float:
        surrogate = getattr(self.algorithm, "surrogate", None)
        if scores is None or surrogate is None:
            return math.nan
        return float(objective_ratio(*scores, *self.algorithm.rectangle_at(tightness, task), surrogate))

    def _held_out_ratio(self, tightness: float, task: int) -> float:
        return _interpolate(TIGHTNESS_GRID, self.held_out[task], tightness) if self.held_out else math.nan


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


def move_is_due(batches_seen: int, steps: int) -> bool:
    """Whether the rectangle may move after this batch: 20 times over the shrinking, and as often afterwards."""
    return batches_seen % max(1, steps // _MOVES) == 0


def _larger(ratios: Sequence[float]) -> float:
    """The largest that is known; nan if none is."""
    return max((ratio for ratio in ratios if not math.isnan(ratio)), default=math.nan)


def _interpolate(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    k = min(int(at * (len(grid) - 1)), len(grid) - 2)
    share = (at - grid[k]) / (grid[k + 1] - grid[k])
    return (1.0 - share) * values[k] + share * values[k + 1]
