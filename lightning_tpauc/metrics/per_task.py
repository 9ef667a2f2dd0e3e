"""The metrics of a model with several outputs: those of one task, for each of its labels, and their means."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.metrics.further import FurtherMetric
from lightning_tpauc.metrics.reporting import gathered_scores

__all__ = ("JointMetric", "TaskMetrics", "scores_of_each", "split_by_kind", "weighted_mean")


class TaskMetrics(nn.Module):
    """A collection of metrics for each of K labels.

    An entry of a label that was not measured, target -1, counts for nothing in its metrics. Nothing is pooled: each
    value is of one label, named ``prefix + metric + "/" + label``, and ``prefix + metric`` is the mean of those that
    are not nan.

    Args:
        keys: names of the labels.
        collections: the metrics of each label, with one prefix.
        joint: metrics of all labels at once.
        weights: of the labels, for the mean of values that are no single numbers.

    Example:
        >>> from torchmetrics.classification import BinaryAccuracy
        >>> collections = [MetricCollection({"accuracy": BinaryAccuracy()}, prefix="val/") for _ in range(2)]
        >>> metrics = TaskMetrics(["liver", "lung"], collections)
        >>> metrics.update(torch.tensor([[0.9, 0.2], [0.1, 0.3]]), torch.tensor([[1, 1], [0, 0]]))
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'val/accuracy': 0.75, 'val/accuracy/liver': 1.0, 'val/accuracy/lung': 0.5}
    """

    def __init__(
        self,
        keys: Sequence[str],
        collections: Sequence[MetricCollection],
        joint: MetricCollection | None = None,
        weights: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.keys = tuple(keys)
        self.of_labels = nn.ModuleList(collections)
        self.joint = joint
        self._weights = list(weights) or [1.0] * len(self.keys)

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        return str(self[0].prefix or "")

    def __getitem__(self, label: int) -> MetricCollection:
        """The metrics of one label."""
        found: Any = self.of_labels[label]
        return found  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.keys)

    def update(self, scores: Tensor, target: Tensor, algorithm_scores: Tensor | None = None) -> None:
        """Take a batch.

        Args:
            scores: raw scores, ``(N, K)``.
            target: integers ``(N, K)``: 1, 0, or -1 for what was not measured.
            algorithm_scores: what the algorithm sees, ``(N, K)``, for metrics that ask for it.

        Raises:
            ArgumentError: if there is another number of labels.
        """
        if target.shape != scores.shape:
            msg = (
                f"Expected a column of labels for each of the model's {len(self)} outputs, shape "
                f"{tuple(scores.shape)}, but got {tuple(target.shape)}: the model was made for {', '.join(self.keys)}."
            )
            raise ArgumentError(msg)
        for k in range(len(self)):
            own = {} if algorithm_scores is None else {"algorithm_scores": algorithm_scores[:, k]}
            self[k].update(scores[:, k], target[:, k], **own)
        if self.joint is not None:
            self.joint.update(scores, target)

    def compute(self) -> dict[str, Tensor]:
        """All values by their names, on all processes; warns once of the labels that have none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TPAUCWarning)  # K times the same, without the label's name
            found = [self[k].compute() for k in range(len(self))]
        values: dict[str, Tensor] = {}
        for name in found[0]:
            of_labels = torch.stack([value[name] for value in found])
            if of_labels.ndim > 1:  # such as a value for each of several rectangles
                values[name] = weighted_mean(of_labels, self._weights)
                continue
            values[name] = weighted_mean(of_labels, [1.0] * len(self))
            values.update({f"{name}/{key}": value for key, value in zip(self.keys, of_labels, strict=True)})
        return values | (self.joint.compute() if self.joint is not None else {})

    def reset(self) -> None:
        """Forget all batches."""
        for k in range(len(self)):
            self[k].reset()
        if self.joint is not None:
            self.joint.reset()


class JointMetric(FurtherMetric):
    """Feeds a metric of several labels at once, such as ``MultilabelF1Score``, with all columns.

    Args:
        metric: takes ``(preds, target)``, both ``(N, K)``.
    """

    def update(self, scores: Tensor, target: Tensor) -> None:
        """Take one batch: raw scores ``(N, K)`` and labels, 1, 0 or -1.

        Raises:
            ArgumentError: if something was not measured and the metric would count it.
        """
        counted = (target >= 0).any(1)
        if not bool(counted.any()):
            return
        scores, target = scores[counted], target[counted]
        if getattr(self.metric, "ignore_index", None) != -1 and bool((target < 0).any()):
            msg = (
                f"{type(self.metric).__name__} of `metrics` would count entries that were not measured: pass "
                "`ignore_index=-1` to it."
            )
            raise ArgumentError(msg)
        self.metric.update(self.expected(scores), target)


def split_by_kind(further: Mapping[str, FurtherMetric]) -> tuple[dict[str, FurtherMetric], dict[str, JointMetric]]:
    """Metrics of one label, which every label gets a copy of, and those of several, which say ``num_labels``."""
    joint = {n: JointMetric(m.metric.clone()) for n, m in further.items() if hasattr(m.metric, "num_labels")}
    return {name: metric for name, metric in further.items() if name not in joint}, joint


def scores_of_each(metrics: MetricCollection | TaskMetrics) -> list[tuple[Tensor, Tensor]]:
    """Scores and labels that were collected of each label, of all processes; a collective."""
    if isinstance(metrics, MetricCollection):
        return [gathered_scores(metrics)]
    return [gathered_scores(metrics[k]) for k in range(len(metrics))]


def weighted_mean(values: Tensor, weights: Sequence[float]) -> Tensor:
    """Mean over the first dimension of what is not nan; nan where nothing is left.

    Example:
        >>> weighted_mean(torch.tensor([[1.0, torch.nan], [4.0, 2.0]]), [2.0, 1.0])
        tensor([2., 2.])
    """
    known = ~values.isnan()
    share = torch.tensor(list(weights), dtype=values.dtype, device=values.device)
    share = share.reshape(-1, *[1] * (values.ndim - 1)) * known
    return (values.nan_to_num() * share).sum(0) / share.sum(0)
