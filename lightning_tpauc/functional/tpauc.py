r"""Two-way partial AUC: exact on raw scores, or binned in constant memory.

With :math:`\theta_0 = 1 -` ``min_tpr`` and :math:`\theta_1 =` ``max_fpr``, the metric is the area of the ROC polyline
inside the rectangle :math:`[0, \theta_1] \times [1 - \theta_0, 1]`, divided by :math:`\theta_0 \theta_1`. The polyline
has one vertex per distinct score, so tied scores form a slanted segment (a tied pair counts 1/2), and it is
interpolated at both borders, so :math:`\theta_0 n_+` and :math:`\theta_1 n_-` need not be whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.area import binned_tpauc, exact_tpauc
from lightning_tpauc.functional.binned import adjust_thresholds, confusion_counts, count_nan
from lightning_tpauc.functional.checks import check_choice, check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.per_label import (
    Average,
    Rates,
    multiclass_two_way_partial_auroc,
    multilabel_two_way_partial_auroc,
)
from lightning_tpauc.functional.validation import check_ignore_index, check_preds_and_target, check_thresholds

__all__ = ("binary_two_way_partial_auroc", "check_task", "two_way_partial_auroc")


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
