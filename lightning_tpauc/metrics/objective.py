"""The exact training objective as a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import check_choice, check_rectangle, eager
from lightning_tpauc.functional.pairwise import floor_count
from lightning_tpauc.functional.roc import split_classes
from lightning_tpauc.functional.staco import objective_ratio, tpauc_objective
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate
from lightning_tpauc.metrics.base import ScoreMetric


def objective_of(
    scores: Tensor, labels: Tensor, min_tpr: float, max_fpr: float, surrogate: str | Surrogate = "hinge"
) -> Tensor:
    """:func:`~lightning_tpauc.functional.tpauc_objective` in float64; nan where the rectangle holds no pair."""
    pos, neg = (own.double() for own in split_classes(scores, labels))
    if not floor_count(1.0 - min_tpr, pos.shape[0]) or not floor_count(max_fpr, neg.shape[0]):
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    return tpauc_objective(pos, neg, min_tpr, max_fpr, surrogate=surrogate)


class ExactObjective(ScoreMetric):
    r"""Mean surrogate loss over the pairs in the rectangle, F(w) of eq. ``tpauc-o``, on all collected scores.

    Unlike a training step's loss, which is only a direction for the weights, this is what the methods minimise: see
    :func:`~lightning_tpauc.functional.tpauc_objective`.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge and square surrogates.
        scale: factor inside the logistic surrogate.
        score_activation: ``"sigmoid"`` if training sees the scores through a sigmoid, which ``preds`` lack.
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments, and the values of every batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute``):
        float64 tensor of shape ``()``, at least 0; nan where the rectangle holds no whole positive or negative,
        or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = ExactObjective(min_tpr=0.5, max_fpr=0.5)
        >>> metric.update([0.0, 1.0, 0.5, -2.0], [1, 1, 0, 0])
        >>> metric.compute()  # one pair: 1 + 0.5 - 0
        tensor(1.5000, dtype=torch.float64)
    """

    higher_is_better = False

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        surrogate: str | Surrogate = "hinge",
        margin: float = 1.0,
        scale: float = 1.0,
        score_activation: Literal["identity", "sigmoid"] = "identity",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
            check_choice(score_activation, "score_activation", ("identity", "sigmoid"))
        super().__init__(ignore_index, validate_args, **kwargs)
        self.min_tpr, self.max_fpr, self.score_activation = min_tpr, max_fpr, score_activation
        self.surrogate = get_surrogate(surrogate, margin=margin, scale=scale)

    def _seen(self) -> tuple[Tensor, Tensor]:
        """The algorithm's scores, and their labels."""
        scores, labels = self.collected()
        return scores.sigmoid() if self.score_activation == "sigmoid" else scores, labels

    @eager
    def compute(self) -> Tensor:
        """The objective over everything collected, on all processes."""
        return self.result(objective_of(*self._seen(), self.min_tpr, self.max_fpr, self.surrogate))


class ObjectiveRatios(ExactObjective):
    r"""The objective over that of a constant model, :math:`F / \ell(0)`, of several rectangles at once.

    Args:
        rectangles: pairs ``(min_tpr, max_fpr)``; the attribute may be changed before ``compute``.
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        kwargs: ``score_activation``, ``ignore_index``, ``validate_args`` and others of :class:`ExactObjective`.

    Returns (from ``compute``):
        float64 tensor, one entry per rectangle; nan where one holds no whole positive or negative.

    Example:
        >>> metric = ObjectiveRatios([(0.0, 1.0), (0.5, 0.5)])
        >>> metric.update([0.5, 1.0, 0.0, -2.0], [1, 1, 0, 0])
        >>> metric.compute()
        tensor([0.1250, 0.5000], dtype=torch.float64)
    """

    def __init__(
        self, rectangles: Sequence[tuple[float, float]], surrogate: str | Surrogate = "hinge", **kwargs: Any
    ) -> None:
        super().__init__(surrogate=surrogate, **kwargs)
        self.rectangles = [check_rectangle(*rectangle) for rectangle in rectangles]

    @eager
    def compute(self) -> Tensor:
        """The ratios over everything collected, on all processes."""
        pos, neg = (own.double() for own in split_classes(*self._seen()))
        ratios = [objective_ratio(pos, neg, *rectangle, self.surrogate) for rectangle in self.rectangles]
        return self.result(torch.stack(ratios) if ratios else torch.empty(0, dtype=torch.float64))
