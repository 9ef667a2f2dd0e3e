"""Two-way partial AUC as a metric, of one score per example, or of several labels or classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import as_pair, eager
from lightning_tpauc.functional.roc import binned_roc, confusion_counts, count_nan, roc_points
from lightning_tpauc.functional.tpauc import AskedAreas, Average, LabelArea, Rates, TaskKind, Thresholds
from lightning_tpauc.metrics.base import ScoreMetric

#: ``(fpr, tpr, thresholds)`` of one curve.
Curve = tuple[Tensor, Tensor, Tensor]


class TwoWayPartialAUROC(ScoreMetric):
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    The definition, its conventions for ties and borders, and what the value means are those of
    :func:`~lightning_tpauc.functional.two_way_partial_auroc`. Scores are ranked as they come, never squashed; each of
    several labels or classes is ranked by itself. With several processes the value is that of all their examples
    together, also if some processes have none.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1); a list has one for each label
            or class.
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` keeps every score, O(N) memory, and is exact. A list, 1-D tensor or 1-D array of T
            thresholds, or an int T for as many evenly spaced ones on [0, 1] (which needs scores in [0, 1]), keeps
            counts only: O(T) memory, straight lines between the thresholds' ROC points.
        ignore_index: label of rows that count for neither class, or of entries if there are several labels. There, nan
            entries of a float target do not count, either.
        validate_args: check arguments, and the values of every batch; set to ``False`` to save a synchronisation with
            the device per batch.
        task: ``"binary"``, ``"multiclass"`` (each class against all others) or ``"multilabel"``.
        num_classes: number of classes, for ``"multiclass"`` only.
        num_labels: number of labels, for ``"multilabel"`` only.
        average: over classes or labels: ``"macro"``, ``"weighted"`` by their positives, or ``None`` for one value each.
            Averages leave out values that are nan.
        kwargs: see :class:`torchmetrics.Metric`.

    Returns (from ``compute`` and ``forward``):
        float64 tensor of shape ``()`` in [0, 1], or one entry per class or label without an average; nan, with a
        :class:`TPAUCWarning`, where a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range or belongs to another task.

    Example:
        >>> metric = TwoWayPartialAUROC(min_tpr=0.5, max_fpr=0.5)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.6, 0.5]), torch.tensor([1, 1, 0, 0]))
        >>> metric.update([0.7, 0.3, 0.4, 0.1], [1, 1, 0, 0])
        >>> metric.compute()
        tensor(0.5000, dtype=torch.float64)
        >>> metric = TwoWayPartialAUROC(0.0, [0.5, 1.0], task="multilabel", num_labels=2, average=None)
        >>> preds = torch.tensor([[0.9, 0.2], [0.6, 0.8], [0.7, 0.1], [0.1, 0.4]])
        >>> metric.update(preds, torch.tensor([[1, 0], [1, 1], [0, torch.nan], [0, 1]]))
        >>> metric.compute()
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    higher_is_better = True
    plot_upper_bound = 1.0
    num_nan: Tensor
    min_tpr: float
    max_fpr: float

    def __init__(
        self,
        min_tpr: Rates = 0.5,
        max_fpr: Rates = 0.5,
        thresholds: Thresholds = None,
        ignore_index: int | None = None,
        validate_args: bool = True,
        *,
        task: TaskKind = "binary",
        num_classes: int | None = None,
        num_labels: int | None = None,
        average: Average = "macro",
        **kwargs: Any,
    ) -> None:
        asked = AskedAreas(
            min_tpr, max_fpr, thresholds, ignore_index, validate_args, task, num_classes, num_labels, average
        )
        # the ignored class of several may be any
        super().__init__(ignore_index, validate_args, row=asked.row, keeps_scores=asked.thresholds is None, **kwargs)
        self._asked = asked
        self._label_row = () if num_classes is not None else asked.row
        #: ``(min_tpr, max_fpr)`` of each column of scores.
        self.rectangles = asked.rectangles
        if not asked.row:
            self.min_tpr, self.max_fpr = asked.rectangles[0]
        #: Ascending float64 tensor ``(T,)`` or ``None``. No buffer: half-precision plugins would round it.
        self.thresholds = asked.thresholds
        self.num_classes, self.num_labels, self.average = num_classes, num_labels, average
        if self.thresholds is None:
            return
        # A MetricCollection lets metrics share states whose names and first values agree. The first batch need not tell
        # two sets of thresholds apart, so the name has to; nor two ignored classes.
        told_apart = self.thresholds.numpy(force=True).tobytes()
        if num_classes is not None and ignore_index is not None:
            told_apart += f"without {ignore_index}".encode()
        self._counts_name = f"confmat_{hashlib.blake2s(told_apart, digest_size=6).hexdigest()}"
        counts = torch.zeros((len(self.thresholds), *asked.row, 2, 2), dtype=torch.int64, device=self.device)
        self.add_state(self._counts_name, default=counts, dist_reduce_fx="sum")
        self.add_state("num_nan", default=counts.new_zeros(asked.row), dist_reduce_fx="sum")

    @property
    def confmat(self) -> Tensor | None:
        """Confusion matrix at each threshold, int64 ``(T, 2, 2)`` or ``(T, K, 2, 2)``, or ``None``.

        It is indexed by threshold, column, label, and whether the score reaches the threshold.
        """
        return None if self.thresholds is None else getattr(self, self._counts_name)

    @eager
    def update(self, preds: Any, target: Any, sample_weight: Any = None) -> None:
        """Collect one batch, or count it if there are thresholds.

        Args:
            preds: scores ``(N,)`` or ``(N, 1)``, or ``(N, K)`` for K labels or classes: a tensor, array, list or column
                of any float or integer dtype; larger means more positive.
            target: labels of the same shape, 1, 0, or ``ignore_index``; of classes ``(N,)``.
            sample_weight: what each example counts, ``(N,)``, at least 0, without ``thresholds``; ``None`` is 1 for
                all.

        Raises:
            ArgumentError: if shapes are others; with ``validate_args`` also if ``target`` has other labels, ``preds``
                holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].
        """
        preds, target = self._asked.checked(*as_pair(preds, target, self.device, sample_weight=sample_weight))
        if self.thresholds is None:
            self.keep(preds, target, sample_weight)
            return
        self._asked.weights(sample_weight, target)
        scores, labels = preds.reshape(-1, *self._score_row), self._asked.columns(target)
        if not self.validate_args:
            self.num_nan = self.num_nan + count_nan(scores, labels).to(self.num_nan.device)
        counts: Tensor = getattr(self, self._counts_name)
        setattr(self, self._counts_name, counts + confusion_counts(scores, labels, self.thresholds).to(counts.device))

    def encode(self, target: Tensor) -> Tensor:
        """Labels as int8; classes as int32, -1 for what is none: ``ignore_index`` may be one, and is left out later."""
        if self.num_classes is None:
            return super().encode(target)
        target = target.detach().long()
        return target.where((target >= 0) & (target < self.num_classes), -1).to(torch.int32)

    @eager
    def compute(self) -> Tensor:
        """The metric over all examples, on all processes."""
        device = self.device if self.device.type != "mps" else torch.device("cpu")  # Apple's GPUs know no float64
        return self._asked.averaged(self._areas()).to(device)

    def _areas(self) -> list[LabelArea]:
        if self.confmat is not None:
            return self._asked.binned(self.confmat, self.num_nan)
        scores, labels = self.collected()
        return self._asked.exact(scores, self._asked.columns(labels), self.collected_weights())

    def roc(self) -> tuple[Any, Any, Any]:
        """The whole ROC polyline over all examples, on all processes: ``(fpr, tpr, thresholds)``, each ``(V,)``.

        Each vertex holds the rates of ``score >= threshold``; the first threshold is infinite, and vertices inside
        straight pieces are left out, as in scikit-learn. All are float64, and nan if a score is. With several labels or
        classes all three are lists, with an entry for each.

        Under several processes all of them have to call this.
        """
        fpr, tpr, thresholds = map(list, zip(*self._of_all(self._curves), strict=True))
        return (fpr, tpr, thresholds) if self._score_row else (fpr[0], tpr[0], thresholds[0])

    def _curves(self) -> list[Curve]:
        if self.confmat is not None and self.thresholds is not None:
            counts = self.confmat.cpu().reshape(len(self.thresholds), -1, 2, 2).unbind(1)
            broken = self.num_nan.reshape(-1).tolist()
            return [binned_roc(own, num_nan, self.thresholds) for own, num_nan in zip(counts, broken, strict=True)]
        scores, labels = self.collected()
        shape = (-1, len(self.rectangles))
        columns = zip(scores.reshape(shape).T, self._asked.columns(labels).reshape(shape).T, strict=True)
        return [roc_points(*column, sample_weight=self.collected_weights()) for column in columns]

    def plot(
        self,
        val: Any = None,
        ax: Any = None,
        others: Mapping[str, TwoWayPartialAUROC] | None = None,
        label: str = "this",
    ) -> Any:
        """Draw the ROC curve, the rectangle, and the area that the metric measures; with several labels all curves.

        Under several processes all of them have to call this.

        Args:
            val: one or several values to draw as torchmetrics does, without curves; ``None`` for the curves.
            ax: matplotlib axes to draw into; a new figure if ``None``.
            others: metrics to compare with, by the names that the legend gives them. All have their own rectangles.
            label: name of this one beside others.

        Returns:
            The figure and the axes.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        import_extra("matplotlib", "plot")
        from lightning_tpauc.metrics.figures import plot_rocs  # it imports Lightning, which metrics do without

        if val is not None:
            return super().plot(val, ax)
        if self._score_row:
            areas, whole = self._of_all(lambda: (self._areas(), self._curves()))
            kind = "Class" if self.num_labels is None else "Label"
            texts = [f"{kind} {k}: {area.value:.3f}" for k, area in enumerate(areas)]
            return plot_rocs([curve[:2] for curve in whole], texts, self.rectangles, ax)
        named = {label: self, **(others or {})}
        curves, rectangles = zip(*((m.roc()[:2], m.rectangles[0]) for m in named.values()), strict=True)
        shown = [f"TPAUC = {float(m.compute()):.3f}" for m in named.values()]
        if not others:
            return plot_rocs(curves, ["ROC curve"], rectangles, ax, shown[0])
        return plot_rocs(curves, [f"{name}: {text}" for name, text in zip(named, shown, strict=True)], rectangles, ax)
