"""Errors of inputs and of settings, worded in one place."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations, product
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_tpauc.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., object])


def eager(function: F) -> F:
    """Keep ``function`` out of compiled graphs: compiled code interrupts its graph and calls the function as it is.

    Two kinds of functions need this. No graph can hold one that sorts with NumPy or branches on values, as metrics do.
    A function that changes state in place would make gradients silently wrong: a compiled backward pass reads tensors
    when it runs, after they have changed.
    """
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def as_tensor(values: Any, name: str, device: torch.device | None = None) -> Tensor:
    """Numbers or bools as a tensor: one as it is, a NumPy array, a list, or a column of pandas or polars converted.

    What is missing in a nullable column becomes nan. An :class:`ArgumentError` names what holds no numbers.
    """
    if isinstance(values, Tensor):
        return values
    try:
        if values is None:
            raise TypeError
        if isinstance(values, np.ma.MaskedArray):  # what is masked is missing
            values = np.ma.filled(values.astype(float), math.nan)
        array = np.asarray(values)
        if array.dtype == object:  # a nullable column, or a list with None
            array = (
                values.to_numpy(dtype=float, na_value=math.nan) if hasattr(values, "to_numpy") else array.astype(float)
            )
        if array.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise ArgumentError(
            f"Expected `{name}` to hold numbers, as a tensor, an array, a list or a column, but got a "
            f"{type(values).__name__}. Labels that are text become numbers by, for instance, `y == 'dead'`."
        ) from None
    native = array.astype(array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.float64)
    return torch.from_numpy(native).to(device)


def in_other_order(index: Any, other: Any) -> bool:
    """Whether two indices of pandas, equally long, have names in common at other positions.

    One that just counts its rows, beside names that are others in part, says nothing of them.
    """
    if not hasattr(index, "isin") or not hasattr(other, "isin") or len(index) != len(other) or index.equals(other):
        return False
    if index.nlevels != other.nlevels:
        return False
    shared, back = index.isin(other), other.isin(index)
    return bool(shared.all() and back.all()) or bool(shared.any() and not just_counts(index) and not just_counts(other))


def just_counts(index: Any) -> bool:
    """Whether an index of pandas is 0, 1, 2 and so on."""
    return index.nlevels == 1 and np.array_equal(index.to_numpy(), np.arange(len(index)))


def check_one_order(**columns: Any) -> None:
    """Raise :class:`ArgumentError` if two that are of pandas have one index, or columns, in two orders."""
    for axis, ((name, one), (other, two)) in product(("index", "columns"), combinations(columns.items(), 2)):
        if in_other_order(getattr(one, axis, None), getattr(two, axis, None)):
            raise ArgumentError(
                f"`{name}` and `{other}` have the same {axis} at different positions, and they are paired by position: "
                f"pass `{other}.reindex({axis}={name}.{axis})` if names decide, and `.to_numpy()` of both if not."
            )


def as_pair(preds: Any, target: Any, device: torch.device | None = None, **beside: Any) -> tuple[Tensor, Tensor]:
    """Scores and labels by :func:`as_tensor`, in one order, which what is given beside them has as well."""
    check_one_order(preds=preds, target=target, **beside)
    scores = as_tensor(preds, "preds", device)
    return scores, as_tensor(target, "target", scores.device)


def as_weights(sample_weight: Any, target: Tensor) -> Tensor | None:
    """Weights of examples as float64 of the shape of ``target``, on the CPU; ``None`` if there are none."""
    if sample_weight is None:
        return None
    weights, labels, wrong = as_tensor(sample_weight, "sample_weight").detach().cpu().double(), target.cpu(), ""
    if weights.numel() != labels.numel():
        wrong = f"one number for each of the {labels.numel()} examples, but got shape {tuple(weights.shape)}"
    elif not bool((weights.isfinite() & (weights >= 0)).all()):
        wrong = f"finite and at least 0, but found {weights[~(weights >= 0) | weights.isinf()][0].item()}"
    weights = weights.reshape(labels.shape) if not wrong else weights
    if not wrong and any(bool((labels == k).any()) and not bool(weights[labels == k].any()) for k in (0, 1)):
        wrong = "above 0 for an example of each class, but all of one class weigh 0"
    if wrong:
        raise ArgumentError(f"Expected `sample_weight` to be {wrong}.")
    return weights


def is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which entries are nan, None, or pandas' NA, which has no truth value, or NaT."""
    if values.dtype.kind != "O":
        return values != values
    missing = [v is None or type(v).__name__ == "NAType" or bool(v != v) for v in values.ravel().tolist()]
    return np.array(missing, dtype=bool).reshape(values.shape)


def as_groups(groups: Any, size: int | None = None) -> Tensor:
    """The number of each example's group, 0, 1, ... in the order of their names, int64 ``(n,)`` on the CPU."""
    found = (groups.numpy(force=True) if isinstance(groups, Tensor) else np.asarray(groups)).reshape(-1)
    if size is not None and found.size != size:
        raise ArgumentError(
            f"Expected `groups` to name the group of each of the {size} examples, but got {found.size}."
        )
    if (missing := is_missing(found)).any():
        raise ArgumentError(
            f"`groups` has no value for row {missing.argmax()}, and for {missing.sum()} of {len(found)} rows in all: "
            "give each of them a group of its own, or drop them."
        )
    found = found.astype(str) if found.dtype.kind == "O" else found
    return torch.from_numpy(np.unique(found, return_inverse=True)[1])


def rankable(scores: Tensor) -> Tensor:
    """Detached scores in a dtype that every sort knows, float32, float64 or int64, never narrower than they came."""
    scores = scores.detach()
    if scores.is_floating_point():
        return scores if scores.dtype in (torch.float32, torch.float64) else scores.to(torch.float32)
    return scores.to(torch.int64)


def check_rectangle(min_tpr: float, max_fpr: float) -> tuple[float, float]:
    """Both as Python floats (NumPy's round what they are multiplied with) in [0, 1) and (0, 1], or an error."""
    low = require_range("min_tpr", min_tpr, 0.0, 1.0, open_high=True)
    return low, require_range("max_fpr", max_fpr, 0.0, 1.0, open_low=True)


def as_float_tensor(values: Any, name: str) -> Tensor:
    """:func:`as_tensor`, in which whole numbers that are no tensor become float64."""
    tensor = as_tensor(values, name)
    return tensor if isinstance(values, Tensor) or tensor.is_floating_point() else tensor.double()


def check_scores(scores: Any, name: str, *, allow_empty: bool = False) -> Tensor:
    """A 1-D float tensor, of at least one entry, of what came as a tensor, an array or a list."""
    found = as_float_tensor(scores, name)
    msg = ""
    if not found.is_floating_point():
        msg = f"to be a float tensor, but got a tensor of {found.dtype}. Convert it with `.float()`."
    elif found.ndim != 1:
        msg = f"to have one dimension, but got shape {tuple(found.shape)}. Drop a trailing one with `.squeeze(-1)`."
    elif found.shape[0] == 0 and not allow_empty:
        msg = "to hold at least one score, but got shape (0,): no pair can be formed."
    if msg:
        raise ArgumentError(f"Expected `{name}` {msg}")
    return found


def check_finite(scores: Tensor, name: str) -> None:
    """Raise :class:`ArgumentError` if a score is nan or infinite; looks on the CPU only, where nobody has to wait."""
    broken = int((~torch.isfinite(scores)).sum()) if scores.device.type == "cpu" else 0
    if broken:
        raise ArgumentError(
            f"Expected `{name}` to be finite, but {broken} of {scores.numel()} are nan or infinite. Where a model gave "
            "them, its inputs or its weights are not finite: look at the inputs, or lower the learning rate."
        )


def as_index(index: Any, device: torch.device | None = None) -> Tensor:
    """Integers of any kind as int64, on ``device`` if they are no tensor; an :class:`ArgumentError` for all others."""
    positions = as_tensor(index, "index", device)
    if positions.dtype == torch.bool or positions.is_floating_point() or positions.is_complex():
        raise ArgumentError(
            f"Expected `index` to hold integers, but got {positions.dtype}. Pass positions, as of `mask.nonzero()`."
        )
    return positions.long()


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ArgumentError(f"Expected `{name}` to be one of {', '.join(map(repr, choices))}, but got {value!r}.")


def check_count(value: Any, name: str, least: int) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is a whole number of at least ``least``."""
    if not is_whole(value) or int(value) < least:
        raise ArgumentError(f"Expected `{name}` to be a whole number of at least {least}, but got {value!r}.")


def is_real(value: Any) -> bool:
    """Whether ``value`` is a finite number, NumPy's included, that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, NumPy's included, that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def require_range(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """``value`` as a Python float; an :class:`ArgumentError` unless it is a finite number between the two."""
    above = is_real(value) and (low < value if open_low else low <= value)
    if not above or not (value < high if open_high else value <= high):
        left, right = "(" if open_low else "[", ")" if open_high or math.isinf(high) else "]"
        raise ArgumentError(f"Expected `{name}` to be a number in {left}{low:g}, {high:g}{right}, but got {value!r}.")
    return float(value)


def require_positive(name: str, value: Any, meaning_of_infinity: str) -> float:
    """``value`` as a Python float; an :class:`ArgumentError` unless it is above 0. Infinity has a meaning."""
    if not (is_real(value) or value == math.inf) or not value > 0:
        raise ArgumentError(f"Expected `{name}` to be above 0 (infinity: {meaning_of_infinity}), but got {value!r}.")
    return float(value)


def check_ignore_index(ignore_index: Any, *, of_classes: bool = False) -> None:
    """Raise :class:`ArgumentError` unless ``ignore_index`` is ``None`` or an integer; of two classes another one."""
    if ignore_index is not None and (not is_whole(ignore_index) or (ignore_index in (0, 1) and not of_classes)):
        others = "" if of_classes else " other than 0 and 1, which label the classes"
        raise ArgumentError(f"Expected `ignore_index` to be `None` or an integer{others}, but got {ignore_index!r}.")


def checked_pair(
    preds: Any,
    target: Any,
    ignore_index: int | None = None,
    *,
    num_labels: int | None = None,
    num_classes: int | None = None,
    unit_range: bool = False,
    values: bool = True,
) -> tuple[Tensor, Tensor]:
    """Scores and labels as tensors that can be ranked: see :func:`as_tensor` for what may come in.

    Scores are ``(N,)`` or ``(N, 1)``, labels 1, 0 or ``ignore_index`` in the same shape; of K labels both ``(N, K)``,
    labels also nan for what was not measured; of C classes ``(N, C)``, and ``(N,)`` of 0 .. C - 1 or ``ignore_index``.
    Types and shapes are always checked, dtypes, labels and nan with ``values``, [0, 1] with ``unit_range``.
    """
    preds, target = as_pair(preds, target)
    remedy = ""
    if num_classes is not None and (preds.shape[1:] != (num_classes,) or target.shape != preds.shape[:1]):
        wanted = f"`preds` of shape (N, num_classes), here (N, {num_classes}), and `target` of shape (N,)"
        remedy = "Each class has a column of scores."
    elif num_labels is not None and (preds.shape[1:] != (num_labels,) or target.shape != preds.shape):
        wanted = f"`preds` and `target` to have shape (N, num_labels), here (N, {num_labels})"
        remedy = "Other dimensions hold examples too once they are moved to the front and flattened."
    elif num_classes is None and preds.shape != target.shape:
        wanted, remedy = (
            "`preds` and `target` to have the same shape",
            "Drop a trailing one with `.squeeze(-1)`, or see `task`.",
        )
    elif num_classes is None and num_labels is None and math.prod(preds.shape[1:]) != 1:
        wanted = "one score per example, shape (N,) or (N, 1)"
        remedy = "Columns have a value each: see `task` and `num_labels`, or pass `.flatten()` of both to pool them."
    if remedy:
        raise ArgumentError(f"Expected {wanted}, but got {tuple(preds.shape)} and {tuple(target.shape)}. {remedy}")
    if values:
        counted = _check_labels(target, ignore_index, num_classes, may_be_missing=num_labels is not None)
        _check_values(preds, counted if num_classes is None else counted[:, None].expand_as(preds), unit_range)
    return preds, target


def _check_labels(target: Tensor, ignore_index: int | None, num_classes: int | None, *, may_be_missing: bool) -> Tensor:
    """Which entries belong to a class; the others have to be named by ``ignore_index``, or be nan where they may."""
    counted = (target == 1) | (target == 0)
    if num_classes is not None:
        counted = (target >= 0) & (target < num_classes) & (target == target.long())
    allowed = counted if ignore_index is None else counted | (target == ignore_index)
    if may_be_missing and target.is_floating_point():
        allowed = allowed | target.isnan()
    if not bool(allowed.all()):
        found = sorted(set(target[~allowed].tolist()))[:5]
        classes = "0 and 1" if num_classes is None else f"the classes 0 .. {num_classes - 1}"
        also = "" if ignore_index is None else f", and ignore_index = {ignore_index},"
        raise ArgumentError(
            f"Expected `target` to hold only {classes}{also} but found {found}. Name other rows by `ignore_index`."
        )
    return counted if num_classes is None or ignore_index is None else counted & (target != ignore_index)


def _check_values(preds: Tensor, counted: Tensor, unit_range: bool) -> None:
    scores = rankable(preds)
    if scores.numel() and bool(scores.amax().isnan()):  # as it is if any score is
        scores = scores[counted]
        if num_nan := int(scores.isnan().sum()):
            raise ArgumentError(
                f"Expected `preds` to hold numbers, but {num_nan} of {scores.numel()} scores are nan, which have no "
                "rank. Where a model gave them, its inputs hold nan, such as a table's empty cells, or it has diverged."
            )
    if unit_range and scores.numel() and (scores.amin() < 0 or scores.amax() > 1):
        raise ArgumentError(
            "Expected `preds` in [0, 1], over which an integer `thresholds` spreads the bins, but got scores "
            f"from {scores.amin():.6g} to {scores.amax():.6g}. Pass the thresholds themselves, or apply a sigmoid."
        )
