"""Confusion counts at fixed thresholds: the metric in memory that does not grow with the data."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.functional.order import rankable
from lightning_tpauc.functional.polyline import polyline_area

__all__ = ("adjust_thresholds", "binned_area", "binned_segments", "confusion_counts", "count_nan")


def adjust_thresholds(thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any]) -> Tensor:
    """The thresholds as a float64 tensor ``(T,)`` in ascending order; an int T means T of them evenly on [0, 1].

    They lie on the CPU, whatever the default device: a model that is made on the meta device can't make up its own.

    Example:
        >>> adjust_thresholds(3)
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    if isinstance(thresholds, Integral):
        return torch.linspace(0, 1, int(thresholds), dtype=torch.float64, device="cpu")
    if isinstance(thresholds, Tensor):
        return thresholds.detach().cpu().to(torch.float64).sort().values
    # Not by way of the default dtype, which rounds a list's numbers to float32.
    return torch.tensor(thresholds, dtype=torch.float64, device="cpu").sort().values


def confusion_counts(scores: Tensor, labels: Tensor, thresholds: Tensor) -> Tensor:
    """Confusion matrix of ``score >= threshold`` at every threshold, in one pass over the scores.

    Args:
        scores: tensor ``(N,)``, or ``(N, K)`` with a column for each of K labels, of any real dtype. Thresholds are
            rounded to float32 for scores of at most that precision, so that a score of 0.7 reaches the threshold 0.7
            in either.
        labels: tensor of the same shape: 1, 0, or anything else for entries to leave out.
        thresholds: float64 tensor ``(T,)``, ascending.

    Returns:
        int64 tensor ``(T, 2, 2)`` or ``(T, K, 2, 2)``, indexed by threshold, column, label, and whether the score
        reaches the threshold.

    Example:
        >>> confusion_counts(torch.tensor([0.2, 0.5, 0.9]), torch.tensor([0, 1, 0]), adjust_thresholds([0.5]))
        tensor([[[1, 1],
                 [0, 1]]])
    """
    scores, labels = scores.detach(), labels.detach()
    low_precision = scores.is_floating_point() and scores.dtype != torch.float64
    if scores.device.type == "mps" and not low_precision:  # Apple's GPUs know no float64
        scores, labels = scores.cpu(), labels.cpu()
    dtype = torch.float32 if low_precision else torch.float64
    edges = thresholds.to(dtype).to(scores.device)
    size, columns = edges.shape[0] + 1, scores.shape[1:]
    reached = torch.bucketize(
        scores.to(dtype).contiguous(), edges, right=True
    )  # 0 .. T: how many thresholds the score reaches
    # Entries of neither class fill a third histogram, which is dropped: cheaper than to take them out.
    kind = torch.where(labels == 1, size, torch.where(labels == 0, 0, 2 * size))
    place = reached + kind
    if columns:
        place = place + 3 * size * torch.arange(columns[0], device=place.device)
    histogram = torch.bincount(place.reshape(-1), minlength=3 * size * columns.numel())
    counted = histogram.view(*columns, 3, size)[..., :2, :]
    # [column, label, k]: scores that reach at least k thresholds
    at_least = counted.flip(-1).cumsum(-1).flip(-1)
    reaching = at_least[..., 1:]
    return torch.stack([at_least[..., :1] - reaching, reaching], dim=-1).movedim(-2, 0).contiguous()


def count_nan(scores: Tensor, labels: Tensor) -> Tensor:
    """How many scores labelled 1 or 0 are nan, int64 of shape ``()``, or ``(K,)`` for columns.

    In the confusion counts they stand above every threshold, as the best of all.
    """
    labels = labels.detach()
    return (rankable(scores).isnan() & ((labels == 1) | (labels == 0))).sum(0)


def binned_segments(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rises and runs, each int64 ``(T + 1,)``, of the polyline from (0, 0) through the ROC points to (1, 1).

    Args:
        counts: int64 tensor ``(T, 2, 2)`` from :func:`confusion_counts`, one or the sum of several.
    """
    totals = counts[0].sum(1)  # negatives, positives
    points = torch.cat([torch.zeros_like(totals)[None], counts[:, :, 1].flip(0), totals[None]])
    runs, rises = points.diff(dim=0).unbind(1)
    return rises, runs


def binned_area(counts: Tensor, min_tpr: float, max_fpr: float) -> Tensor:
    """Normalised area of the polyline through the binned ROC points, float64 of shape ``()``; nan without a class.

    Args:
        counts: int64 tensor ``(T, 2, 2)`` from :func:`confusion_counts`.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1].
    """
    if counts.device.type == "mps":
        counts = counts.cpu()
    return polyline_area(*binned_segments(counts), min_tpr, max_fpr)
