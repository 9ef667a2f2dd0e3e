r"""Two-way partial AUC of several labels, or of each class against the others: one value each, and their average.

Nothing is pooled: scores of different labels are never compared, and an entry that was not measured counts for no class
of its label only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.area import exact_area, why_undefined
from lightning_tpauc.functional.binned import adjust_thresholds, binned_area, confusion_counts, count_nan
from lightning_tpauc.functional.checks import check_count, check_rectangle, is_whole
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.notify import warn_on_rank_zero
from lightning_tpauc.functional.order import has_nan, split_classes
from lightning_tpauc.functional.validation import (
    check_ignore_index,
    check_multiclass,
    check_multilabel,
    check_thresholds,
)

__all__ = (
    "Average",
    "LabelArea",
    "Rates",
    "average_areas",
    "binned_areas",
    "check_average",
    "check_class_index",
    "exact_areas",
    "multiclass_two_way_partial_auroc",
    "multilabel_two_way_partial_auroc",
    "one_vs_rest",
    "per_label_rectangles",
)

Average = Literal["macro", "weighted", "none"] | None

#: A bound of the rate for all labels, or one per label.
Rates = float | Sequence[float] | Tensor | np.ndarray[Any, Any] | None


class LabelArea(NamedTuple):
    """The area of one label.

    Attributes:
        value: two-way partial AUC, nan if there is none.
        support: number of positives.
        reason: why there is none, for a sentence; empty if there is.
    """

    value: float
    support: int
    reason: str


@eager
def multilabel_two_way_partial_auroc(
    preds: Tensor,
    target: Tensor,
    num_labels: int,
    min_tpr: Rates = 0.5,
    max_fpr: Rates = 0.5,
    average: Average = "macro",
    thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Two-way partial AUC of each of K labels, whose targets may be missing, or the average.

    Column k of ``preds`` is ranked by itself, over the entries of column k of ``target`` that are 1 or 0: see
    :func:`two_way_partial_auroc`.

    Args:
        preds: scores, tensor ``(N, K)`` of any real dtype and any range; larger means more positive.
        target: tensor ``(N, K)`` of 1, 0, ``ignore_index``, or nan, for what was not measured.
        num_labels: K.
        min_tpr: lower bound of the true positive rate, in [0, 1); one for all labels, or K.
        max_fpr: upper bound of the false positive rate, in (0, 1]; one for all labels, or K. ``None`` is 1.
        average: ``"macro"`` is the mean over the labels, ``"weighted"`` weights them by their positives, and ``None``
            or ``"none"`` gives all K. Averages leave out labels whose value is nan.
        thresholds: see :func:`two_way_partial_auroc`; the same for all labels.
        ignore_index: label of entries to leave out.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()``, or ``(K,)`` without an average. The value of a label is nan, with a
        :class:`TPAUCWarning`, if a class has no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ from ``(N, K)``, ``target`` has other labels, a
            score that counts is nan, or ``thresholds`` is an int and a score lies outside [0, 1].

    Example:
        >>> preds = torch.tensor([[0.9, 0.2], [0.6, 0.8], [0.7, 0.1], [0.1, 0.4]])
        >>> target = torch.tensor([[1, 0], [1, 1], [0, -1], [0, 1]])
        >>> multilabel_two_way_partial_auroc(preds, target, num_labels=2, ignore_index=-1, min_tpr=0.0, average=None)
        tensor([0.5000, 1.0000], dtype=torch.float64)
        >>> multilabel_two_way_partial_auroc(preds, target, num_labels=2, ignore_index=-1, min_tpr=[0.0, 0.5])
        tensor(0.7500, dtype=torch.float64)
    """
    if validate_args:
        check_count(num_labels, "num_labels", 1)
        _check_arguments(average, thresholds)
        check_ignore_index(ignore_index)
    rectangles = per_label_rectangles(min_tpr, max_fpr, num_labels, validate=validate_args)
    check_multilabel(
        preds,
        target,
        num_labels,
        ignore_index,
        unit_range=isinstance(thresholds, Integral),
        values=validate_args,
    )
    return _averaged(preds, target, rectangles, average, thresholds)


@eager
def multiclass_two_way_partial_auroc(
    preds: Tensor,
    target: Tensor,
    num_classes: int,
    min_tpr: Rates = 0.5,
    max_fpr: Rates = 0.5,
    average: Average = "macro",
    thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Two-way partial AUC of each of C classes against all others, or the average.

    Column c of ``preds`` ranks the examples of class c, as positives, and all others, as negatives: see
    :func:`two_way_partial_auroc`. Scores are ranked as they come. A softmax is no monotone function of one column, so
    logits and probabilities give different values here: pass those by which you decide.

    Args:
        preds: scores, tensor ``(N, C)`` of any real dtype and any range; larger means more of that class.
        target: integer tensor ``(N,)`` of classes 0 .. C - 1, or ``ignore_index``.
        num_classes: C, at least 2.
        min_tpr: lower bound of the true positive rate, in [0, 1); one for all classes, or C.
        max_fpr: upper bound of the false positive rate, in (0, 1]; one for all classes, or C. ``None`` is 1.
        average: ``"macro"`` is the mean over the classes, ``"weighted"`` weights them by their examples, and ``None``
            or ``"none"`` gives all C. Averages leave out classes whose value is nan.
        thresholds: see :func:`two_way_partial_auroc`; the same for all classes.
        ignore_index: class of rows to leave out, any integer.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()``, or ``(C,)`` without an average. The value of a class is nan, with a
        :class:`TPAUCWarning`, if it or the others have no example or, unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ from ``(N, C)`` and ``(N,)``, ``target`` has other
            classes, a score that counts is nan, or ``thresholds`` is an int and a score lies outside [0, 1].

    Example:
        >>> preds = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.4, 0.3], [0.5, 0.3, 0.2], [0.1, 0.4, 0.5]])
        >>> target = torch.tensor([0, 1, 1, 2])
        >>> multiclass_two_way_partial_auroc(preds, target, num_classes=3, min_tpr=0.0, max_fpr=1.0, average=None)
        tensor([1.0000, 0.6250, 1.0000], dtype=torch.float64)
    """
    if validate_args:
        check_count(num_classes, "num_classes", 2)
        _check_arguments(average, thresholds)
        check_class_index(ignore_index)
    rectangles = per_label_rectangles(min_tpr, max_fpr, num_classes, validate=validate_args)
    check_multiclass(
        preds,
        target,
        num_classes,
        ignore_index,
        unit_range=isinstance(thresholds, Integral),
        values=validate_args,
    )
    return _averaged(preds, one_vs_rest(target, num_classes, ignore_index), rectangles, average, thresholds)


def _averaged(
    preds: Tensor, labels: Tensor, rectangles: list[tuple[float, float]], average: Average, thresholds: Any
) -> Tensor:
    if thresholds is None:
        areas = exact_areas(preds, labels, rectangles)
    else:
        counts = confusion_counts(preds, labels, adjust_thresholds(thresholds))
        areas = binned_areas(counts, count_nan(preds, labels), rectangles)
    return average_areas(areas, average).to(preds.device)


def _check_arguments(average: Any, thresholds: Any) -> None:
    check_average(average)
    if thresholds is not None:
        check_thresholds(thresholds)


def check_average(average: Any) -> None:
    """Raise :class:`ArgumentError` unless ``average`` says what happens to the values of all labels."""
    if average not in ("macro", "weighted", "none", None):
        remedy = (
            " To pool the scores of all labels, pass `.flatten()` of both to the binary metric."
            if average == "micro"
            else ""
        )
        msg = f"Expected `average` to be 'macro', 'weighted', 'none' or `None`, but got {average!r}.{remedy}"
        raise ArgumentError(msg)


def check_class_index(ignore_index: Any) -> None:
    """Raise :class:`ArgumentError` unless ``ignore_index`` is ``None`` or an integer."""
    if ignore_index is not None and not is_whole(ignore_index):
        msg = f"Expected `ignore_index` to be `None` or an integer, but got {ignore_index!r}."
        raise ArgumentError(msg)


def per_label_rectangles(min_tpr: Any, max_fpr: Any, count: int, *, validate: bool = True) -> list[tuple[float, float]]:
    """The rectangle ``(min_tpr, max_fpr)`` of each of ``count`` labels.

    Raises:
        ArgumentError: if a bound is out of range, or there are several and not ``count``.

    Example:
        >>> per_label_rectangles([0.5, 0.8], 0.3, 2)
        [(0.5, 0.3), (0.8, 0.3)]
    """
    lows, highs = _per_label(min_tpr, "min_tpr", count), _per_label(max_fpr, "max_fpr", count)
    pairs = [(low, 1.0 if high is None else high) for low, high in zip(lows, highs, strict=True)]
    return [check_rectangle(*pair) for pair in pairs] if validate else pairs


def _per_label(bound: Any, name: str, count: int) -> list[Any]:
    if isinstance(bound, (Tensor, np.ndarray)):
        bound = bound.tolist()
    if not isinstance(bound, (list, tuple)):
        return [bound] * count
    if len(bound) != count:
        msg = f"Expected `{name}` to be one number, or one for each of the {count} labels, but got {len(bound)}."
        raise ArgumentError(msg)
    return list(bound)


def one_vs_rest(target: Tensor, num_classes: int, ignore_index: int | None = None) -> Tensor:
    """Labels of each class against all others, int8 ``(N, C)``: 1, 0, or -1 for rows of no class and ignored ones.

    Example:
        >>> one_vs_rest(torch.tensor([1, 0, -1]), 2)
        tensor([[ 0,  1],
                [ 1,  0],
                [-1, -1]], dtype=torch.int8)
    """
    target = target.detach()
    left_out = (target < 0) | (target >= num_classes)
    if ignore_index is not None:
        left_out = left_out | (target == ignore_index)
    one_hot = target[:, None] == torch.arange(num_classes, device=target.device)
    return one_hot.to(torch.int8).masked_fill(left_out[:, None], -1)


def exact_areas(scores: Tensor, labels: Tensor, rectangles: list[tuple[float, float]]) -> list[LabelArea]:
    """The area of every column of ``scores`` (N, K), for labels 1, 0 or anything else for entries to leave out."""
    columns = zip(scores.detach().T.contiguous(), labels.detach().T.contiguous(), rectangles, strict=True)
    return [_exact(*split_classes(column, label), rectangle) for column, label, rectangle in columns]


def _exact(pos: Tensor, neg: Tensor, rectangle: tuple[float, float]) -> LabelArea:
    support = pos.shape[0]
    reason = why_undefined(support, neg.shape[0], has_nan(pos) or has_nan(neg))
    return LabelArea(math.nan if reason else exact_area(pos, neg, *rectangle), support, reason)


def binned_areas(counts: Tensor, num_nan: Tensor, rectangles: list[tuple[float, float]]) -> list[LabelArea]:
    """The same from confusion counts ``(T, K, 2, 2)``, among them ``num_nan`` (K,) of scores that are nan."""
    counts, areas = counts.cpu(), []
    totals = counts[0].sum(-1).tolist()
    columns = zip(counts.unbind(1), totals, num_nan.tolist(), rectangles, strict=True)
    for column, (num_neg, num_pos), any_nan, rectangle in columns:
        reason = why_undefined(num_pos, num_neg, any_nan > 0)
        value = math.nan if reason else float(binned_area(column, *rectangle))
        areas.append(LabelArea(value, num_pos, reason))
    return areas


def average_areas(areas: list[LabelArea], average: Average) -> Tensor:
    """All areas, float64 ``(K,)``, or their average ``()`` over those that are not nan; a warning names the others.

    Example:
        >>> average_areas([LabelArea(0.5, 1, ""), LabelArea(0.8, 3, "")], "weighted")
        tensor(0.7250, dtype=torch.float64)
    """
    for reason in sorted({area.reason for area in areas if area.reason}):
        labels = ", ".join(str(place) for place, area in enumerate(areas) if area.reason == reason)
        left_out = "" if average in (None, "none") else f" The {average} average leaves it out."
        warn_on_rank_zero(f"The two-way partial AUC of label {labels} is nan: {reason}{left_out}")
    values = torch.tensor([area.value for area in areas], dtype=torch.float64)
    if average in (None, "none"):
        return values
    defined = ~values.isnan()
    weights = torch.tensor([area.support if average == "weighted" else 1 for area in areas], dtype=torch.float64)
    return (values[defined] * weights[defined]).sum() / weights[defined].sum()
