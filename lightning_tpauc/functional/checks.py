"""Input errors of the functional core, worded in one place."""

from __future__ import annotations

import math
from typing import Any

from lightning_tpauc.errors import ArgumentError

__all__ = ("check_rectangle", "is_real")


def check_rectangle(min_tpr: float, max_fpr: float) -> None:
    """Raise :class:`ArgumentError` unless 0 <= ``min_tpr`` < 1 and 0 < ``max_fpr`` <= 1."""
    if not is_real(min_tpr) or not 0.0 <= min_tpr < 1.0:
        msg = f"Expected `min_tpr` to be a number in [0, 1), but got {min_tpr!r}."
        raise ArgumentError(msg)
    if not is_real(max_fpr) or not 0.0 < max_fpr <= 1.0:
        msg = f"Expected `max_fpr` to be a number in (0, 1], but got {max_fpr!r}."
        raise ArgumentError(msg)


def is_real(value: Any) -> bool:
    """Whether ``value`` is a finite number that is not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
