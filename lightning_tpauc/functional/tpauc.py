r"""Two-way partial AUC: exact on raw scores, or binned in constant memory; for one label, several labels or classes.

With :math:`\theta_0 = 1 -` ``min_tpr`` and :math:`\theta_1 =` ``max_fpr``, the metric is the area of the ROC polyline
inside the rectangle :math:`[0, \theta_1] \times [1 - \theta_0, 1]`, divided by :math:`\theta_0 \theta_1`. The polyline
has one vertex per distinct score, so tied scores form a slanted segment (a tied pair counts 1/2), and it is
interpolated at both borders, so :math:`\theta_0 n_+` and :math:`\theta_1 n_-` need not be whole numbers.

One score per example is one column of scores. Several columns are never pooled: their scores are not compared, and an
entry that was not measured is left out of its label alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.functional import checks, roc

Average = Literal["macro", "weighted", "none"] | None
TaskKind = Literal["binary", "multiclass", "multilabel"]
#: A bound of the rate for all columns, or one for each.
Rates = float | Sequence[float] | Tensor | np.ndarray[Any, Any] | None
Thresholds = int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None


@checks.eager
def two_way_partial_auroc(
    preds: Any,
    target: Any,
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
    sample_weight: Any = None,
) -> Tensor:
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    1 means that the lowest :math:`\theta_0 n_+` positives outscore the highest :math:`\theta_1 n_-` negatives.
    Guessing, or one score for all examples, gives :math:`\max(0, \theta_0 + \theta_1 - 1)^2 / (2 \theta_0 \theta_1)`:
    0 at (0.5, 0.5), and 1/2 only for the whole square. At ``min_tpr=0, max_fpr=1`` the value is AUROC; at ``min_tpr=0``
    it is the partial AUC over ``max_fpr``, without McClish's correction. Scores are ranked as they come: logits and
    probabilities give the same value, unless a squashing function has rounded distinct scores to one.

    With ``task="multilabel"`` each of K columns is ranked by itself, over the entries of the same column of ``target``
    that are 1 or 0. With ``task="multiclass"`` column c ranks the examples of class c, as positives, and all others. A
    softmax mixes the columns, so logits and probabilities differ there: pass those by which you decide.

    Args:
        preds: scores, ``(N,)`` or ``(N, 1)``, or ``(N, K)`` for K labels or classes: a tensor, array, list or column of
            any real dtype and any range; larger means more positive.
        target: labels: 1 for positives, 0 for negatives, ``ignore_index`` for rows to leave out, in the same shape. For
            labels also nan for what was not measured; for classes ``(N,)``, 0 .. C - 1.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1); a list has one for each label
            or class.
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` computes the exact area, O(N) memory and O(N log N) time at worst. A list, 1-D tensor or
            1-D array of thresholds bins the scores and runs straight lines through the ROC points at these thresholds,
            exact where every score is one of them. An int T stands for T thresholds evenly spaced on [0, 1], and needs
            scores in [0, 1]: nothing is squashed to fit.
        ignore_index: label of rows, for several labels of entries, that count for neither class.
        validate_args: check arguments and values; costs a pass over the data.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        num_classes: number of classes, for ``"multiclass"`` only.
        num_labels: number of labels, for ``"multilabel"`` only.
        average: over labels or classes: ``"macro"`` is the mean, ``"weighted"`` weights them by their positives, and
            ``None`` or ``"none"`` gives one value each. Averages leave out values that are nan.
        sample_weight: what each example counts, ``(N,)``, at least 0, without ``thresholds``; ``None`` is 1 for all.

    Returns:
        float64 tensor of shape ``()`` in [0, 1], or one entry per label or class without an average; nan, with a
        :class:`TPAUCWarning`, where a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range or belongs to another task, shapes differ, ``target`` has other
            labels, ``preds`` holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].

    Example:
        >>> preds, target = [0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1], [1, 1, 1, 1, 0, 0, 0, 0]
        >>> two_way_partial_auroc(preds, target, min_tpr=0.5, max_fpr=0.5)
        tensor(0.5000, dtype=torch.float64)
        >>> two_way_partial_auroc(preds, target, min_tpr=0.0, max_fpr=1.0)
        tensor(0.8125, dtype=torch.float64)
        >>> preds = torch.tensor([[0.9, 0.2], [0.6, 0.8], [0.7, 0.1], [0.1, 0.4]])
        >>> target = torch.tensor([[1, 0], [1, 1], [0, torch.nan], [0, 1]])
        >>> two_way_partial_auroc(preds, target, [0.0, 0.5], task="multilabel", num_labels=2, average=None)
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    asked = AskedAreas(
        min_tpr, max_fpr, thresholds, ignore_index, validate_args, task, num_classes, num_labels, average
    )
    preds, target = asked.checked(*checks.as_pair(preds, target, sample_weight=sample_weight))
    scores, labels = preds.reshape(-1, *asked.row), asked.columns(target)
    weights = asked.weights(sample_weight, labels)
    if asked.thresholds is None:
        areas = asked.exact(scores, labels, weights)
    else:
        counts = roc.confusion_counts(scores, labels, asked.thresholds)
        areas = asked.binned(counts, counts.new_zeros(asked.row) if validate_args else roc.count_nan(scores, labels))
    return asked.averaged(areas).to(preds.device if preds.device.type != "mps" else "cpu")  # which knows no float64


class LabelArea(NamedTuple):
    """The area of one column of scores, nan if there is none, what its positives count, and why there is no area."""

    value: float
    support: float
    reason: str


@dataclass(eq=False)
class AskedAreas:
    """The checked arguments of :func:`two_way_partial_auroc` and of its metric, and the areas that they ask for.

    Attributes:
        rectangles: ``(min_tpr, max_fpr)`` of each column of scores.
        thresholds: ascending float64 tensor ``(T,)`` on the CPU, or ``None``.
        row: shape of the scores of one example: ``()`` or ``(K,)``.
    """

    min_tpr: Any
    max_fpr: Any
    thresholds: Any
    ignore_index: Any
    validate_args: bool
    task: Any
    num_classes: Any
    num_labels: Any
    average: Any

    def __post_init__(self) -> None:
        checks.check_choice(self.task, "task", ("binary", "multiclass", "multilabel"))
        checks.check_choice(self.average, "average", ("macro", "weighted", "none", None))
        for name, owner in {"num_classes": "multiclass", "num_labels": "multilabel"}.items():
            value = getattr(self, name)
            if (value is not None) != (self.task == owner):
                found = f"but got {value!r} with `task={self.task!r}`"
                raise ArgumentError(f"Expected `{name}` with `task='{owner}'` and only there, {found}.")
            if value is not None and self.validate_args:
                checks.check_count(value, name, 1)
        count = self.num_classes if self.num_labels is None else self.num_labels
        if self.validate_args:
            checks.check_ignore_index(self.ignore_index, of_classes=self.num_classes is not None)
        lows, highs = _of_columns(self.min_tpr, "min_tpr", count), _of_columns(self.max_fpr, "max_fpr", count)
        pairs = [(low, 1.0 if high is None else high) for low, high in zip(lows, highs, strict=True)]
        self.rectangles = [checks.check_rectangle(*pair) for pair in pairs] if self.validate_args else pairs
        self.row: tuple[int, ...] = () if count is None else (int(count),)
        self._unit_range = checks.is_whole(self.thresholds)
        if self.thresholds is not None:
            self.thresholds = roc.as_thresholds(self.thresholds)

    def checked(self, preds: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Scores and labels as tensors of the task's shapes."""
        return checks.checked_pair(
            preds,
            target,
            self.ignore_index,
            num_labels=self.num_labels,
            num_classes=self.num_classes,
            unit_range=self._unit_range,
            values=self.validate_args,
        )

    def columns(self, target: Tensor) -> Tensor:
        """Labels in the shape of the scores: 1, 0, or anything else for what does not count."""
        if self.num_classes is None:
            return target.reshape(-1, *self.row)
        target = target.detach()
        left_out = (target < 0) | (target >= self.num_classes)
        if self.ignore_index is not None:
            left_out = left_out | (target == self.ignore_index)
        one_hot = target[:, None] == torch.arange(self.num_classes, device=target.device)
        return one_hot.to(torch.int8).masked_fill(left_out[:, None], -1)

    def weights(self, sample_weight: Any, labels: Tensor) -> Tensor | None:
        """The checked weights of the examples, float64 ``(N,)``."""
        if sample_weight is not None and self.thresholds is not None:
            raise ArgumentError("`sample_weight` needs every score: leave out `thresholds`.")
        return checks.as_weights(sample_weight, labels if labels.ndim == 1 else labels.new_full(labels.shape[:1], -1))

    def exact(self, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> list[LabelArea]:
        """The area of every column of ``scores``, ``(N,)`` or ``(N, K)``, for labels of the same shape."""
        areas = []
        for column, label, rectangle in zip(_by_column(scores), _by_column(labels), self.rectangles, strict=True):
            pos, neg = roc.split_classes(column, label)
            reason = roc.why_undefined(len(pos), len(neg), roc.has_nan(pos) or roc.has_nan(neg))
            value, support = math.nan, float(len(pos))
            if not reason:
                own = roc.split_weights(weights, label)
                value = roc.exact_area(pos, neg, *rectangle, own)
                support = support if own is None else float(own[0].sum())
            areas.append(LabelArea(value, support, reason))
        return areas

    def binned(self, counts: Tensor, num_nan: Tensor) -> list[LabelArea]:
        """The same from confusion counts ``(T, 2, 2)`` or ``(T, K, 2, 2)``, ``num_nan`` of them of nan scores."""
        counts, areas = counts.cpu().reshape(len(counts), -1, 2, 2), []
        for column, broken, rectangle in zip(counts.unbind(1), num_nan.reshape(-1), self.rectangles, strict=True):
            num_neg, num_pos = column[0].sum(-1).tolist()
            reason = roc.why_undefined(num_pos, num_neg, bool(broken))
            value = math.nan if reason else roc.binned_area(column, *rectangle)
            areas.append(LabelArea(value, num_pos, reason))
        return areas

    def averaged(self, areas: list[LabelArea]) -> Tensor:
        """All areas, float64 ``(K,)``, their average ``()`` or the only one; a warning says of which there is none."""
        each = not self.row or self.average in (None, "none")
        for reason in sorted({area.reason for area in areas if area.reason}):
            labels = ", ".join(str(place) for place, area in enumerate(areas) if area.reason == reason)
            which = f" of label {labels}" if self.row else ""
            left_out = "" if each else f" The {self.average} average leaves it out."
            warn_on_rank_zero(f"The two-way partial AUC{which} is nan: {reason}{left_out}")
        values = torch.tensor([area.value for area in areas], dtype=torch.float64)
        if each:
            return values.reshape(self.row)
        defined = ~values.isnan()
        weights = torch.tensor([area.support if self.average == "weighted" else 1 for area in areas]).double()
        return (values[defined] * weights[defined]).sum() / weights[defined].sum()


def _by_column(values: Tensor) -> Tensor:
    """The columns of ``(N, K)``, or the only one of ``(N,)``, each contiguous."""
    return values.detach().reshape(len(values), math.prod(values.shape[1:])).T.contiguous()


def _of_columns(bound: Any, name: str, count: int | None) -> list[Any]:
    """A bound for each of ``count`` columns, or for the only one."""
    if count is None:
        return [bound]
    if isinstance(bound, (Tensor, np.ndarray)):
        bound = bound.tolist()
    if not isinstance(bound, (list, tuple)):
        return [bound] * count
    if len(bound) != count:
        raise ArgumentError(
            f"Expected `{name}` to be one number, or one for each of the {count} labels, but got {len(bound)}."
        )
    return list(bound)
