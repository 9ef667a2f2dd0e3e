"""Splitting, selecting and counting scores, and how many of them the rectangle covers.

On the CPU sorting and selecting go through numpy, which shares the tensor's memory and whose SIMD kernels sort ten
million float32 scores some fifteen times and select from them ten times as fast as torch 2.14's. Other devices use
torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_real, is_whole, rankable


def has_nan(scores: Tensor) -> bool:
    """Whether a score is nan, in one pass without a mask: the largest is nan then."""
    return scores.is_floating_point() and scores.numel() > 0 and bool(scores.amax().isnan())


def split_classes(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the rows labelled 1 and of those labelled 0; rows with any other label count for neither.

    Args:
        scores: tensor of any shape.
        labels: tensor of the same shape.

    Returns:
        Positive scores ``(n_pos,)`` and negative scores ``(n_neg,)``, as :func:`rankable` gives them.
    """
    scores = rankable(scores)
    if scores.device.type == "mps":  # Apple's GPUs know no float64, which the areas are computed in
        scores, labels = scores.cpu(), labels.cpu()
    scores, labels = scores.reshape(-1), labels.detach().reshape(-1)
    if scores.device.type == "cpu":
        values, kinds = scores.numpy(), labels.numpy()
        return torch.from_numpy(values[kinds == 1]), torch.from_numpy(values[kinds == 0])
    return scores[labels == 1], scores[labels == 0]


def sorted_ranks(values: Tensor, start: int, stop: int) -> Tensor:
    """The values of rank ``start`` to ``stop - 1``, counted from 0 at the smallest, in ascending order.

    Example:
        >>> sorted_ranks(torch.tensor([5, 1, 4, 2]), 1, 3)
        tensor([2, 4])
    """
    if values.device.type != "cpu":
        return values.sort().values[start:stop]
    part = values.numpy().copy()
    # One rank at a time: numpy's kernel for several is five times as slow as the one for one.
    if start > 0:
        part.partition(start)
        part = part[start:]
    if stop - start < part.shape[0]:
        part.partition(stop - start - 1)
        part = part[: stop - start]
    part.sort()
    return torch.from_numpy(part)


def count_above(values: Tensor, threshold: float) -> tuple[int, int]:
    """How many of the ``values`` (n,) lie above ``threshold``, one of that dtype's numbers, and how many reach it."""
    if values.device.type == "cpu":
        array = values.numpy()
        return int(np.count_nonzero(array > threshold)), int(np.count_nonzero(array >= threshold))
    return int(torch.count_nonzero(values > threshold)), int(torch.count_nonzero(values >= threshold))


def between(values: Tensor, low: float, high: float) -> Tensor:
    """Those of the ascending ``values`` (n,) with ``low`` < value < ``high``; both are numbers of that dtype."""
    bounds = torch.tensor([low, high], dtype=values.dtype, device=values.device)
    first = int(torch.searchsorted(values, bounds[:1], right=True))
    return values[first : int(torch.searchsorted(values, bounds[1:]))]


def count_pairs(pos_scores: Tensor, neg_scores: Tensor) -> int:
    """Twice the number of pairs whose negative scores higher, plus the number of tied pairs.

    Args:
        pos_scores: tensor ``(p,)`` in ascending order.
        neg_scores: tensor ``(n,)`` in ascending order, of the same dtype.

    Returns:
        An exact integer in 0 .. 2 p n.

    Example:
        >>> count_pairs(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 3.0, 4.0]))
        9
    """
    # Looking the smaller class up in the larger takes the fewest searches; sorted look-ups stay in the cache.
    flipped = neg_scores.shape[0] < pos_scores.shape[0]
    keys, among = (neg_scores, pos_scores) if flipped else (pos_scores, neg_scores)
    below = int(torch.searchsorted(among, keys).sum()) + int(torch.searchsorted(among, keys, right=True).sum())
    return below if flipped else 2 * keys.shape[0] * among.shape[0] - below


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
