"""The exact training objective as a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from lightning_tpauc.functional.checks import check_choice, check_rectangle, eager
from lightning_tpauc.functional.objective import objective_ratio, tpauc_objective
from lightning_tpauc.functional.pairwise import floor_count
from lightning_tpauc.functional.roc import split_classes
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate
from lightning_tpauc.metrics.base import ScoreMetric


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
        score_activation: ``"sigmoid"`` if training sees the scores through a sigmoid, which ``preds`` lack; ``None`` if
            ``update`` is given what training sees as ``algorithm_scores``.
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

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float = 0.5,
        surrogate: str | Surrogate = "hinge",
        margin: float = 1.0,
        scale: float = 1.0,
        score_activation: Literal["identity", "sigmoid"] | None = "identity",
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
            if score_activation is not None:
                check_choice(score_activation, "score_activation", ("identity", "sigmoid"))
        super().__init__(ignore_index, validate_args, **kwargs)
        self.min_tpr, self.max_fpr, self.score_activation = min_tpr, max_fpr, score_activation
        if score_activation is None:
            # A MetricCollection lets metrics share a store if the names and first values of their states agree.
            self.add_state("is_of_algorithm", default=torch.zeros(()), dist_reduce_fx="sum")
        self.surrogate = get_surrogate(surrogate, margin=margin, scale=scale)

    @eager
    def update(self, preds: Any, target: Any, algorithm_scores: Any = None) -> None:
        """Collect one batch.

        Args:
            preds: raw scores, see :meth:`ScoreMetric.update`.
            target: labels of the same shape.
            algorithm_scores: what is collected in place of ``preds`` if there is no ``score_activation``.
        """
        if algorithm_scores is not None and self.score_activation is None:
            preds = algorithm_scores
        super().update(preds, target)

    def _split_scores(self) -> tuple[Tensor, Tensor]:
        """The algorithm's scores of all positives and of all negatives, in float64."""
        scores, labels = self.collected()
        pos, neg = split_classes(scores.sigmoid() if self.score_activation == "sigmoid" else scores, labels)
        return pos.double(), neg.double()

    @eager
    def compute(self) -> Tensor:
        """The objective over everything collected, on all processes."""
        pos, neg = self._split_scores()
        if not floor_count(1.0 - self.min_tpr, pos.shape[0]) or not floor_count(self.max_fpr, neg.shape[0]):
            return self.result(torch.tensor(math.nan, device=pos.device))
        return self.result(tpauc_objective(pos, neg, self.min_tpr, self.max_fpr, surrogate=self.surrogate))


def wants_algorithm_scores(metrics: MetricCollection) -> bool:
    """Whether updates of some of these have to be given the scores that the algorithm sees."""
    each = metrics.values(copy_state=False)
    return any(isinstance(metric, ExactObjective) and metric.score_activation is None for metric in each)


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
        pos, neg = self._split_scores() if self.rectangles else (torch.empty(0), torch.empty(0))
        ratios = [objective_ratio(pos, neg, *rectangle, self.surrogate) for rectangle in self.rectangles]
        return self.result(torch.stack(ratios) if ratios else torch.empty(0, dtype=torch.float64))
