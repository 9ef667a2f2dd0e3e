"""How far the metric of a finite test set may lie from that of its population."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.checks import check_count, check_rectangle, eager, require_range
from lightning_tpauc.functional.roc import exact_area, ranked_classes


class BootstrapInterval(NamedTuple):
    """Result of :func:`bootstrap_interval`.

    Attributes:
        estimate: the metric on the data themselves, float64 tensor of shape ``()``.
        lower: lower end of the interval, float64 tensor of shape ``()``.
        upper: upper end of the interval, float64 tensor of shape ``()``.
    """

    estimate: Tensor
    lower: Tensor
    upper: Tensor


@eager
def bootstrap_interval(
    preds: Any,
    target: Any,
    min_tpr: float = 0.5,
    max_fpr: float | None = 0.5,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> BootstrapInterval:
    r"""Confidence interval of the two-way partial AUC by a stratified bootstrap.

    Every resample draws :math:`n_+` positives and :math:`n_-` negatives with replacement, each class from its own, and
    the interval runs between the quantiles :math:`(1 \mp c) / 2` of the resamples' values (the percentile interval). It
    covers the error of the finite test set only, not that of training. It can't see what the data do not hold: if the
    curve is perfect, or misses the rectangle, on them, every resample's is too and the interval is a point. With fewer
    than some 30 examples of a class inside the rectangle, take it as a lower bound of the uncertainty.

    The result is a function of the values and ``seed`` alone: neither the order of the samples nor the device matters.

    Args:
        preds: scores ``(N,)`` or ``(N, 1)``, a tensor, array or list of any real dtype; larger means more positive.
        target: labels of the same shape: 1, 0, or ``ignore_index``.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        max_fpr: upper bound of the false positive rate, in (0, 1]; ``None`` is 1.
        confidence: c, share of data sets whose interval is to hold the population's value, in (0, 1).
        num_resamples: number of resamples, at least 1. Time is O(N) for each.
        seed: seed of the draws, in 0 .. 2^63 - 1.
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values.

    Returns:
        ``(estimate, lower, upper)``: float64 tensors of shape ``()``, on the CPU; all nan, with a
        :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1])
        >>> target = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
        >>> estimate, lower, upper = bootstrap_interval(preds, target, confidence=0.9)
        >>> bool(lower < estimate < upper)
        True
    """
    max_fpr = 1.0 if max_fpr is None else max_fpr
    if validate_args:
        min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
        require_range("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
        check_count(num_resamples, "num_resamples", 1)
        check_count(seed, "seed", 0)
    *classes, undefined = ranked_classes(preds, target, ignore_index, validate_args, "two-way partial AUC")
    if undefined:
        return BootstrapInterval(*torch.full((3,), math.nan, dtype=torch.float64))
    # Sorted, so that equal draws mean equal resamples in whatever order the samples came.
    pos, neg = (scores.cpu().sort().values for scores in classes)
    generator = torch.Generator().manual_seed(int(seed))

    def draw(scores: Tensor) -> Tensor:
        return scores[torch.randint(scores.shape[0], scores.shape, generator=generator)]

    # One at a time: sorting a resample takes less than the dozen passes over it that many at once would share.
    areas = [exact_area(draw(pos), draw(neg), min_tpr, max_fpr) for _ in range(int(num_resamples))]
    values = torch.tensor(areas, dtype=torch.float64)
    tail = (1.0 - confidence) / 2
    lower, upper = values.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return BootstrapInterval(torch.tensor(exact_area(pos, neg, min_tpr, max_fpr), dtype=torch.float64), lower, upper)
