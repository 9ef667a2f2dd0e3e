"""Input errors of the metrics, worded in one place."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_whole
from lightning_tpauc.functional.order import rankable


def check_thresholds(thresholds: Any) -> None:
    """Raise :class:`ArgumentError` unless ``thresholds`` is an int above 1, or holds numbers in one dimension."""
    if is_whole(thresholds):
        if thresholds < 2:
            msg = f"Expected `thresholds` to be at least 2 if it is an integer, but got {thresholds}."
            raise ArgumentError(msg)
        return
    if not isinstance(thresholds, (list, tuple, Tensor, np.ndarray)):
        msg = (
            f"Expected `thresholds` to be `None`, an integer, a list, or a 1-D tensor or array, but got {thresholds!r}."
        )
        raise ArgumentError(msg)
    if not _numbers_in_one_dimension(thresholds):
        msg = (
            f"Expected `thresholds` to hold numbers in one dimension, at least one and no nan, but got {thresholds!r}."
        )
        raise ArgumentError(msg)


def _numbers_in_one_dimension(values: Any) -> bool:
    """Whether ``values`` can be sorted; infinite ones can."""
    if isinstance(values, Tensor):
        real = values.dtype != torch.bool and not values.is_complex() and values.device.type != "meta"
        return real and values.ndim == 1 and len(values) > 0 and not bool(rankable(values).isnan().any())
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in "fiu" and len(values) > 0 and not bool(np.isnan(values).any())
    real = all(isinstance(value, Real) and not isinstance(value, bool) for value in values)
    return real and len(values) > 0 and not any(math.isnan(value) for value in values)


def check_ignore_index(ignore_index: Any) -> None:
    """Raise :class:`ArgumentError` unless ``ignore_index`` is ``None`` or an integer other than 0 and 1."""
    if ignore_index is not None and (not is_whole(ignore_index) or ignore_index in (0, 1)):
        msg = (
            "Expected `ignore_index` to be `None` or an integer other than 0 and 1, which label the classes, "
            f"but got {ignore_index!r}."
        )
        raise ArgumentError(msg)


def check_preds_and_target(
    preds: Any, target: Any, ignore_index: int | None, *, unit_range: bool = False, values: bool = True
) -> None:
    """Raise :class:`ArgumentError` unless every row can be ranked and belongs to a class, or is to be left out.

    Args:
        preds: what came as scores: a real tensor, one score per example, without nan in rows that count.
        target: what came as labels: an integer or bool tensor of the same shape.
        ignore_index: label, other than 0 and 1, that ``target`` may hold.
        unit_range: whether scores have to lie in [0, 1].
        values: whether to look at dtypes and values, beside types and shapes.
    """
    _check_tensors(preds, target)
    if preds.shape != target.shape:
        msg = (
            f"Expected `preds` and `target` to have the same shape, but got {tuple(preds.shape)} and "
            f"{tuple(target.shape)}. Drop a trailing dimension with `.squeeze(-1)`."
        )
        raise ArgumentError(msg)
    if any(size != 1 for size in preds.shape[1:]):
        msg = (
            f"Expected `preds` to hold one score per example, shape (N,) or (N, 1), but got {tuple(preds.shape)}. "
            "Columns have a value each: name `task='multilabel'` and `num_labels`, for other metrics torchmetrics' "
            "`MultioutputWrapper`. If every entry is an example, pass `.flatten()` of both."
        )
        raise ArgumentError(msg)
    if values:
        _check_dtypes(preds, target)
        _check_values(preds, _check_labels(target, ignore_index), unit_range)


def check_multilabel(
    preds: Any, target: Any, num_labels: int, ignore_index: int | None, *, unit_range: bool = False, values: bool = True
) -> None:
    """:func:`check_preds_and_target` of a column per label, both ``(N, num_labels)``; float targets may hold nan."""
    _check_tensors(preds, target)
    if preds.ndim != 2 or preds.shape[1] != num_labels or preds.shape != target.shape:
        msg = (
            f"Expected `preds` and `target` to have shape (N, num_labels), here (N, {num_labels}), but got "
            f"{tuple(preds.shape)} and {tuple(target.shape)}. Other dimensions hold examples too once they are moved "
            "to the front and flattened."
        )
        raise ArgumentError(msg)
    if values:
        _check_dtypes(preds, target, float_target=True)
        _check_values(preds, _check_labels(target, ignore_index), unit_range)


def check_multiclass(
    preds: Any,
    target: Any,
    num_classes: int,
    ignore_index: int | None,
    *,
    unit_range: bool = False,
    values: bool = True,
) -> None:
    """:func:`check_preds_and_target` of scores ``(N, num_classes)`` and classes ``(N,)``, counted from 0."""
    _check_tensors(preds, target)
    if preds.ndim != 2 or preds.shape[1] != num_classes or target.shape != preds.shape[:1]:
        msg = (
            f"Expected `preds` of shape (N, num_classes), here (N, {num_classes}), and `target` of shape (N,), but got "
            f"{tuple(preds.shape)} and {tuple(target.shape)}."
        )
        raise ArgumentError(msg)
    if values:
        _check_dtypes(preds, target)
        counted = (target >= 0) & (target < num_classes)
        left_out = torch.zeros_like(counted) if ignore_index is None else target == ignore_index
        if not bool((counted | left_out).all()):
            found = sorted(set(target[~(counted | left_out)].tolist()))[:5]
            ignored = "" if ignore_index is None else f" and ignore_index = {ignore_index}"
            msg = f"Expected `target` to hold only the classes 0 .. {num_classes - 1}{ignored}, but found {found}."
            raise ArgumentError(msg)
        _check_values(preds, (counted & ~left_out)[:, None].expand_as(preds), unit_range)


def _check_tensors(preds: Any, target: Any) -> None:
    for name, value in {"preds": preds, "target": target}.items():
        if not isinstance(value, Tensor):
            msg = (
                f"Expected `{name}` to be a tensor, but got {type(value).__name__}. Convert it with `torch.as_tensor`."
            )
            raise ArgumentError(msg)


def _check_dtypes(preds: Tensor, target: Tensor, *, float_target: bool = False) -> None:
    if preds.is_complex():
        msg = f"Expected `preds` to hold real scores, but got a tensor of {preds.dtype}."
        raise ArgumentError(msg)
    if target.is_complex() or (target.is_floating_point() and not float_target):
        msg = f"Expected `target` to be an integer or bool tensor, but got {target.dtype}. Convert it with `.long()`."
        raise ArgumentError(msg)


def _check_labels(target: Tensor, ignore_index: int | None) -> Tensor:
    """Which entries belong to a class; the others have to be named by ``ignore_index``, or be nan."""
    allowed = counted = (target == 1) | (target == 0)
    if ignore_index is not None:
        allowed = allowed | (target == ignore_index)
    if target.is_floating_point():
        allowed = allowed | target.isnan()
    if not bool(allowed.all()):
        found = sorted(set(target[~allowed].tolist()))[:5]
        labels = "0 and 1" if ignore_index is None else f"0, 1 and ignore_index = {ignore_index}"
        msg = f"Expected `target` to hold only {labels}, but found {found}. Name unlabelled rows by `ignore_index`."
        raise ArgumentError(msg)
    return counted


def _check_values(preds: Tensor, counted: Tensor, unit_range: bool) -> None:
    if preds.numel() == 0 or (not preds.is_floating_point() and not unit_range):
        return  # integers are never nan
    scores = rankable(preds)
    lowest, highest = scores.aminmax()  # both are nan if any score is
    if bool(lowest.isnan()):
        kept = scores[counted]
        num_nan = int(kept.isnan().sum())
        if num_nan:
            msg = (
                f"Expected `preds` to hold numbers, but {num_nan} of {kept.numel()} scores are nan, which have no "
                "rank. Where a model gave them, its inputs hold nan, such as a table's empty cells, or it has diverged."
            )
            raise ArgumentError(msg)
        if kept.numel() == 0:
            return
        lowest, highest = kept.aminmax()
    if unit_range:
        _check_unit_range(float(lowest), float(highest))


def _check_unit_range(lowest: float, highest: float) -> None:
    if lowest < 0 or highest > 1:
        msg = (
            f"Expected `preds` in [0, 1], over which an integer `thresholds` spreads the bins, but got scores from "
            f"{lowest:.6g} to {highest:.6g}. Pass the thresholds themselves as a list or tensor, or apply a sigmoid."
        )
        raise ArgumentError(msg)
