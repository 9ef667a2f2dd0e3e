"""Where the ROC polyline crosses the borders of the rectangle, as metrics."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.operating_points import fpr_at_min_tpr, tpr_at_max_fpr
from lightning_tpauc.metrics.base import ScoreMetric


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
        return self.result(tpr_at_max_fpr(*self.collected(), self.max_fpr, validate_args=False))


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
        return self.result(fpr_at_min_tpr(*self.collected(), self.min_tpr, validate_args=False))
