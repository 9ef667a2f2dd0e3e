"""What methods with a pairwise surrogate loss share: the surrogate, and what their step sizes are measured in."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.functional.checks import check_choice
from lightning_tpauc.functional.objective import tail_mean_loss
from lightning_tpauc.functional.staco import bounded_loss_unit, loss_unit_step
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate
from lightning_tpauc.functional.tasks import TaskMasks, in_play, with_dual_negatives


class PairwiseAlgorithm(Algorithm):
    r"""A method whose settings are measured in the loss of its surrogate, or absolutely.

    The unit L is a running mean of the loss on the hardest :math:`\theta_1` of the negatives; see
    :func:`~lightning_tpauc.functional.staco.loss_unit_step`.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name of the pairwise loss, or a :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge, square and ramp surrogates, in units of the score; :attr:`score_slope` if ``None``.
        scale: factor inside the logistic surrogate; 1 over :attr:`score_slope` if ``None``.
        step_units: ``"loss"`` or ``"absolute"``.

    Raises:
        ArgumentError: if an argument is out of range.
    """

    loss_unit: Tensor

    def __init__(
        self,
        min_tpr: float,
        max_fpr: float,
        surrogate: str | Surrogate,
        margin: float | None,
        scale: float | None,
        step_units: Literal["loss", "absolute"],
    ) -> None:
        self._given_surrogate = surrogate
        self.margin = None if margin is None else float(margin)
        self.scale = None if scale is None else float(scale)
        super().__init__(min_tpr, max_fpr)
        check_choice(step_units, "step_units", ("loss", "absolute"))
        self.step_units = step_units
        self.add_state("loss_unit", "scalar")

    @property
    def score_slope(self) -> float:
        """By how much a score grows when the model's output grows by one from 0: 1, or 0.25 behind a sigmoid.

        Margin and scale follow it where they are not given, so that the loss bends as much behind a sigmoid as on raw
        scores. A margin of 1 behind a sigmoid would bend nowhere, since no pair reaches it.
        """
        return self._score_slope

    @score_slope.setter
    def score_slope(self, slope: float) -> None:
        self._score_slope = slope
        self.surrogate = get_surrogate(
            self._given_surrogate,
            margin=slope if self.margin is None else self.margin,
            scale=1.0 / slope if self.scale is None else self.scale,
        )
        self._constant_loss = float(self.surrogate.value(torch.zeros((), dtype=torch.float64, device="cpu")))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place; see :meth:`DeclaredState.load_state_dict`."""
        # earlier versions kept no unit: the next step sets it
        super().load_state_dict({"loss_unit": torch.zeros_like(self.loss_unit), **state})

    def diagnostics(self) -> dict[str, Tensor]:
        """The unit of the loss; 0 where nothing is measured in it."""
        return {"loss_unit": self.loss_unit.mean()}

    def update_units(
        self, pos_scores: Tensor, neg_scores: Tensor, *, bounded: bool = False, masks: TaskMasks | None = None
    ) -> tuple[Tensor | float, Tensor | float]:
        r"""Take the batch's loss into L, and return two units: of this step's step sizes, and of the weights' loss.

        They are L and :math:`\max(L, L_B)`, or 1 if step sizes are absolute.

        Args:
            pos_scores: float tensor ``(S,)``.
            neg_scores: float tensor ``(B,)``.
            bounded: whether both units are at least the batch's own loss, and at least that of a constant model.
            masks: which scores of K tasks are present. L of a task that is not in play stays, and its units are 1.
        """
        if self.step_units == "absolute":
            return 1.0, 1.0
        negatives = with_dual_negatives(masks)
        batch_loss = tail_mean_loss(pos_scores, neg_scores, self.bounds[1], surrogate=self.surrogate, masks=negatives)
        unit = in_play(loss_unit_step(self.loss_unit, batch_loss, self._constant_loss), self.loss_unit, masks)
        self.loss_unit.copy_(unit)
        least = self._constant_loss if bounded else 0.0
        of_loss = in_play(bounded_loss_unit(unit, batch_loss, least), 1.0, masks)
        return (of_loss if bounded else in_play(unit, 1.0, masks)), of_loss

    def per_unit(self, loss: Tensor, unit: Tensor | float) -> Tensor:
        """The loss for the weights over its unit, so that a learning rate suits any score and surrogate."""
        return loss if self.step_units == "absolute" else loss / unit
