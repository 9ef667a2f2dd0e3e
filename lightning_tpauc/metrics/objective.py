"""The exact training objective, and where the ROC curve crosses the borders of the rectangle, as metrics."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_choice, check_rectangle, eager
from lightning_tpauc.functional.operating_points import fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.functional.pairwise import floor_count
from lightning_tpauc.functional.roc import split_classes
from lightning_tpauc.functional.staco import tpauc_objective
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

    A training step's loss only gives a direction for the weights. This is what the methods minimise: see
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

    @eager
    def compute(self) -> Tensor:
        """The objective over everything collected, on all processes."""
        if self.collected_weights() is not None:
            raise ArgumentError("The objective counts every example once: leave out `sample_weight`.")
        scores, labels = self.collected()
        seen = scores.sigmoid() if self.score_activation == "sigmoid" else scores
        return objective_of(seen, labels, self.min_tpr, self.max_fpr, self.surrogate)


# -------------------------------------------------------------------- where the curve crosses the rectangle's borders


class TPRAtMaxFPR(ScoreMetric):
    """The largest true positive rate at a false positive rate of at most ``max_fpr``.

    See :func:`~lightning_tpauc.functional.tpr_at_max_fpr`. In a :class:`~torchmetrics.MetricCollection` it shares the
    scores that :class:`~lightning_tpauc.TwoWayPartialAUROC` collects.

    Args:
        max_fpr: upper bound of the false positive rate, in (0, 1].
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments, and the values of every batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if either class has no example.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = TPRAtMaxFPR(max_fpr=0.25)
        >>> metric.update([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0])
        >>> metric.compute()
        tensor(0.3333, dtype=torch.float64)
    """

    higher_is_better = True
    plot_upper_bound = 1.0

    def __init__(
        self, max_fpr: float = 0.5, ignore_index: int | None = None, validate_args: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(ignore_index=ignore_index, validate_args=validate_args, **kwargs)
        if validate_args:
            _, max_fpr = check_rectangle(0.0, max_fpr)
        self.max_fpr = max_fpr

    def compute(self) -> Tensor:
        """The rate over all examples, on all processes."""
        weights = self.collected_weights()
        return tpr_at_max_fpr(*self.collected(), self.max_fpr, validate_args=False, sample_weight=weights)


class FPRAtMinTPR(ScoreMetric):
    """The smallest false positive rate at a true positive rate of at least ``min_tpr``.

    See :func:`~lightning_tpauc.functional.fpr_at_min_tpr`. In a :class:`~torchmetrics.MetricCollection` it shares the
    scores that :class:`~lightning_tpauc.TwoWayPartialAUROC` collects.

    Args:
        min_tpr: lower bound of the true positive rate, in [0, 1).
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments, and the values of every batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if either class has no example.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = FPRAtMinTPR(min_tpr=0.5)
        >>> metric.update([0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 1, 0])
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    higher_is_better = False
    plot_upper_bound = 1.0

    def __init__(
        self, min_tpr: float = 0.5, ignore_index: int | None = None, validate_args: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(ignore_index=ignore_index, validate_args=validate_args, **kwargs)
        if validate_args:
            min_tpr, _ = check_rectangle(min_tpr, 1.0)
        self.min_tpr = min_tpr

    def compute(self) -> Tensor:
        """The rate over all examples, on all processes."""
        weights = self.collected_weights()
        return fpr_at_min_tpr(*self.collected(), self.min_tpr, validate_args=False, sample_weight=weights)
