"""Dual variables that follow from two tracked scores."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import TrainingScores
from lightning_tpauc.algorithms.duals import DualAlgorithm, Duals
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.duals import border_scores, border_step, border_thresholds, border_weights
from lightning_tpauc.functional.tasks import TaskMasks, in_play, with_dual_negatives


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
