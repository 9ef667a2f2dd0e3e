"""Range checks of the settings of the training methods, worded in one place."""

from __future__ import annotations

import math
from typing import Any

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_real

__all__ = ("require_positive", "require_range")


def require_range(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, open_high: bool = False
) -> float:
    """``value`` as a Python float, whatever kind of number came in.

    Args:
        name: name of the argument, for the message.
        value: what came in.
        low: smallest number.
        high: largest number.
        open_low: whether ``low`` itself is refused.
        open_high: whether ``high`` itself is refused.

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
