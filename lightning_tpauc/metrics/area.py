"""What metrics of areas keep: scores, or counts at thresholds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.functional.binned import adjust_thresholds, binned_segments, confusion_counts, count_nan
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.polyline import nan_points, polyline_vertices
from lightning_tpauc.functional.validation import check_thresholds
from lightning_tpauc.metrics.base import ScoreMetric

__all__ = ("AreaMetric", "Thresholds", "binned_roc")

Thresholds = int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None


class AreaMetric(ScoreMetric):
    """Base of the areas below one ROC curve and below several: collects scores, or counts them at thresholds."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    if TYPE_CHECKING:
        num_nan: Tensor
    __jit_unused_properties__: ClassVar[list[str]] = [*ScoreMetric.__jit_unused_properties__, "confmat"]

    def collect(self, thresholds: Thresholds, counted_by: str = "") -> None:
        """Declare the states; called by subclasses at the end of ``__init__``.

        Args:
            thresholds: see :class:`TwoWayPartialAUROC`.
            counted_by: whatever else the counts depend on.
        """
        if self.validate_args and thresholds is not None:
            check_thresholds(thresholds)
        #: Ascending float64 tensor ``(T,)`` or ``None``. No buffer: half-precision plugins would round it.
        self.thresholds = None if thresholds is None else adjust_thresholds(thresholds)
        self._unit_range = isinstance(thresholds, Integral)
        if self.thresholds is None:
            self.collect_scores()
            return
        # A MetricCollection lets metrics share states whose names and first values agree. The first batch need not tell
        # two sets of thresholds apart, so the name has to.
        told_apart = self.thresholds.numpy(force=True).tobytes() + counted_by.encode()
        self._counts_name = f"confmat_{hashlib.blake2s(told_apart, digest_size=6).hexdigest()}"
        shape = (self.thresholds.shape[0], *self._score_row, 2, 2)
        counts = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self.add_state(self._counts_name, default=counts, dist_reduce_fx="sum")
        self.add_state("num_nan", default=counts.new_zeros(self._score_row), dist_reduce_fx="sum")

    @property
    def confmat(self) -> Tensor | None:
        """Confusion matrix at each threshold, int64 ``(T, 2, 2)`` or ``(T, K, 2, 2)``, or ``None``.

        It is indexed by threshold, column, label, and whether the score reaches the threshold.
        """
        return None if self.thresholds is None else getattr(self, self._counts_name)

    @eager
    def update(self, preds: Tensor, target: Tensor) -> None:
        """Collect one batch, or count it if there are thresholds.

        Args:
            preds: scores, tensor ``(N,)`` or ``(N, 1)``, or ``(N, K)`` for K labels or classes, of any float or integer
                dtype; larger means more positive.
            target: labels of the same shape, 1, 0, or ``ignore_index``; for classes ``(N,)``.

        Raises:
            ArgumentError: if shapes are others; with ``validate_args`` also if ``target`` has other labels, ``preds``
                holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].
        """
        if self.thresholds is None:
            super().update(preds, target)
            return
        self.check_batch(preds, target, unit_range=self._unit_range)
        scores, labels = preds.reshape(-1, *self._score_row), self.columns(target.reshape(-1, *self._label_row))
        if not self.validate_args:
            self.num_nan = self.num_nan + count_nan(scores, labels).to(self.num_nan.device)
        counts: Tensor = getattr(self, self._counts_name)
        setattr(self, self._counts_name, counts + confusion_counts(scores, labels, self.thresholds).to(counts.device))

    def columns(self, target: Tensor) -> Tensor:
        """Labels in the shape of the scores: 1, 0, or anything else for what does not count."""
        return target


def binned_roc(counts: Tensor, num_nan: int, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ROC polyline of confusion counts ``(T, 2, 2)``: ``(fpr, tpr, thresholds)``, each ``(V,)``."""
    if num_nan:
        return nan_points(counts.device)
    reached = torch.cat([thresholds.flip(0), thresholds.new_tensor([-math.inf])])
    return polyline_vertices(*binned_segments(counts), reached)
