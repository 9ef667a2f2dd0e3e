r"""How many examples the rectangle :math:`[0, \theta_1] \times [1 - \theta_0, 1]` of the ROC square covers."""

from __future__ import annotations

import math
from typing import Any

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_real, is_whole

__all__ = ("ceil_count", "floor_count")


def floor_count(theta: float, n: int) -> int:
    r"""The largest integer not above :math:`\theta n`, as eq. ``tpauc-o`` counts examples.

    Args:
        theta: fraction in (0, 1].
        n: number of examples, at least 0.

    Returns:
        An integer in 0 .. n. Products that miss an integer by rounding count as that integer.

    Raises:
        ArgumentError: if ``theta`` or ``n`` is out of range.

    Example:
        >>> floor_count(1 - 0.9, 10), math.floor((1 - 0.9) * 10)
        (1, 0)
    """
    return math.floor(_product(theta, n) + _tolerance(n))


def ceil_count(theta: float, n: int) -> int:
    r"""The smallest integer not below :math:`\theta n`, which ranks the quantiles of the CVaR form.

    Args:
        theta: fraction in (0, 1].
        n: number of examples, at least 0.

    Returns:
        An integer in 0 .. n, at least 1 if n is, unless :math:`\theta n` is 0 up to rounding.

    Raises:
        ArgumentError: if ``theta`` or ``n`` is out of range.

    Example:
        >>> ceil_count(0.1 * 3, 10), math.ceil(0.1 * 3 * 10)
        (3, 4)
    """
    return math.ceil(_product(theta, n) - _tolerance(n))


def _tolerance(n: int) -> float:
    # theta = 1 - min_tpr is off by up to an ulp of 1, which n multiplies: past 4.5 million that exceeds 1e-9.
    return max(1e-9, 2.0**-52 * n)


def _product(theta: float, n: Any) -> float:
    if not is_real(theta) or not 0.0 < theta <= 1.0:
        msg = f"Expected `theta` to be a number in (0, 1], but got {theta!r}."
        raise ArgumentError(msg)
    if not is_whole(n) or n < 0:
        msg = f"Expected `n` to be an integer of at least 0, but got {n!r}."
        raise ArgumentError(msg)
    return float(theta) * int(n)
