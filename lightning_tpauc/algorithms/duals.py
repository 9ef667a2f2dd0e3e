"""Dual variables that follow from two tracked scores."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import PairwiseAlgorithm, TrainingScores
from lightning_tpauc.algorithms.state import put_, take
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.averaging import mean_from_changes, record_change_
from lightning_tpauc.functional.duals import (
    activate_ties,
    border_scores,
    border_step,
    border_thresholds,
    border_weights,
    exact_duals,
)
from lightning_tpauc.functional.pairwise import TaskMasks, in_play, masked_mean, there, with_dual_negatives
from lightning_tpauc.functional.staco import dual_weight_step, global_threshold_step, threshold_step


class DualAlgorithm(PairwiseAlgorithm):
    """An algorithm with dual variables: the settings and the state that its :class:`Duals` work on."""

    alpha: float
    beta: float
    beta_prime: float
    gamma: float
    dual_init: Literal["exact", "ones", "zeros"]
    stage_restart: Literal["exact", "ones"]
    positive_weights: Tensor | None

    y: Tensor
    s: Tensor
    s_prime: Tensor
    s_anchor: Tensor
    s_moments: Tensor
    s_prime_sum: Tensor
    stage_steps: Tensor
    neg_border: Tensor
    pos_border: Tensor
    border_steps: Tensor


class Duals(ABC):
    """What a step of STACO asks for, line by line, and what happens between stages.

    The variables are part of the algorithm's declared state, from which checkpoints, device moves and roll-back follow.

    Args:
        algorithm: whose variables these are; its settings are complete.

    Raises:
        ArgumentError: if its settings do not suit the kind.
    """

    #: The value of ``STACO(duals=...)`` that chooses this kind.
    kind: ClassVar[str]
    #: Which argument is the step size of which variable.
    step_sizes: ClassVar[dict[str, str]] = {}
    #: Whether any batch gives the variables their start.
    starts_from_batch: ClassVar[bool] = False

    def __init__(self, algorithm: DualAlgorithm) -> None:
        self.algorithm = algorithm
        self._check()
        others = algorithm.declared
        self._declare()
        self._own = algorithm.declared - others

    def withdraw(self) -> None:
        """Take the variables back from the algorithm's state, for those of another kind."""
        for name in self._own:
            self.algorithm.remove_state(name)

    @abstractmethod
    def _check(self) -> None: ...

    @abstractmethod
    def _declare(self) -> None: ...

    @property
    @abstractmethod
    def global_threshold(self) -> Tensor:
        """:math:`s'`, shape ``()``."""

    @abstractmethod
    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor, masks: TaskMasks | None) -> Tensor:
        """The thresholds ``(S,)`` of the sampled positives that the step goes by."""

    @abstractmethod
    def ascend(
        self, index: Tensor, pos_scores: Tensor, risk: Tensor, unit: Tensor | float, masks: TaskMasks | None
    ) -> Tensor:
        """Line 1: the dual weights ``(S,)`` of the sampled positives, given their risks and the unit of the loss."""

    @abstractmethod
    def descend(
        self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float, masks: TaskMasks | None
    ) -> None:
        """Lines 2 and 4, given the thresholds, the new dual weights and the share of active pairs, all ``(S,)``."""

    @abstractmethod
    def diagnostics(self) -> dict[str, Tensor]:
        """Scalars that tell how the run goes."""

    @abstractmethod
    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates."""

    @abstractmethod
    def start_from_batch(
        self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor, masks: TaskMasks | None, started: list[bool]
    ) -> None:
        """Start the variables of each task from the first batch that it is in, if no training scores are known.

        Args:
            pos_scores: float tensor ``(S,)``.
            neg_scores: float tensor ``(B,)``.
            index: which positives these are.
            masks: which scores of K tasks are there.
            started: of each task, whether it has its start; set for those that get theirs.
        """

    @abstractmethod
    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """Before the first step: solve for ``scores``, if there are any."""

    @abstractmethod
    def finish_stage(self) -> None:
        """End a stage: the weights become their averages, and so do the variables that have averages."""

    @abstractmethod
    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """Begin a stage: solve for ``scores``, if there are any."""


class PerPositiveDuals(Duals):
    r"""The paper's variables, which follow gradients: :math:`y_i` and :math:`s_i` of each positive, and :math:`s'`."""

    kind = "per_positive"
    step_sizes: ClassVar[dict[str, str]] = {
        "y": "alpha",
        "s": "beta",
        "s_moments": "beta",
        "s_prime": "beta_prime",
        "s_prime_sum": "beta_prime",
    }
    #: Kind of the thresholds' state: whether a step changes those of its positives, or all.
    _threshold_kind: Literal["positive", "dense"] = "positive"

    def _check(self) -> None:
        own = self.algorithm
        used = ("dual_init", "stage_restart") if own.has_stages else ("dual_init",)
        exact = [name for name in used if getattr(own, name) == "exact"]
        if exact and not own.surrogate.monotone:
            msg = (
                f"`{exact[0]}='exact'` needs a non-decreasing surrogate, but {own.surrogate.name!r} falls again on "
                "the left of -margin, so the hardest negatives differ between positives. "
                "Set `dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
            )
            raise ArgumentError(msg)

    def _declare(self) -> None:
        own = self.algorithm
        start = 0.0 if own.dual_init == "zeros" else 1.0
        own.add_state("y", "positive", fill=1.0)
        own.add_state("s", self._threshold_kind, fill=start)
        own.add_state("s_prime", "scalar", fill=start)
        own.add_state("s_anchor", "positive", fill=start)
        own.add_state("s_moments", self._threshold_kind)
        own.add_state("s_prime_sum", "scalar")
        own.add_state("stage_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor:
        """:math:`s'`."""
        return self.algorithm.s_prime

    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor, masks: TaskMasks | None) -> Tensor:  # noqa: ARG002
        r""":math:`s_i` from before the step."""
        return take(self.algorithm.s, index)

    def ascend(
        self,
        index: Tensor,
        pos_scores: Tensor,  # noqa: ARG002
        risk: Tensor,
        unit: Tensor | float,
        masks: TaskMasks | None,
    ) -> Tensor:
        r"""Line 1: :math:`y_i` takes its step."""
        own = self.algorithm
        y = dual_weight_step(take(own.y, index), risk, own.s_prime, own.step_scale * own.alpha / unit, own.thetas[0])
        y = y if masks is None else there(y, masks.pos)
        put_(own.y, index, y)
        return y

    def descend(
        self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float, masks: TaskMasks | None
    ) -> None:
        r"""Lines 2 and 4: :math:`s_i` and :math:`s'` take theirs."""
        own = self.algorithm
        # the proximal term divides s by gamma, and has no unit where gamma has that of s; STACO1 has no such term
        gamma = own.gamma * unit if own.has_stages else own.gamma
        self._descend_thresholds(index, s, y, active, own.step_scale * own.beta * unit, gamma, masks)
        beta_prime = own.step_scale * own.beta_prime * unit
        mean = masked_mean(y, None if masks is None else masks.pos)
        s_prime = global_threshold_step(own.s_prime, mean, beta_prime, own.thetas[0])
        own.s_prime.copy_(in_play(s_prime, own.s_prime, masks))
        own.stage_steps.add_(1 if masks is None else masks.pos.any(-1))
        own.s_prime_sum.add_(in_play(own.s_prime, 0.0, masks))

    def _descend_thresholds(
        self,
        index: Tensor,
        s: Tensor,
        y: Tensor,
        active: Tensor,
        beta: float | Tensor,
        gamma: float | Tensor,
        masks: TaskMasks | None,
    ) -> None:
        own = self.algorithm
        anchor = take(own.s_anchor, index) if own.has_stages else None
        new = threshold_step(s, y, active, beta, *own.thetas, anchor=anchor, gamma=gamma)
        new = new if masks is None else torch.where(masks.pos, new, s)
        put_(own.s, index, new)
        record_change_(own.s_moments, index, new - s, own.stage_steps)

    def diagnostics(self) -> dict[str, Tensor]:
        r""":math:`s'`, the means of :math:`s_i` and :math:`y_i`, and the deciles 1, 5 and 9 of :math:`s_i`."""
        own = self.algorithm
        s, y = own.entries(own.s), own.entries(own.y)
        means = {"s_prime": own.s_prime.mean(), "mean_s": s.mean(), "mean_y": y.mean()}
        # by rank, since torch.quantile takes at most 16 million values
        ranks = {f"s_q{10 * tenths}": -(-tenths * s.numel() // 10) for tenths in (1, 5, 9)}
        return {**means, **{name: s.kthvalue(max(1, rank)).values for name, rank in ranks.items()}}

    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates so far; O(n_pos)."""
        own = self.algorithm
        s_bar = mean_from_changes(own.s_moments, own.s, own.of_each_positive(own.stage_steps))
        s_prime_bar = torch.where(own.stage_steps > 0, own.s_prime_sum / own.stage_steps.clamp(min=1), own.s_prime)
        return s_bar, s_prime_bar

    def start_from_batch(
        self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor, masks: TaskMasks | None, started: list[bool]
    ) -> None:
        """Exact on the batch's own positives; its mean threshold for the others.

        That keeps them out of the dead zone of a start from ones.
        """
        own, rectangles = self.algorithm, self.algorithm.rectangles
        for task, (rows, pos, neg) in enumerate(_of_each_task(pos_scores, neg_scores, index, masks)):
            if not started[task] and pos.numel() and neg.numel():
                s, y, s_prime = exact_duals(pos, neg, *rectangles[task], surrogate=own.surrogate)
                s = activate_ties(s, pos, own.surrogate)
                own.entries_of(own.s, task).copy_(s.mean())
                own.entries_of(own.y, task).fill_(1.0 - rectangles[task][0])
                put_(own.s, rows, s)
                put_(own.y, rows, y)
                own.entry_of(own.s_prime, task).copy_(s_prime)
                own.entries_of(own.s_anchor, task).copy_(own.entries_of(own.s, task))
                started[task] = True

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The exact solution, or what the state was filled with."""
        if scores is not None:
            self._solve(scores)
        self._anchor()

    def finish_stage(self) -> None:
        r""":math:`(s, s') \leftarrow (\bar s, \bar s')`; these are the next anchors."""
        s_bar, s_prime_bar = self.averages()
        self.algorithm.s.copy_(s_bar)
        self.algorithm.s_prime.copy_(s_prime_bar)
        self._anchor()

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        r""":math:`y \leftarrow 1`, or the exact solution."""
        self.algorithm.y.fill_(1.0)
        if scores is not None:
            self._solve(scores)
            self._anchor()

    def _anchor(self) -> None:
        own = self.algorithm
        own.s_anchor.copy_(own.s)
        for accumulator in (own.s_moments, own.s_prime_sum, own.stage_steps):
            accumulator.zero_()

    def _solve(self, scores: TrainingScores | Sequence[TrainingScores]) -> None:
        own = self.algorithm
        weight = own.positive_weights
        for task, (of_task, bounds) in enumerate(zip(own.scores_of_tasks(scores), own.rectangles, strict=True)):
            s, y, s_prime = exact_duals(*of_task, *bounds, surrogate=own.surrogate, pos_weight=weight)
            own.entries_of(own.s, task).copy_(activate_ties(s, of_task.pos_scores, own.surrogate))
            own.entries_of(own.y, task).copy_(y)
            own.entry_of(own.s_prime, task).copy_(s_prime)


def _of_each_task(
    pos: Tensor, neg: Tensor, index: Tensor, masks: TaskMasks | None
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each task: places, scores of positives, scores of negatives. Several tasks make it wait for the device."""
    second = with_dual_negatives(masks)
    if second is None:
        return [(index, pos, neg)]
    rows = zip(index, pos, second.pos, neg, second.neg, strict=True)
    return [(i[is_pos], p[is_pos], n[is_neg]) for i, p, is_pos, n, is_neg in rows]


class TrackedDuals(Duals):
    r"""The optimal dual variables, given two scores on the rectangle's borders: running means over the batches.

    See :mod:`lightning_tpauc.functional.duals`. Nothing is kept for a positive, and nothing has a step size.
    """

    kind = "tracked"
    starts_from_batch = True

    @staticmethod
    def misfit(own: DualAlgorithm) -> str | None:
        """Why an algorithm with these arguments can't have such duals; ``None`` if it can."""
        if not own.surrogate.monotone:
            return (
                f"`duals='tracked'` needs a non-decreasing surrogate, but {own.surrogate.name!r} falls again on the "
                "left of -margin, so no one score is the border for all. Set `duals='per_positive'` with "
                "`dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
            )
        for name in ("alpha", "beta", "beta_prime", "dual_init", "stage_restart"):
            value = getattr(own, name)
            if value != _default(type(own), name):
                return (
                    f"`{name}={value!r}` is for dual variables that each positive has of its own, which "
                    f"duals='tracked' does without. Leave out `{name}`, or set `duals='per_positive'`."
                )
        return None

    def _check(self) -> None:
        if (msg := self.misfit(self.algorithm)) is not None:
            raise ArgumentError(msg)

    def _declare(self) -> None:
        self.algorithm.add_state("neg_border", "scalar")
        self.algorithm.add_state("pos_border", "scalar")
        self.algorithm.add_state("border_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor:
        r"""0: :math:`s'` cancels where the mean of y is :math:`\theta_0`, and no gradient depends on it."""
        return torch.zeros_like(self.algorithm.neg_border)

    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor, masks: TaskMasks | None) -> Tensor:  # noqa: ARG002
        r"""The borders take in the batch; then :math:`s_i = \ell(c - h_i)`."""
        own = self.algorithm
        self._track(pos_scores, dual_neg_scores, masks)
        return border_thresholds(pos_scores, own.neg_border, surrogate=own.surrogate)

    def ascend(
        self,
        index: Tensor,  # noqa: ARG002
        pos_scores: Tensor,
        risk: Tensor,  # noqa: ARG002
        unit: Tensor | float,  # noqa: ARG002
        masks: TaskMasks | None,
    ) -> Tensor:
        r""":math:`y_i = 1[h_i \le p]`."""
        own = self.algorithm
        return border_weights(pos_scores, own.pos_border, own.thetas[0], None if masks is None else masks.pos)

    def descend(
        self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float, masks: TaskMasks | None
    ) -> None:
        """Nothing is left to do."""

    def diagnostics(self) -> dict[str, Tensor]:
        """The two borders."""
        return {name: getattr(self.algorithm, name).mean() for name in ("neg_border", "pos_border")}

    def averages(self) -> tuple[Tensor, Tensor]:
        """Raise :class:`UnsupportedError`: no thresholds are kept."""
        msg = "`duals='tracked'` keeps no thresholds to average. Set `duals='per_positive'`."
        raise UnsupportedError(msg)

    def start_from_batch(
        self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor, masks: TaskMasks | None, started: list[bool]
    ) -> None:
        """Never needed: every first step takes its batch's own borders."""

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The borders of ``scores``, or of the first batch."""
        self.algorithm.border_steps.zero_()
        if scores is not None:
            self._track_all(scores)

    def finish_stage(self) -> None:
        """The averaged weights have other scores: begin anew."""
        self.algorithm.border_steps.zero_()

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None) -> None:
        """The borders of ``scores``, or of the next batch."""
        self.start(scores)

    def _track(self, pos_scores: Tensor, neg_scores: Tensor, masks: TaskMasks | None) -> None:
        own = self.algorithm
        self._move(*border_scores(pos_scores, neg_scores, *own.bounds, with_dual_negatives(masks)), masks)

    def _track_all(self, scores: TrainingScores | Sequence[TrainingScores]) -> None:
        own = self.algorithm
        if own.positive_weights is not None:
            found = own.scores_of_tasks(scores)
            scores = [one._replace(pos_scores=_copies(one.pos_scores, own.positive_weights)) for one in found]
        both = zip(own.scores_of_tasks(scores), own.rectangles, strict=True)
        borders = [border_scores(*one, *bounds) for one, bounds in both]
        pos, neg = (torch.stack(of_tasks).view_as(own.pos_border) for of_tasks in zip(*borders, strict=True))
        self._move(pos, neg, None)

    def _move(self, pos: Tensor, neg: Tensor, masks: TaskMasks | None) -> None:
        own = self.algorithm
        for border, of_batch in ((own.pos_border, pos), (own.neg_border, neg)):
            border.copy_(in_play(border_step(border, of_batch, own.border_steps), border, masks))
        own.border_steps.add_(1 if masks is None else masks.pos.any(-1))


def _default(kind: type[DualAlgorithm], name: str) -> object:
    """The default of an argument in the class that brought it in: subclasses may have others, or no such argument."""
    for base in reversed(kind.__mro__):
        if name in (parameters := inspect.signature(base).parameters):
            return parameters[name].default
    return inspect.Parameter.empty


def _copies(scores: Tensor, weight: Tensor) -> Tensor:
    """Ten times as many scores, in which each is as frequent as its weight says, give or take one copy."""
    ends, count = weight.cumsum(0), 10 * scores.numel()
    places = (torch.arange(count, device=weight.device, dtype=weight.dtype) + 0.5) / count * ends[-1]
    return scores[torch.searchsorted(ends, places).clamp(max=scores.numel() - 1)]
