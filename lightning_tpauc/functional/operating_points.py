r"""Single points of the ROC polyline: where it crosses the rectangle's right and its lower border.

The polyline is the metric's: one vertex per distinct score, straight lines between them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_tpauc.functional.area import segment_at, unrankable
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.eager import eager
from lightning_tpauc.functional.order import sorted_ranks, split_classes
from lightning_tpauc.functional.rectangle import ceil_count, floor_count
from lightning_tpauc.functional.validation import check_ignore_index, check_preds_and_target

__all__ = ("exact_fpr", "exact_tpr", "fpr_at_min_tpr", "tpr_at_max_fpr")


@eager
def tpr_at_max_fpr(
    preds: Tensor,
    target: Tensor,
    max_fpr: float = 0.5,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    """The largest true positive rate that the ROC polyline reaches at a false positive rate of at most ``max_fpr``.

    Args:
        preds: scores, tensor ``(N,)`` or ``(N, 1)`` of any real dtype and any range; larger means more positive.
        target: integer or bool tensor of the same shape: 1, 0, or ``ignore_index``.
        max_fpr: upper bound of the false positive rate, in (0, 1].
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if a class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ, ``target`` has other labels or ``preds`` holds
            nan.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> tpr_at_max_fpr(preds, target, max_fpr=0.5)  # all positives come before the second negative
        tensor(1., dtype=torch.float64)
        >>> tpr_at_max_fpr(preds, target, max_fpr=0.25)
        tensor(0.3333, dtype=torch.float64)
    """
    if validate_args:
        _, max_fpr = check_rectangle(0.0, max_fpr)
        check_ignore_index(ignore_index)
    check_preds_and_target(preds, target, ignore_index, values=validate_args)
    return exact_tpr(preds, target, max_fpr)


@eager
def fpr_at_min_tpr(
    preds: Tensor,
    target: Tensor,
    min_tpr: float = 0.5,
    ignore_index: int | None = None,
    validate_args: bool = True,
) -> Tensor:
    """The smallest false positive rate at which the ROC polyline reaches a true positive rate of ``min_tpr``.

    Args:
        preds: scores, tensor ``(N,)`` or ``(N, 1)`` of any real dtype and any range; larger means more positive.
        target: integer or bool tensor of the same shape: 1, 0, or ``ignore_index``.
        min_tpr: lower bound of the true positive rate, in [0, 1).
        ignore_index: label of rows to leave out.
        validate_args: check arguments and values; costs a pass over the data.

    Returns:
        float64 tensor of shape ``()`` in [0, 1]; nan, with a :class:`TPAUCWarning`, if a class has no example or,
        unchecked, a score is nan.

    Raises:
        ArgumentError: if an argument is out of range, shapes differ, ``target`` has other labels or ``preds`` holds
            nan.

    Example:
        >>> preds, target = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5]), torch.tensor([1, 0, 1, 1, 0])
        >>> fpr_at_min_tpr(preds, target, min_tpr=0.5)  # the second positive comes after one of two negatives
        tensor(0.5000, dtype=torch.float64)
    """
    if validate_args:
        min_tpr, _ = check_rectangle(min_tpr, 1.0)
        check_ignore_index(ignore_index)
    check_preds_and_target(preds, target, ignore_index, values=validate_args)
    return exact_fpr(preds, target, min_tpr)


@eager
def exact_tpr(scores: Tensor, labels: Tensor, max_fpr: float) -> Tensor:
    """:func:`tpr_at_max_fpr` of scores with labels 1, 0 or anything else for rows to leave out."""
    pos, neg = split_classes(scores, labels)
    if unrankable(pos, neg, "TPR at `max_fpr`"):
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    # The bound lies on the segment of the next negative's score, or at its start, above what rises straight there.
    whole = floor_count(max_fpr, n_neg)
    tpr = 1.0
    if whole < n_neg:
        segment = segment_at(sorted_ranks(neg, n_neg - whole - 1, n_neg - whole)[0], pos, neg)
        share = (max(max_fpr * n_neg, whole) - segment.fp) / segment.num_neg
        tpr = (segment.tp + segment.num_pos * share) / n_pos
    return torch.tensor(tpr, dtype=torch.float64, device=pos.device)


@eager
def exact_fpr(scores: Tensor, labels: Tensor, min_tpr: float) -> Tensor:
    """:func:`fpr_at_min_tpr` of scores with labels 1, 0 or anything else for rows to leave out."""
    pos, neg = split_classes(scores, labels)
    if unrankable(pos, neg, "FPR at `min_tpr`"):
        return torch.tensor(math.nan, dtype=torch.float64, device=pos.device)
    n_pos, n_neg = pos.shape[0], neg.shape[0]
    # The bound lies on the segment of the last positive that it asks for, or at its end, before what runs right there.
    whole = ceil_count(min_tpr, n_pos) if min_tpr else 0
    fpr = 0.0
    if whole > 0:
        segment = segment_at(sorted_ranks(pos, n_pos - whole, n_pos - whole + 1)[0], pos, neg)
        share = (min(min_tpr * n_pos, whole) - segment.tp) / segment.num_pos
        fpr = (segment.fp + segment.num_neg * share) / n_neg
    return torch.tensor(fpr, dtype=torch.float64, device=pos.device)
