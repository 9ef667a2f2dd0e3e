"""Errors of inputs and of settings, worded in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., object])


def eager(function: F) -> F:
    """Keep ``function`` out of compiled graphs: compiled code interrupts its graph and calls the function as it is.

    Two kinds of functions need this. No graph can hold one that sorts with NumPy or branches on values, as metrics do.
    A function that changes state in place would make gradients silently wrong: a compiled backward pass reads tensors
    when it runs, after they have changed.
    """
    kept: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return kept


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise dtype of a device: float64, which Apple's GPUs do not have.

    Example:
        >>> widest_float(torch.device("cpu")), widest_float(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64


def check_rectangle(min_tpr: float, max_fpr: float) -> tuple[float, float]:
    """Both as Python floats; NumPy's would round what they are multiplied with, and no checkpoint may hold them.

    Raises:
        ArgumentError: unless 0 <= ``min_tpr`` < 1 and 0 < ``max_fpr`` <= 1.
    """
    if not is_real(min_tpr) or not 0.0 <= min_tpr < 1.0:
        msg = f"Expected `min_tpr` to be a number in [0, 1), but got {min_tpr!r}."
        raise ArgumentError(msg)
    if not is_real(max_fpr) or not 0.0 < max_fpr <= 1.0:
        msg = f"Expected `max_fpr` to be a number in (0, 1], but got {max_fpr!r}."
        raise ArgumentError(msg)
    return float(min_tpr), float(max_fpr)


def check_scores(scores: Any, name: str, *, allow_empty: bool = False) -> None:
    """Raise :class:`ArgumentError` unless ``scores`` is a 1-D float tensor with at least one entry."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = f"a tensor of {scores.dtype}" if isinstance(scores, Tensor) else f"{type(scores).__name__}"
        msg = f"Expected `{name}` to be a float tensor, but got {kind}. Convert it with `.float()`."
        raise ArgumentError(msg)
    if scores.ndim != 1:
        msg = (
            f"Expected `{name}` to have one dimension, but got shape {tuple(scores.shape)}. "
            "Drop a trailing one with `.squeeze(-1)`."
        )
        raise ArgumentError(msg)
    if not allow_empty and scores.shape[0] == 0:
        msg = f"Expected `{name}` to hold at least one score, but got shape (0,): no pair can be formed."
        raise ArgumentError(msg)


def check_finite(scores: Tensor, name: str) -> None:
    """Raise :class:`ArgumentError` if a score is nan or infinite; looks on the CPU only, where nobody has to wait."""
    broken = int((~torch.isfinite(scores)).sum()) if scores.device.type == "cpu" else 0
    if broken:
        msg = (
            f"Expected `{name}` to be finite, but {broken} of {scores.numel()} are nan or infinite. Where a model gave "
            "them, its inputs or its weights are not finite: look at the inputs, or lower the learning rate."
        )
        raise ArgumentError(msg)


def as_index(index: Any, device: torch.device | None = None) -> Tensor:
    """``index`` as int64, whatever kind of integers came in.

    Args:
        index: integers, in a tensor, an array or a list.
        device: where it is wanted if it is no tensor.

    Raises:
        ArgumentError: if it holds no integers.

    Example:
        >>> as_index([2, 0])
        tensor([2, 0])
    """
    try:
        found = index if isinstance(index, Tensor) else torch.as_tensor(index, device=device)
    except (RuntimeError, TypeError, ValueError):
        found = None
    if found is None or found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        kind = type(index).__name__ if found is None else found.dtype
        msg = f"Expected `index` to hold integers, but got {kind}. Pass the positions, such as `mask.nonzero()`."
        raise ArgumentError(msg)
    positions: Tensor = found.long()
    return positions


def check_range(index: Tensor, count: int) -> None:
    """Raise :class:`ArgumentError` unless all of ``index`` is in ``0 .. count - 1``.

    Only on the CPU: on a GPU, looking would wait for the device, which refuses such an index by itself.
    """
    if index.device.type != "cpu":
        return
    try:
        torch.zeros(()).expand(count).index_select(0, index)  # no value is read, so that a training step waits for none
    except IndexError as error:
        low, high = (int(value) for value in index.aminmax())
        msg = (
            f"Expected `index` to be in 0 .. {count - 1}, since `setup(num_positives={count})` was called, but got "
            f"{low if low < 0 else high}. Count the training positives, and number them from 0."
        )
        raise ArgumentError(msg) from error


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is one of ``choices``."""
    if value not in choices:
        msg = f"Expected `{name}` to be one of {', '.join(map(repr, choices))}, but got {value!r}."
        raise ArgumentError(msg)


def check_count(value: Any, name: str, least: int) -> None:
    """Raise :class:`ArgumentError` unless ``value`` is a whole number of at least ``least``."""
    if not is_whole(value) or int(value) < least:
        msg = f"Expected `{name}` to be a whole number of at least {least}, but got {value!r}."
        raise ArgumentError(msg)


def check_per_positive(values: Any, name: str, pos_scores: Tensor) -> None:
    """Raise :class:`ArgumentError` unless ``values`` is a float tensor with one entry per positive score."""
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.shape != pos_scores.shape:
        got = f"{values.dtype} of shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        msg = (
            f"Expected `{name}` to be a float tensor with one entry per positive, shape {tuple(pos_scores.shape)}, "
            f"but got {got}."
        )
        raise ArgumentError(msg)


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype of ``tensors``, at least float32: sums over pairs lose too much in half precision."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def is_real(value: Any) -> bool:
    """Whether ``value`` is a finite number, NumPy's included, that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, NumPy's included, that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def require_range(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """``value`` as a Python float, whatever kind of number came in.

    Raises:
        ArgumentError: unless ``value`` is a finite number between ``low`` and ``high``.
    """
    above = is_real(value) and (low < value if open_low else low <= value)
    if not above or not (value < high if open_high else value <= high):
        left, right = "(" if open_low else "[", ")" if open_high or math.isinf(high) else "]"
        msg = f"Expected `{name}` to be a number in {left}{low:g}, {high:g}{right}, but got {value!r}."
        raise ArgumentError(msg)
    return float(value)


def require_positive(name: str, value: Any, meaning_of_infinity: str) -> float:
    """``value`` as a Python float, whatever kind of number came in; infinity is allowed and has a meaning.

    Raises:
        ArgumentError: unless ``value`` is a number above 0.
    """
    if not (is_real(value) or value == math.inf) or not value > 0:
        msg = f"Expected `{name}` to be above 0 (infinity: {meaning_of_infinity}), but got {value!r}."
        raise ArgumentError(msg)
    return float(value)
