"""Two-way partial AUC as a metric, of one score per example, or of several labels or classes."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_count, check_multiclass, check_multilabel, check_rectangle, eager
from lightning_tpauc.functional.roc import binned_tpauc, exact_tpauc, roc_points
from lightning_tpauc.functional.tpauc import (
    Average,
    LabelArea,
    Rates,
    average_areas,
    binned_areas,
    check_average,
    check_class_index,
    check_task,
    exact_areas,
    one_vs_rest,
    per_label_rectangles,
)
from lightning_tpauc.metrics.base import AreaMetric, Thresholds, binned_roc


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
        from lightning_tpauc.metrics.figures import (  # it imports Lightning, which metrics do without
            plot_roc,
            plot_rocs,
        )

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


class _PerLabel(AreaMetric):
    """A column of scores per label, a rectangle for each, and the average of their areas."""

    def __init__(
        self,
        count: int,
        min_tpr: Rates,
        max_fpr: Rates,
        average: Average,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(ignore_index=ignore_index, validate_args=validate_args, **kwargs)
        if validate_args:
            check_average(average)
        self.average = average
        #: ``(min_tpr, max_fpr)`` of each label.
        self.rectangles = per_label_rectangles(min_tpr, max_fpr, count, validate=validate_args)
        self._score_row = (count,)

    @eager
    def compute(self) -> Tensor:
        """The metric over all examples, on all processes."""
        return self.result(average_areas(self._areas(), self.average).to(self.device))

    def _areas(self) -> list[LabelArea]:
        if self.confmat is not None:
            return binned_areas(self.confmat, self.num_nan, self.rectangles)
        scores, labels = self.collected()
        return exact_areas(scores, self.columns(labels), self.rectangles)

    @eager
    def roc(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The whole ROC polylines over all examples, on all processes: ``(fpr, tpr, thresholds)``, a list each.

        Entry k of each list is a float64 tensor ``(V_k,)``, as :meth:`BinaryTwoWayPartialAUROC.roc` gives them.

        Under several processes all of them have to call this.
        """
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            fpr, tpr, thresholds = zip(*self._curves(), strict=True)
            return list(fpr), list(tpr), list(thresholds)

    def _curves(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        if self.confmat is not None and self.thresholds is not None:
            columns = zip(self.confmat.cpu().unbind(1), self.num_nan.tolist(), strict=True)
            return [binned_roc(counts, num_nan, self.thresholds) for counts, num_nan in columns]
        scores, labels = self.collected()
        columns = zip(scores.unbind(1), self.columns(labels).unbind(1), strict=True)
        return [roc_points(column, label) for column, label in columns]

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the ROC curve of each label and the rectangles, with the areas in the legend.

        Under several processes all of them have to call this.

        Args:
            val: values to draw as torchmetrics does, without curves: what ``compute`` or ``forward`` gave once, or
                several times in a sequence.
            ax: matplotlib axes to draw into; a new figure if ``None``.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib", "plot")
        from lightning_tpauc.metrics.figures import plot_rocs  # it imports Lightning, which metrics do without

        if val is not None:
            return super().plot(val, ax)
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync, should_unsync=self._should_unsync
        ):
            values, curves = [area.value for area in self._areas()], self._curves()
        named = [f"{self.plot_legend_name} {k}: {value:.3f}" for k, value in enumerate(values)]
        return plot_rocs(curves, named, self.rectangles, ax)


class MultilabelTwoWayPartialAUROC(_PerLabel):
    r"""Two-way partial AUC of each of K labels, whose targets may be missing, or the average.

    The definition is that of :func:`~lightning_tpauc.functional.multilabel_two_way_partial_auroc`. Scores are ranked as
    they come, each label by itself. Over several processes the value is that of all their examples together.

    Args:
        num_labels: K.
        min_tpr: lower bound of the true positive rate, in [0, 1); one for all labels, or K.
        max_fpr: upper bound of the false positive rate, in (0, 1]; one for all labels, or K. ``None`` is 1.
        average: ``"macro"`` is the mean over the labels, ``"weighted"`` weights them by their positives, and ``None``
            or ``"none"`` gives all K. Averages leave out labels whose value is nan.
        thresholds: ``None`` keeps every score, O(N K) memory, and is exact; several, or an integer of them on [0, 1],
            keep counts only, O(T K).
        ignore_index: label of entries that were not measured. Entries that are nan, in float targets, were not either.
        validate_args: check arguments, and the values of every batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()``, or ``(K,)`` without an average. The value of a label is nan, with a
        :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = MultilabelTwoWayPartialAUROC(num_labels=2, min_tpr=0.0, max_fpr=[0.5, 1.0], average=None)
        >>> preds = torch.tensor([[0.9, 0.2], [0.6, 0.8], [0.7, 0.1], [0.1, 0.4]])
        >>> metric.update(preds, torch.tensor([[1, 0], [1, 1], [0, torch.nan], [0, 1]]))
        >>> metric.compute()
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    plot_legend_name = "Label"

    def __init__(
        self,
        num_labels: int,
        min_tpr: Rates = 0.5,
        max_fpr: Rates = 0.5,
        average: Average = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            check_count(num_labels, "num_labels", 1)
        super().__init__(num_labels, min_tpr, max_fpr, average, ignore_index, validate_args, **kwargs)
        self.num_labels = num_labels
        self._label_row = (num_labels,)
        self.collect(thresholds)

    def check_batch(self, preds: Tensor, target: Tensor, *, unit_range: bool = False) -> None:
        """Raise :class:`ArgumentError` unless both have a column per label."""
        check_multilabel(
            preds, target, self.num_labels, self.ignore_index, unit_range=unit_range, values=self.validate_args
        )


class MulticlassTwoWayPartialAUROC(_PerLabel):
    r"""Two-way partial AUC of each of C classes against all others, or the average.

    The definition is that of :func:`~lightning_tpauc.functional.multiclass_two_way_partial_auroc`. Scores are ranked as
    they come: logits and probabilities give different values here. Over several processes the value is that of all
    their examples together.

    Args:
        num_classes: C, at least 2.
        min_tpr: lower bound of the true positive rate, in [0, 1); one for all classes, or C.
        max_fpr: upper bound of the false positive rate, in (0, 1]; one for all classes, or C. ``None`` is 1.
        average: ``"macro"`` is the mean over the classes, ``"weighted"`` weights them by their examples, and ``None``
            or ``"none"`` gives all C. Averages leave out classes whose value is nan.
        thresholds: ``None`` keeps every score, O(N C) memory, and is exact; several, or an integer of them on [0, 1],
            keep counts only, O(T C).
        ignore_index: class of rows to leave out, any integer.
        validate_args: check arguments, and the values of every batch.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()``, or ``(C,)`` without an average. The value of a class is nan, with a
        :class:`TPAUCWarning`, if it or the others have no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> metric = MulticlassTwoWayPartialAUROC(num_classes=3, min_tpr=0.0, max_fpr=1.0, average=None)
        >>> preds = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.5, 0.3, 0.2], [0.1, 0.4, 0.5]])
        >>> metric.update(preds, torch.tensor([0, 1, 1, 2]))
        >>> metric.compute()
        tensor([1.0000, 0.6250, 1.0000], dtype=torch.float64)
    """

    plot_legend_name = "Class"

    def __init__(
        self,
        num_classes: int,
        min_tpr: Rates = 0.5,
        max_fpr: Rates = 0.5,
        average: Average = "macro",
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        if validate_args:
            check_count(num_classes, "num_classes", 2)
        # Any class may be left out here, so the base class has nothing to check.
        super().__init__(num_classes, min_tpr, max_fpr, average, None, validate_args, **kwargs)
        if validate_args:
            check_class_index(ignore_index)
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.collect(thresholds, counted_by="" if ignore_index is None else f"without {ignore_index}")

    def check_batch(self, preds: Tensor, target: Tensor, *, unit_range: bool = False) -> None:
        """Raise :class:`ArgumentError` unless there is a column per class, and a class per row."""
        check_multiclass(
            preds, target, self.num_classes, self.ignore_index, unit_range=unit_range, values=self.validate_args
        )

    def encode(self, target: Tensor) -> Tensor:
        """Classes as int32, -1 for what is none; ``ignore_index`` may be one of them, and is left out later."""
        target = target.detach().long()
        return target.where((target >= 0) & (target < self.num_classes), -1).to(torch.int32)

    def columns(self, target: Tensor) -> Tensor:
        """Labels of each class against the others, ``(N, C)``."""
        return one_vs_rest(target, self.num_classes, self.ignore_index)
