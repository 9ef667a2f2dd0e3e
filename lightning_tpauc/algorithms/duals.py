"""Where STACO's dual variables come from: each positive has its own, or two tracked scores stand for all."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.algorithms.pairwise import PairwiseAlgorithm
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.averaging import mean_from_changes, record_change_
from lightning_tpauc.functional.duals import activate_ties, exact_duals
from lightning_tpauc.functional.staco import dual_weight_step, global_threshold_step, threshold_step
from lightning_tpauc.functional.tracked import border_scores, border_step, border_thresholds, border_weights

__all__ = ("DualAlgorithm", "Duals", "PerPositiveDuals", "TrackedDuals")


class DualAlgorithm(PairwiseAlgorithm):
    """An algorithm with dual variables: the settings and the state that its :class:`Duals` work on."""

    alpha: float
    beta: float
    beta_prime: float
    gamma: float
    dual_init: Literal["exact", "ones", "zeros"]
    stage_restart: Literal["exact", "ones"]

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

    The variables are declared as the algorithm's state: checkpoints, devices and roll-back know one place.

    Args:
        algorithm: whose variables these are; its settings are complete.

    Raises:
        ArgumentError: if its settings do not suit the kind.
    """

    #: Which argument is the step size of which variable.
    step_sizes: ClassVar[dict[str, str]] = {}

    def __init__(self, algorithm: DualAlgorithm) -> None:
        self.algorithm = algorithm
        self._check()
        self._declare()

    @abstractmethod
    def _check(self) -> None: ...

    @abstractmethod
    def _declare(self) -> None: ...

    @property
    @abstractmethod
    def global_threshold(self) -> Tensor:
        """:math:`s'`, shape ``()``."""

    @abstractmethod
    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor) -> Tensor:
        """The thresholds ``(S,)`` of the sampled positives that the step goes by."""

    @abstractmethod
    def ascend(self, index: Tensor, pos_scores: Tensor, risk: Tensor, unit: Tensor | float) -> Tensor:
        """Line 1: the dual weights ``(S,)`` of the sampled positives, given their risks and the unit of the loss."""

    @abstractmethod
    def descend(self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float) -> None:
        """Lines 2 and 4, given the thresholds, the new dual weights and the share of active pairs, all ``(S,)``."""

    @abstractmethod
    def diagnostics(self) -> dict[str, Tensor]:
        """Scalars that tell how the variables do."""

    @abstractmethod
    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates."""

    @abstractmethod
    def start_from_batch(self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor) -> None:
        """Without the scores of the training set the first batch is the best estimate."""

    @abstractmethod
    def start(self, scores: TrainingScores | None) -> None:
        """Before the first step: solve for ``scores``, if there are any."""

    @abstractmethod
    def finish_stage(self) -> None:
        """The weights become averages."""

    @abstractmethod
    def restart(self, scores: TrainingScores | None) -> None:
        """Begin a stage: solve for ``scores``, if there are any."""


class PerPositiveDuals(Duals):
    r"""The paper's: :math:`y_i` and :math:`s_i` of each positive, and :math:`s'`, which follow gradients."""

    step_sizes: ClassVar[dict[str, str]] = {
        "y": "alpha",
        "s": "beta",
        "s_moments": "beta",
        "s_prime": "beta_prime",
        "s_prime_sum": "beta_prime",
    }
    #: Of which thresholds a step changes.
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

    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor) -> Tensor:  # noqa: ARG002
        r""":math:`s_i` from before the step."""
        return self.algorithm.s.index_select(0, index)

    def ascend(self, index: Tensor, pos_scores: Tensor, risk: Tensor, unit: Tensor | float) -> Tensor:  # noqa: ARG002
        r"""Line 1: :math:`y_i` takes its step."""
        own = self.algorithm
        y = own.y.index_select(0, index)
        y = dual_weight_step(y, risk, own.s_prime, own.step_scale * own.alpha / unit, own.theta0)
        own.y.index_copy_(0, index, y.to(own.y.dtype))
        return y

    def descend(self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float) -> None:
        r"""Lines 2 and 4: :math:`s_i` and :math:`s'` take theirs."""
        own = self.algorithm
        # the proximal term divides s by gamma, and has no unit where gamma has that of s
        self._descend_thresholds(index, s, y, active, own.step_scale * own.beta * unit, own.gamma * unit)
        beta_prime = own.step_scale * own.beta_prime * unit
        own.s_prime.copy_(global_threshold_step(own.s_prime, y.mean(), beta_prime, own.theta0))
        own.stage_steps.add_(1)
        own.s_prime_sum.add_(own.s_prime)

    def _descend_thresholds(
        self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, beta: float | Tensor, gamma: float | Tensor
    ) -> None:
        own = self.algorithm
        anchor = own.s_anchor.index_select(0, index) if own.has_stages else None
        new = threshold_step(s, y, active, beta, own.theta0, own.theta1, anchor=anchor, gamma=gamma)
        own.s.index_copy_(0, index, new.to(own.s.dtype))
        record_change_(own.s_moments, index, new - s, own.stage_steps)

    def diagnostics(self) -> dict[str, Tensor]:
        r""":math:`s'`, the means of :math:`s_i` and :math:`y_i`, and the deciles 1, 5 and 9 of :math:`s_i`."""
        own, size = self.algorithm, self.algorithm.s.numel()
        means = {"s_prime": own.s_prime.clone(), "mean_s": own.s.mean(), "mean_y": own.y.mean()}
        # by rank: torch's quantiles end at 16 million values
        ranks = {f"s_q{10 * tenths}": -(-tenths * size // 10) for tenths in (1, 5, 9)}
        return {**means, **{name: own.s.kthvalue(max(1, rank)).values for name, rank in ranks.items()}}

    def averages(self) -> tuple[Tensor, Tensor]:
        r""":math:`(\bar s, \bar s')` over the stage's iterates so far; O(n_pos)."""
        own = self.algorithm
        s_bar = mean_from_changes(own.s_moments, own.s, own.stage_steps)
        s_prime_bar = torch.where(own.stage_steps > 0, own.s_prime_sum / own.stage_steps.clamp(min=1), own.s_prime)
        return s_bar, s_prime_bar

    def start_from_batch(self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor) -> None:
        """Exact on the batch's own positives; its mean threshold for the others.

        That keeps them out of the dead zone of a start from ones.
        """
        own = self.algorithm
        s, y, s_prime = exact_duals(pos_scores, neg_scores, *own.rectangle, surrogate=own.surrogate)
        s = activate_ties(s, pos_scores, own.surrogate)
        own.s.copy_(s.mean())
        own.y.fill_(own.theta0)
        own.s.index_copy_(0, index, s.to(own.s.dtype))
        own.y.index_copy_(0, index, y.to(own.y.dtype))
        own.s_prime.copy_(s_prime)

    def start(self, scores: TrainingScores | None) -> None:
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

    def restart(self, scores: TrainingScores | None) -> None:
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

    def _solve(self, scores: TrainingScores) -> None:
        own = self.algorithm
        s, y, s_prime = exact_duals(*scores, *own.rectangle, surrogate=own.surrogate)
        own.s.copy_(activate_ties(s, scores.pos_scores, own.surrogate))
        own.y.copy_(y)
        own.s_prime.copy_(s_prime)


class TrackedDuals(Duals):
    r"""The optimal ones for two scores on the rectangle's borders, which are running means over the batches.

    See :mod:`lightning_tpauc.functional.tracked`. Nothing is kept for a positive, and nothing has a step size.
    """

    def _check(self) -> None:
        own = self.algorithm
        if not own.surrogate.monotone:
            msg = (
                f"`duals='tracked'` needs a non-decreasing surrogate, but {own.surrogate.name!r} falls again on the "
                "left of -margin, so no one score is the border for all. Set `duals='per_positive'` with "
                "`dual_init='zeros'` and `stage_restart='ones'`, or use 'squared_hinge'."
            )
            raise ArgumentError(msg)
        parameters = inspect.signature(type(own)).parameters
        for name in ("alpha", "beta", "beta_prime", "dual_init", "stage_restart"):
            value = getattr(own, name)
            if value != parameters[name].default:
                msg = (
                    f"`{name}={value!r}` is for dual variables that each positive has of its own, which "
                    f"duals='tracked' does without. Leave out `{name}`, or set `duals='per_positive'`."
                )
                raise ArgumentError(msg)

    def _declare(self) -> None:
        self.algorithm.add_state("neg_border", "scalar")
        self.algorithm.add_state("pos_border", "scalar")
        self.algorithm.add_state("border_steps", "scalar", dtype=torch.int32)

    @property
    def global_threshold(self) -> Tensor:
        r"""0: :math:`s'` cancels where the mean of y is :math:`\theta_0`, and no gradient depends on it."""
        return torch.zeros_like(self.algorithm.neg_border)

    def thresholds(self, pos_scores: Tensor, dual_neg_scores: Tensor, index: Tensor) -> Tensor:  # noqa: ARG002
        r"""The borders take in the batch; then :math:`s_i = \ell(c - h_i)`."""
        own = self.algorithm
        self._track(pos_scores, dual_neg_scores)
        return border_thresholds(pos_scores, own.neg_border, surrogate=own.surrogate)

    def ascend(self, index: Tensor, pos_scores: Tensor, risk: Tensor, unit: Tensor | float) -> Tensor:  # noqa: ARG002
        r""":math:`y_i = 1[h_i \le p]`."""
        return border_weights(pos_scores, self.algorithm.pos_border, self.algorithm.theta0)

    def descend(self, index: Tensor, s: Tensor, y: Tensor, active: Tensor, unit: Tensor | float) -> None:
        """Nothing is left to do."""

    def diagnostics(self) -> dict[str, Tensor]:
        """The two borders."""
        return {name: getattr(self.algorithm, name).clone() for name in ("neg_border", "pos_border")}

    def averages(self) -> tuple[Tensor, Tensor]:
        """Raise :class:`UnsupportedError`: no thresholds are kept."""
        msg = "`duals='tracked'` keeps no thresholds to average. Set `duals='per_positive'`."
        raise UnsupportedError(msg)

    def start_from_batch(self, pos_scores: Tensor, neg_scores: Tensor, index: Tensor) -> None:
        """Every first step takes its batch's own borders."""

    def start(self, scores: TrainingScores | None) -> None:
        """The borders of ``scores``, or of the first batch."""
        self.algorithm.border_steps.zero_()
        if scores is not None:
            self._track(*scores)

    def finish_stage(self) -> None:
        """The averaged weights have other scores: begin anew."""
        self.algorithm.border_steps.zero_()

    def restart(self, scores: TrainingScores | None) -> None:
        """The borders of ``scores``, or of the next batch."""
        self.start(scores)

    def _track(self, pos_scores: Tensor, neg_scores: Tensor) -> None:
        own = self.algorithm
        pos, neg = border_scores(pos_scores, neg_scores, *own.rectangle)
        own.pos_border.copy_(border_step(own.pos_border, pos, own.border_steps))
        own.neg_border.copy_(border_step(own.neg_border, neg, own.border_steps))
        own.border_steps.add_(1)
