"""Methods whose gradient estimate for the weights is a recursion over steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from lightning_tpauc.algorithms.base import Algorithm

__all__ = ("RecursiveAlgorithm",)


class RecursiveAlgorithm(Algorithm):
    r"""An algorithm that steps along :math:`v_t = g_t(w_t) + \kappa_t (v_{t-1} - g_t(w_{t-1}))`.

    Both gradients :math:`g_t` are taken on the same batch. One step of the caller is

    1. under the previous weights: scores of the batch, backward of :meth:`previous_loss`;
    2. under the current weights, *without* clearing the gradients: scores, the algorithm itself with
       ``previous=PreviousScores(...)``, backward of its loss. The gradients now hold
       :math:`g_t(w_t) - \kappa_t\, g_t(w_{t-1})`;
    3. :meth:`estimate_` turns them into the direction of the step and returns the new :math:`v_t`;
    4. the optimizer's step.

    At the first step, part 1 and ``previous`` are left out and the estimates are zeros.
    """

    @property
    def needs_previous(self) -> Literal["scores", "gradients"] | None:
        """``"gradients"``."""
        return "gradients"

    @abstractmethod
    def previous_loss(self, pos_scores: Tensor, neg_scores: Tensor) -> Tensor:
        r"""A loss whose gradient is :math:`-\kappa_t\, g_t(w_{t-1})`; changes no state.

        Args:
            pos_scores: float tensor ``(S,)``, scores of the batch's positives under the previous weights.
            neg_scores: float tensor ``(B~,)``, scores of its negatives.

        Returns:
            Scalar tensor, differentiable with respect to both.
        """

    @abstractmethod
    def estimate_(self, gradients: Sequence[Tensor], estimates: Sequence[Tensor]) -> list[Tensor]:
        r"""Turn the accumulated gradients into the step's direction; called after the algorithm's own step.

        Args:
            gradients: :math:`g_t(w_t) - \kappa_t\, g_t(w_{t-1})`, one per weight, overwritten with the direction.
            estimates: :math:`v_{t-1}`, one per weight.

        Returns:
            :math:`v_t`, one per weight.
        """
