"""When the trained rectangle shrinks, and when it stays as it is.

A small rectangle holds few pairs, which a model that knows nothing yet would choose badly. So training begins with the
unit square, where every pair counts, and shrinks it to the rectangle that was asked for. A rectangle that is out of
reach would destroy the model: once the mean loss of its pairs is near l(0), the loss of a constant model, the constant
model minimises every convex surrogate. So the rectangle stops shrinking before the loss comes near l(0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, Algorithm, TrainingScores
from lightning_tpauc.functional.objective import objective_ratio
from lightning_tpauc.optimization import steps_of_share
from lightning_tpauc.training.training_scores import ScoreMemory

#: Share of the run in which the rectangle shrinks. The rest of the run trains on the rectangle that was asked for.
_SHARE = 0.5
#: The shrinking takes at most this many epochs, since early stopping may end a run long before its nominal length.
_MAX_EPOCHS = 20
#: Number of steps of the shrinking if the run has neither an end nor epochs.
_WITHOUT_END = 1000
#: Number of moves of the shrinking.
_MOVES = 20


#: Of each of several tasks, ``None`` where they are unknown.
Scores = TrainingScores | Sequence[TrainingScores | None]


class RectangleSchedule:
    """Moves :attr:`Algorithm.tightness` from 0 towards 1.

    Several tasks have one tightness, and what is compared with ``hold_at`` is the mean of their ratios, each with the
    weight that its loss has.

    Args:
        algorithm: whose rectangle shrinks.
        steps: length of the shrinking, see :func:`shrinking_steps`.
        hold_at: share of l(0), the loss of a constant model, that the objective must stay below.

    Attributes:
        held: whether the last move was refused.
        ratio: objective at the present rectangle divided by l(0), the larger one of training and held-out scores; nan
            before the first move.
        held_out: the same ratio for the last validation's scores at each tightness of :data:`TIGHTNESS_GRID`; empty
            before the first validation.
    """

    def __init__(self, algorithm: Algorithm, steps: int, hold_at: float = 0.85) -> None:
        self.algorithm, self.steps, self.hold_at = algorithm, steps, hold_at
        self.held, self.ratio = False, math.nan
        self.held_out: list[float] = []

    def start(self) -> None:
        """Begin with the unit square."""
        self.algorithm.tightness, self.held, self.ratio, self.held_out = 0.0, False, math.nan, []

    def move_if_due(self, trainer: Trainer, batches_seen: int, memory: ScoreMemory | None) -> None:
        """Move the rectangle after a step if a move is due; all ranks move alike."""
        if move_is_due(batches_seen, self.steps):
            progress = trainer.strategy.broadcast(shrinking_progress(trainer, batches_seen, self.steps))
            self.move(progress, memory.known_scores() if memory is not None else None)

    def move(self, progress: float, scores: Scores | None) -> None:
        """Shrink the rectangle to where it should be by now, unless the objective would come too near to l(0).

        One call moves it by two regular moves at most.

        Args:
            progress: how far the shrinking should be, in [0, 1].
            scores: the last known training scores. If there are none, the held-out ones decide alone. If there are none
                of these either, nothing moves.
        """
        algorithm = self.algorithm
        if algorithm.tightness < 1.0:
            candidate = min(progress, algorithm.tightness + 2.0 / _MOVES)
            ratio = self.ratio_at(candidate, scores)
            self.held = ratio >= self.hold_at
            if ratio < self.hold_at:  # false for nan, where nothing is known
                algorithm.tightness, self.ratio = candidate, ratio
                return
        self.ratio = self.ratio_at(algorithm.tightness, scores)

    def ratio_at(self, tightness: float, scores: Scores | None) -> float:
        """The larger of the ratios of training and held-out scores; nan if neither is known."""
        known = [self._training_ratio(tightness, scores), self._held_out_ratio(tightness)]
        return max((ratio for ratio in known if not math.isnan(ratio)), default=math.nan)

    def say_if_held(self) -> None:
        """Print one line at the run's end if the rectangle that was asked for was not reached."""
        algorithm = self.algorithm
        if algorithm.tightness < 1.0:
            min_tpr, max_fpr = algorithm.rectangle  # of tasks without one of their own
            reason = (
                f"nearer to it, the objective came to {self.hold_at:.0%} of that of a constant model, and training "
                "there makes a model constant."
            )
            rank_zero_info(
                f"Trained at TPR >= {min_tpr:.2f}, FPR <= {max_fpr:.2f}, {algorithm.tightness:.0%} of the way to "
                f"min_tpr={algorithm.min_tpr:g}, max_fpr={algorithm.max_fpr:g}: "
                f"{reason if self.held else 'the run ended before.'}"
            )

    def diagnostics(self) -> dict[str, Tensor]:
        """The rectangle in use, and how near its objective is to that of a constant model."""
        min_tpr, max_fpr = self.algorithm.rectangle
        values = {"min_tpr": min_tpr, "max_fpr": max_fpr, "objective_ratio": self.ratio}
        return {name: torch.tensor(value) for name, value in values.items() if not math.isnan(value)}

    def state_dict(self) -> dict[str, Any]:
        """The last decision and what it was based on; the tightness is part of the algorithm's state."""
        return {"held": self.held, "ratio": self.ratio, "held_out": list(self.held_out)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.held, self.ratio = bool(state["held"]), float(state["ratio"])
        self.held_out = [float(ratio) for ratio in state["held_out"]]

    def _training_ratio(self, tightness: float, scores: Scores | None) -> float:
        algorithm, surrogate = self.algorithm, getattr(self.algorithm, "surrogate", None)
        if scores is None or surrogate is None:
            return math.nan
        if isinstance(scores, TrainingScores):
            return float(objective_ratio(*scores, *algorithm.rectangle_at(tightness), surrogate))
        rectangles = algorithm.rectangles_at(tightness)
        ratios = [
            math.nan if own is None else float(objective_ratio(*own, *rectangle, surrogate))
            for own, rectangle in zip(scores, rectangles, strict=True)
        ]
        weights = [task.weight for task in algorithm.tasks or ()]
        known = [(w, ratio) for w, ratio in zip(weights, ratios, strict=True) if w and not math.isnan(ratio)]
        return sum(w * ratio for w, ratio in known) / sum(w for w, _ in known) if known else math.nan

    def _held_out_ratio(self, tightness: float) -> float:
        return _interpolate(TIGHTNESS_GRID, self.held_out, tightness) if self.held_out else math.nan


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


def _interpolate(grid: Sequence[float], values: Sequence[float], at: float) -> float:
    k = min(int(at * (len(grid) - 1)), len(grid) - 2)
    share = (at - grid[k]) / (grid[k + 1] - grid[k])
    return (1.0 - share) * values[k] + share * values[k + 1]
