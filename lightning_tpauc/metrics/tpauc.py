"""Two-way partial AUC as a metric."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.binned import adjust_thresholds, binned_segments, confusion_counts, count_nan
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.polyline import nan_points, polyline_vertices, roc_points
from lightning_tpauc.functional.tpauc import binned_tpauc, exact_tpauc
from lightning_tpauc.functional.validation import check_preds_and_target, check_thresholds
from lightning_tpauc.metrics.base import ScoreMetric
from lightning_tpauc.metrics.plot import plot_roc

__all__ = ("TwoWayPartialAUROC",)


class TwoWayPartialAUROC(ScoreMetric):
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    The definition, its conventions for ties and borders, and what the value means are those of
    :func:`~lightning_tpauc.functional.two_way_partial_auroc`. Scores are ranked as they come, never squashed. Over
    several processes the value is that of all their examples together, also if some processes have none.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` keeps every score, O(N) memory, and is exact. A list, 1-D tensor or 1-D array of T
            thresholds, or an int T for as many evenly spaced ones on [0, 1] (which needs scores in [0, 1]), keeps
            counts only: O(T) memory, straight lines between the thresholds' ROC points.
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments, and the values of every batch; set to ``False`` to save a synchronisation with
            the device per batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if either class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([1, 1, 0, 0]))
        >>> metric.update(torch.tensor([0.7, 0.3, 0.4, 0.1]), torch.tensor([1, 1, 0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    if TYPE_CHECKING:
        num_nan: Tensor
    __jit_unused_properties__: ClassVar[list[str]] = [*ScoreMetric.__jit_unused_properties__, "confmat"]

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float | None = 0.5,
        thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index=ignore_index, validate_args=validate_args, **kwargs)
        max_fpr = 1.0 if max_fpr is None else max_fpr
        if validate_args:
            min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
            if thresholds is not None:
                check_thresholds(thresholds)
        self.min_tpr = min_tpr
        self.max_fpr = max_fpr
        #: Ascending float64 tensor ``(T,)`` or ``None``. No buffer: half-precision plugins would round it.
        self.thresholds = None if thresholds is None else adjust_thresholds(thresholds)
        self._unit_range = isinstance(thresholds, Integral)
        if self.thresholds is None:
            self.collect_scores()
            return
        # A MetricCollection lets metrics share states whose names and first values agree. The first batch need not tell
        # two sets of thresholds apart, so the name has to.
        digest = hashlib.blake2s(self.thresholds.numpy(force=True).tobytes(), digest_size=6).hexdigest()
        self._counts_name = f"confmat_{digest}"
        counts = torch.zeros(self.thresholds.shape[0], 2, 2, dtype=torch.int64, device=self.device)
        self.add_state(self._counts_name, default=counts, dist_reduce_fx="sum")
        self.add_state("num_nan", default=counts.new_zeros(()), dist_reduce_fx="sum")

    @property
    def confmat(self) -> Tensor | None:
        """Confusion matrix at each threshold, int64 ``(T, 2, 2)``: threshold, label, score reaches it; or ``None``."""
        return None if self.thresholds is None else getattr(self, self._counts_name)

    @eager
    def update(self, preds: Tensor, target: Tensor) -> None:
        """Collect one batch, or count it if there are thresholds.

        Args:
            preds: scores, tensor ``(N,)`` or ``(N, 1)`` of any float or integer dtype; larger means more positive.
            target: integer or bool tensor of the same shape: 1, 0, or ``ignore_index``.

        Raises:
            ArgumentError: with ``validate_args``, if shapes differ or hold several scores per example, ``target`` has
                other labels, ``preds`` holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].
        """
        if self.thresholds is None:
            super().update(preds, target)
            return
        if self.validate_args:
            check_preds_and_target(preds, target, self.ignore_index, unit_range=self._unit_range)
        else:
            self.num_nan = self.num_nan + count_nan(preds, target).to(self.num_nan.device)
        counts: Tensor = getattr(self, self._counts_name)
        setattr(self, self._counts_name, counts + confusion_counts(preds, target, self.thresholds).to(counts.device))

    def compute(self) -> Tensor:
        """The metric over all examples, on all processes."""
        if self.confmat is not None:
            return self.result(binned_tpauc(self.confmat, int(self.num_nan), self.min_tpr, self.max_fpr))
        return self.result(exact_tpauc(*self.collected(), self.min_tpr, self.max_fpr))

    @eager
    def roc(self) -> tuple[Tensor, Tensor, Tensor]:
        """The whole ROC polyline over all examples, on all processes: ``(fpr, tpr, thresholds)``, each ``(V,)``.

        Each vertex holds the rates of ``score >= threshold``; the first threshold is infinite, and vertices inside
        straight pieces are left out, as in scikit-learn. All are float64, and nan if a score is.

        Under several processes all of them have to call this.
        """
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            if self.confmat is not None and self.thresholds is not None:
                return self._binned_roc(self.confmat.cpu(), self.thresholds)
            return roc_points(*self.collected())

    def _binned_roc(self, counts: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if int(self.num_nan):
            return nan_points(counts.device)
        reached = torch.cat([thresholds.flip(0), thresholds.new_tensor([-math.inf])])
        return polyline_vertices(*binned_segments(counts), reached)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the ROC curve, the rectangle, and the area that the metric measures.

        Under several processes all of them have to call this.

        Args:
            val: value to print; computed if ``None``. Several values, in a sequence, tensor or array, are drawn against
                their position instead.
            ax: matplotlib axes to draw into; a new figure if ``None``.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib", "plot")
        if val is not None and not isinstance(val, Real) and (not isinstance(val, Tensor) or val.numel() != 1):
            return super().plot(val, ax)
        value = float(self.compute() if val is None else val)
        fpr, tpr, _ = self.roc()
        return plot_roc(fpr, tpr, value, self.min_tpr, self.max_fpr, ax)
