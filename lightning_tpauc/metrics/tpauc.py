"""Two-way partial AUC as a metric, of one score per example or of whatever task is named."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.area import binned_tpauc, exact_tpauc
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.per_label import Average, Rates
from lightning_tpauc.functional.polyline import roc_points
from lightning_tpauc.functional.tpauc import check_task
from lightning_tpauc.metrics.area import AreaMetric, Thresholds, binned_roc
from lightning_tpauc.metrics.per_label import MulticlassTwoWayPartialAUROC, MultilabelTwoWayPartialAUROC
from lightning_tpauc.metrics.plot import plot_roc, plot_rocs

__all__ = ("BinaryTwoWayPartialAUROC", "TwoWayPartialAUROC")


class BinaryTwoWayPartialAUROC(AreaMetric):
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
        >>> import torch
        >>> metric = BinaryTwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([1, 1, 0, 0]))
        >>> metric.update(torch.tensor([0.7, 0.3, 0.4, 0.1]), torch.tensor([1, 1, 0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
    """

    def __init__(
        self,
        min_tpr: float = 0.5,
        max_fpr: float | None = 0.5,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index=ignore_index, validate_args=validate_args, **kwargs)
        max_fpr = 1.0 if max_fpr is None else max_fpr
        if validate_args:
            min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
        self.min_tpr = min_tpr
        self.max_fpr = max_fpr
        self.collect(thresholds)

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
                return binned_roc(self.confmat.cpu(), int(self.num_nan), self.thresholds)
            return roc_points(*self.collected())

    def plot(
        self,
        val: Any = None,
        ax: Any = None,
        others: Mapping[str, BinaryTwoWayPartialAUROC] | None = None,
        label: str = "this",
    ) -> Any:
        """Draw the ROC curve, the rectangle, and the area that the metric measures; with ``others`` all their curves.

        Under several processes all of them have to call this.

        Args:
            val: value to print; computed if ``None``. Several values, in a sequence, tensor or array, are drawn against
                their position instead.
            ax: matplotlib axes to draw into; a new figure if ``None``.
            others: metrics to compare with, by the names that the legend gives them. All have their own rectangles.
            label: name of this one beside others.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
            ArgumentError: if a value is given beside others, whose values are computed.
        """
        import_extra("matplotlib", "plot")
        if others:
            if val is not None:
                msg = f"`plot(others=...)` computes the values of all curves: leave out `val`, which is {val!r}."
                raise ArgumentError(msg)
            named = {label: self, **others}
            values = [f"{name}: TPAUC = {float(metric.compute()):.3f}" for name, metric in named.items()]
            rectangles = [(metric.min_tpr, metric.max_fpr) for metric in named.values()]
            return plot_rocs([metric.roc() for metric in named.values()], values, rectangles, ax)
        if val is not None and not isinstance(val, Real) and (not isinstance(val, Tensor) or val.numel() != 1):
            return super().plot(val, ax)
        value = float(self.compute() if val is None else val)
        fpr, tpr, _ = self.roc()
        return plot_roc(fpr, tpr, value, self.min_tpr, self.max_fpr, ax)


class TwoWayPartialAUROC(BinaryTwoWayPartialAUROC):
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    Without a ``task`` this is :class:`BinaryTwoWayPartialAUROC`, which says what the value means. With
    ``task="multilabel"`` it makes a :class:`MultilabelTwoWayPartialAUROC` of ``num_labels``, with ``task="multiclass"``
    a :class:`MulticlassTwoWayPartialAUROC` of ``num_classes``.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1); for labels and classes also one
            each.
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` keeps every score and is exact; a list, tensor or array of thresholds, or a number of them
            on [0, 1], keeps counts only.
        ignore_index: label of rows, for labels of entries, that count for neither class.
        validate_args: check arguments, and the values of every batch; set to ``False`` to save a synchronisation with
            the device per batch.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        num_classes: number of classes, for ``"multiclass"`` only.
        num_labels: number of labels, for ``"multilabel"`` only.
        average: over classes or labels: ``"macro"``, ``"weighted"``, or ``None`` for one value each.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()``, or one entry per class or label without an average; nan, with a
        :class:`TPAUCWarning`, where a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range or belongs to another task.

    Example:
        >>> import torch
        >>> metric = TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([1, 1, 0, 0]))
        >>> metric.update(torch.tensor([0.7, 0.3, 0.4, 0.1]), torch.tensor([1, 1, 0, 0]))
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5, task="multilabel", num_labels=14, average="weighted")
        MultilabelTwoWayPartialAUROC(num_labels=14)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The class of the task; a subclass is what it is."""
        task = kwargs.get("task", "binary") if cls is TwoWayPartialAUROC else "binary"
        if task == "multilabel":
            return _of_task(MultilabelTwoWayPartialAUROC, *args, **kwargs)
        if task == "multiclass":
            return _of_task(MulticlassTwoWayPartialAUROC, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        min_tpr: Rates = 0.5,
        max_fpr: Rates = 0.5,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        *,
        task: Literal["binary", "multiclass", "multilabel"] = "binary",
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: Average = "macro",
        **kwargs: Any,
    ) -> None:
        check_task(task, min_tpr, num_classes, num_labels, average)
        if task != "binary":
            msg = f"Expected `task` to be 'binary' for a subclass of `TwoWayPartialAUROC`, but got {str(task)!r}."
            raise ArgumentError(msg)
        kwargs.update(min_tpr=min_tpr, max_fpr=max_fpr)  # two numbers, which the base class checks
        super().__init__(thresholds=thresholds, ignore_index=ignore_index, validate_args=validate_args, **kwargs)


def _of_task(
    kind: Any,
    min_tpr: Rates = 0.5,
    max_fpr: Rates = 0.5,
    thresholds: Thresholds = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
    *,
    task: str,
    num_classes: int | None = None,
    num_labels: int | None = None,
    average: Average = "macro",
    **kwargs: Any,
) -> Any:
    check_task(task, min_tpr, num_classes, num_labels, average)
    count = num_labels if num_classes is None else num_classes
    return kind(count, min_tpr, max_fpr, average, thresholds, ignore_index, validate_args, **kwargs)
