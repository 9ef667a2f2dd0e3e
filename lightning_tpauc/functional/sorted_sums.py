"""Sums over the pairs above an edge, by sorting and prefix sums, for losses that are powers of score differences."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_tpauc.functional.surrogates import PowerForm

__all__ = ("one_sided_sums", "prefix_sums")


def one_sided_sums(
    pos: Tensor, neg: Tensor, down: Tensor, edge: Tensor, y: Tensor, power: PowerForm, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Sums of :math:`(m + h_j - h_i)^p`, of 1 and of the slope over the pairs with h_j above the edge of positive i.

    Args:
        pos: float64 tensor ``(S,)``, scores h_i, centred: squares of large scores cancel.
        neg: float64 tensor ``(B,)``, scores h_j, centred likewise.
        down: ``(B,)``, -h_j in ascending order. The pairs of every positive then come first, so that no sum has to be
            taken as the difference of two larger ones.
        edge: ``(S,)``; every pair above it has :math:`m + h_j - h_i > 0` unless the loss is two-sided.
        y: ``(S,)``, weights of the positives.
        power: m and p; the caller handles the second side.
        gradients: whether to compute the last sum.

    Returns:
        The sums over j of the power, of 1 and of the derivative :math:`p (m + h_j - h_i)^{p-1}`, each ``(S,)``, and the
        sum over i of y_i times that derivative, ``(B,)`` (zeros without ``gradients``).

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 2.0]).double()
        >>> sums = one_sided_sums(pos, neg, (-neg).sort().values, pos, torch.ones(2).double(), PowerForm(0.0, 1), True)
        >>> [x.tolist() for x in sums]
        [[2.5, 1.0], [2.0, 1.0], [2.0, 1.0], [1.0, 2.0]]
    """
    offset = power.margin - pos  # m + h_j - h_i = offset_i + h_j
    count = torch.searchsorted(down, -edge)
    number = count.to(pos.dtype)
    moments = prefix_sums(down[None] if power.degree == 1 else torch.stack([down, down.square()]))[:, count]
    linear = number * offset - moments[0]
    if power.degree == 1:
        total, slope = linear, number
    else:
        total, slope = offset * (linear - moments[0]) + moments[1], 2.0 * linear
    if not gradients:
        return total, number, slope, torch.zeros_like(neg)
    # A negative counts for the positives whose edge lies below it: the first ones in ascending order of edges.
    edge, order = edge.sort()
    weights = prefix_sums((y[None] if power.degree == 1 else torch.stack([y, y * offset]))[:, order])
    sums = weights[:, torch.searchsorted(edge, neg)]
    neg_slope = sums[0] if power.degree == 1 else 2.0 * (sums[1] + neg * sums[0])
    return total, number, slope, neg_slope


def prefix_sums(rows: Tensor) -> Tensor:
    """Running sums along each row, starting from 0.

    Args:
        rows: float tensor ``(R, n)``.

    Returns:
        Tensor ``(R, n + 1)`` whose column k holds the sums of the first k entries.

    Example:
        >>> prefix_sums(torch.tensor([[1.0, 2.0, 4.0]]))
        tensor([[0., 1., 3., 7.]])
    """
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():
        # Older releases of torch refuse cumsum there, because its order of summation varied.
        return torch.nn.functional.pad(_scan(rows), (1, 0))
    return torch.nn.functional.pad(rows.cumsum(1), (1, 0))


def _scan(rows: Tensor) -> Tensor:
    """Running sums by doubling: after the k-th pass each entry holds the sum of up to 2^k entries ending there."""
    shift = 1
    while shift < rows.shape[1]:
        rows = rows + torch.nn.functional.pad(rows[:, :-shift], (shift, 0))
        shift *= 2
    return rows
