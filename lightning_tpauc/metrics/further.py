"""Metrics of torchmetrics, or of one's own, beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers.abstract import WrapperMetric

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.metrics.base import ScoreMetric

__all__ = ("FurtherMetric", "FurtherMetrics", "further_metrics")

FurtherMetrics = Mapping[str, Metric] | Sequence[Metric] | Metric


def further_metrics(given: FurtherMetrics | None) -> dict[str, FurtherMetric]:
    """What came in as ``metrics``, by the names that they are logged under; a sequence has its classes' names.

    Raises:
        ArgumentError: if it holds something else than metrics, or two of one name.

    Example:
        >>> from torchmetrics.classification import BinaryF1Score
        >>> list(further_metrics({"f1": BinaryF1Score()})), list(further_metrics([BinaryF1Score()]))
        (['f1'], ['BinaryF1Score'])
    """
    if given is None:
        return {}
    collected: Any = given  # a collection is a mapping, but not to type checkers
    try:
        parsed = MetricCollection(collected) if not isinstance(collected, MetricCollection) else collected
    except (TypeError, ValueError) as error:
        msg = f"Expected `metrics` to be torchmetrics, alone, in a list or by name in a dictionary: {error}"
        raise ArgumentError(msg) from error
    return {name: FurtherMetric(metric.clone()) for name, metric in parsed.items(copy_state=False)}


class FurtherMetric(WrapperMetric):
    """Feeds a metric with the examples that count, and with what it expects.

    Ours get raw scores. Others get their sigmoid, in float64, where it keeps their order up to a score of 36: from raw
    scores torchmetrics makes probabilities as well, but batch by batch, and not of those that happen to lie in [0, 1].

    Args:
        metric: takes ``(preds, target)``, both ``(N,)``, and computes one number.

    Example:
        >>> import torch
        >>> from torchmetrics.classification import BinaryAccuracy
        >>> metric = FurtherMetric(BinaryAccuracy())
        >>> metric.update(torch.tensor([2.0, 0.5, -1.0, 3.0]), torch.tensor([1, 0, 0, -1]))
        >>> metric.compute()
        tensor(0.6667)
    """

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self.metric = metric

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Take one batch: raw scores ``(N,)`` and labels, 1, 0 or anything else for rows that do not count."""
        counted = (target == 1) | (target == 0)
        if not bool(counted.any()):
            return
        self.metric.update(self.expected(scores[counted]), target[counted])

    def expected(self, scores: Tensor) -> Tensor:
        """Raw scores as the metric takes them."""
        return scores if isinstance(self.metric, ScoreMetric) else scores.double().sigmoid()

    def compute(self) -> Tensor:
        """The metric's value.

        Raises:
            ArgumentError: if it is not one number, which is what loggers take.
        """
        value: Any = self.metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            msg = f"Expected each of `metrics` to compute one number, but {type(self.metric).__name__} gave {got}."
            raise ArgumentError(msg)
        return value.reshape(())

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.metric.reset()
