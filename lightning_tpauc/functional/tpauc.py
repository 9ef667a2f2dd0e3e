r"""Two-way partial AUC: exact on raw scores, or binned in constant memory; of one score, several labels or classes.

With :math:`\theta_0 = 1 -` ``min_tpr`` and :math:`\theta_1 =` ``max_fpr``, the metric is the area of the ROC polyline
inside the rectangle :math:`[0, \theta_1] \times [1 - \theta_0, 1]`, divided by :math:`\theta_0 \theta_1`. The polyline
has one vertex per distinct score, so tied scores form a slanted segment (a tied pair counts 1/2), and it is
interpolated at both borders, so :math:`\theta_0 n_+` and :math:`\theta_1 n_-` need not be whole numbers.

Of several labels nothing is pooled: scores of different labels are never compared, and an entry that was not measured
counts for no class of its label only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.functional.checks import (
    check_choice,
    check_count,
    check_ignore_index,
    check_multiclass,
    check_multilabel,
    check_preds_and_target,
    check_rectangle,
    check_thresholds,
    eager,
    is_whole,
)
from lightning_tpauc.functional.order import has_nan, split_classes
from lightning_tpauc.functional.roc import (
    adjust_thresholds,
    binned_area,
    binned_tpauc,
    confusion_counts,
    count_nan,
    exact_area,
    exact_tpauc,
    why_undefined,
)

Average = Literal["macro", "weighted", "none"] | None

#: A bound of the rate for all labels, or one per label.
Rates = float | Sequence[float] | Tensor | np.ndarray[Any, Any] | None


def two_way_partial_auroc(
    preds: Tensor,
    target: Tensor,
    min_tpr: Rates = 0.5,
    max_fpr: Rates = 0.5,
    thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
    *,
    task: Literal["binary", "multiclass", "multilabel"] = "binary",
    num_classes: int | None = None,
    num_labels: int | None = None,
    average: Average = "macro",
) -> Tensor:
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    Without a ``task`` this is :func:`binary_two_way_partial_auroc`, which says what the value means; else
    :func:`multilabel_two_way_partial_auroc` of ``num_labels`` columns, or :func:`multiclass_two_way_partial_auroc` of
    each of ``num_classes`` against the others.

    Args:
        preds: scores, tensor ``(N,)``, or ``(N, K)`` for K labels or classes.
        target: labels, tensor ``(N,)``, or ``(N, K)`` for K labels.
        min_tpr: lower bound of the true positive rate, in [0, 1); for labels and classes also one each.
        max_fpr: upper bound of the false positive rate, in (0, 1]; ``None`` is 1.
        thresholds: ``None`` is exact; several, or a number of them, bin the scores.
        ignore_index: label of rows, for labels of entries, to leave out.
        validate_args: check arguments and values; costs a pass over the data.
        task: ``"binary"``, ``"multiclass"`` or ``"multilabel"``.
        num_classes: number of classes, for ``"multiclass"`` only.
        num_labels: number of labels, for ``"multilabel"`` only.
        average: over classes or labels: ``"macro"``, ``"weighted"``, or ``None`` for one value each.

    Returns:
        float64 tensor of shape ``()``, or one entry per class or label without an average.

    Raises:
        ArgumentError: if an argument is out of range or belongs to another task, or values or shapes are not those of
            the task.

    Example:
        >>> import torch
        >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1])
        >>> target = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
        >>> two_way_partial_auroc(preds, target, min_tpr=0.5, max_fpr=0.5)
        tensor(0.5000, dtype=torch.float64)
        >>> columns = torch.stack([preds, -preds], dim=1), torch.stack([target, target], dim=1)
        >>> two_way_partial_auroc(*columns, task="multilabel", num_labels=2, average=None)
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    check_task(task, min_tpr, num_classes, num_labels, average)
    options: dict[str, Any] = {
        "min_tpr": min_tpr,
        "max_fpr": max_fpr,
        "thresholds": thresholds,
        "ignore_index": ignore_index,
        "validate_args": validate_args,
    }
    if num_labels is not None:
        return multilabel_two_way_partial_auroc(preds, target, num_labels, average=average, **options)
    if num_classes is not None:
        return multiclass_two_way_partial_auroc(preds, target, num_classes, average=average, **options)
    return binary_two_way_partial_auroc(preds, target, **options)


def check_task(task: Any, min_tpr: Any, num_classes: Any, num_labels: Any, average: Any) -> None:
    """Raise :class:`ArgumentError` for a task that is none, or arguments that belong to another."""
    if isinstance(min_tpr, str):
        msg = f"Expected `min_tpr` to be a number in [0, 1), but got {min_tpr!r}. Name the task: `task={min_tpr!r}`."
        raise ArgumentError(msg)
    check_choice(task, "task", ("binary", "multiclass", "multilabel"))
    for name, value, owner in (("num_classes", num_classes, "multiclass"), ("num_labels", num_labels, "multilabel")):
        if value is None and task == owner:
            msg = f"Expected `{name}` with `task='{owner}'`, but got none."
            raise ArgumentError(msg)
        if value is not None and task != owner:
            msg = f"Expected `{name}` only with `task='{owner}'`, but got {value!r} with `task={str(task)!r}`."
            raise ArgumentError(msg)
    if task == "binary" and average != "macro":
        msg = f"Expected `average` only with several labels or classes, but got {average!r} with `task='binary'`."
        raise ArgumentError(msg)


@eager
def binary_two_way_partial_auroc(
    preds: Tensor,
    target: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float | None = 0.5,
    thresholds: int | Sequence[float] | Tensor | np.ndarray[Any, Any] | None = None,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Area of the ROC polyline inside the rectangle [0, max_fpr] x [min_tpr, 1], over the rectangle's area.

    1 means that the lowest :math:`\theta_0 n_+` positives outscore the highest :math:`\theta_1 n_-` negatives.
    Guessing, or one score for all examples, gives :math:`\max(0, \theta_0 + \theta_1 - 1)^2 / (2 \theta_0 \theta_1)`:
    0 at (0.5, 0.5), and 1/2 only for the whole square. At ``min_tpr=0, max_fpr=1`` the value is AUROC; at ``min_tpr=0``
    it is the partial AUC over ``max_fpr``, without McClish's correction. Scores are ranked as they come: logits and
    probabilities give the same value, unless a squashing function has rounded distinct scores to one.

    Args:
        preds: scores, tensor of shape ``(N,)`` or ``(N, 1)``, any float or integer dtype and any range; larger means
            more positive.
        target: integer or bool tensor of the same shape: 1 for positives, 0 for negatives, ``ignore_index`` for rows to
            leave out.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1]; ``None`` is 1, as in torchmetrics.
        thresholds: ``None`` computes the exact area, O(N) memory and O(N log N) time at worst. A list, 1-D tensor or
            1-D array of thresholds bins the scores and runs straight lines through the ROC points at these thresholds,
            exact where every score is one of them. An int T stands for T thresholds evenly spaced on [0, 1], and needs
            scores in [0, 1]: nothing is squashed to fit.
        ignore_index: label of rows that count for neither class.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if either class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ or hold several scores per example, ``target`` has
            other labels, ``preds`` holds nan, or ``thresholds`` is an int and a score lies outside [0, 1].

    Example:
        >>> import torch
        >>> preds = torch.tensor([0.9, 0.8, 0.7, 0.3, 0.6, 0.5, 0.4, 0.1])
        >>> target = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
        >>> binary_two_way_partial_auroc(preds, target, min_tpr=0.5, max_fpr=0.5)
        tensor(0.5000, dtype=torch.float64)
        >>> binary_two_way_partial_auroc(preds, target, min_tpr=0.0, max_fpr=1.0)
        tensor(0.8125, dtype=torch.float64)
    """
    max_fpr = 1.0 if max_fpr is None else max_fpr
    if validate_args:
        min_tpr, max_fpr = _tpauc_arg_validation(min_tpr, max_fpr, thresholds, ignore_index)
    unit_range = isinstance(thresholds, Integral)
    check_preds_and_target(preds, target, ignore_index, unit_range=unit_range, values=validate_args)
    if thresholds is None:
        return exact_tpauc(preds, target, min_tpr, max_fpr)
    preds, target = preds.reshape(-1), target.reshape(-1)
    counts = confusion_counts(preds, target, adjust_thresholds(thresholds))
    num_nan = 0 if validate_args else int(count_nan(preds, target))
    return binned_tpauc(counts, num_nan, min_tpr, max_fpr)


def _tpauc_arg_validation(min_tpr: float, max_fpr: float, thresholds: Any, ignore_index: Any) -> tuple[float, float]:
    if thresholds is not None:
        check_thresholds(thresholds)
    check_ignore_index(ignore_index)
    return check_rectangle(min_tpr, max_fpr)


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
        preds, target, num_labels, ignore_index, unit_range=isinstance(thresholds, Integral), values=validate_args
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
        preds, target, num_classes, ignore_index, unit_range=isinstance(thresholds, Integral), values=validate_args
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
