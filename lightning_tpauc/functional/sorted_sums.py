"""Sums over the pairs above an edge, by sorting and prefix sums, for losses that are powers of score differences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.surrogates import PowerForm, Surrogate
from lightning_tpauc.functional.tasks import masked_mean

__all__ = ("SortedSums", "one_sided_grad_sums", "one_sided_sums", "prefix_sums", "sorted_sums")


class SortedSums(NamedTuple):
    r"""Sums over the negatives j of each positive i, and what the sums over the positives need.

    Attributes:
        excess: ``(S,)``, or ``(K, S)`` and likewise below for K tasks, of :math:`(\ell_{ij} - s_i)_+`.
        active: ``(S,)``, number of pairs with :math:`\ell_{ij} > s_i`.
        pos_grad_sum: ``(S,)``, of :math:`\ell'` over the active pairs.
        pos: float64 tensor ``(S,)``, the positives' centred scores.
        neg: float64 tensor ``(B,)``, the negatives' centred scores.
        edge: float64 tensor ``(S,)``; the active pairs lie above it.
        pieces: the pieces of the loss.
        neg_mask: bool tensor ``(K, B)`` of several tasks: which negatives are there.
    """

    excess: Tensor
    active: Tensor
    pos_grad_sum: Tensor
    pos: Tensor
    neg: Tensor
    edge: Tensor
    pieces: tuple[PowerForm, ...]
    neg_mask: Tensor | None = None

    def grad_sums(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`~lightning_tpauc.functional.dense_sums.DenseSums.grad_sums`."""
        pos, neg, y = self.pos, self.neg, weights.double()
        first, *others = self.pieces
        sums = one_sided_grad_sums(pos, neg, self.edge, y, first)
        if first.two_sided:
            mirrored_edge, mirror = _mirrored(pos, self.edge, first)
            sums = sums - one_sided_grad_sums(-pos, -neg, mirrored_edge, y, mirror)
        for piece in others:
            sums = sums + one_sided_grad_sums(pos, neg, _edge_of(piece, pos, self.edge), y, piece)
        if self.neg_mask is not None:
            sums = sums * self.neg_mask
        return self.pos_grad_sum, sums.to(self.excess.dtype)


def sorted_sums(pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None = None) -> SortedSums:
    """Sums over all pairs by sorting.

    Args:
        pos: float tensor ``(S,)``.
        neg: float tensor ``(B,)``.
        s: float tensor ``(S,)``, thresholds.
        loss: a surrogate with a power form. Pieces that cancel each other, as those of a ramp, leave an error of
            about 1e-16 (range of the scores / m) to the power of their degree.
        neg_mask: bool tensor ``(K, B)`` of K tasks, whose scores have a leading K: which negatives are there.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> sums = sorted_sums(torch.tensor([0.0]), torch.tensor([0.5, -2.0]), torch.zeros(1), get_surrogate("hinge"))
        >>> sums.excess, sums.active, sums.grad_sums(torch.ones(1))
        (tensor([1.]), tensor([1.]), (tensor([1.]), tensor([1., 0.])))
    """
    assert loss.inverse is not None  # noqa: S101 - Surrogate has checked it
    dtype, (first, *others) = pos.dtype, loss.pieces
    pos, neg, s = pos.double(), neg.double(), s.double()
    if neg_mask is not None:
        neg = torch.where(neg_mask, neg, masked_mean(neg, neg_mask).unsqueeze(-1))
    if others and pos.shape[-1] and _is_bounded(loss.pieces):
        pos, neg = _within_reach(pos, neg, first.margin, others[-1].margin)
    # Squares of uncentred scores cancel. The mean also carries a nan of any score into all results.
    centre = masked_mean(neg, neg_mask).unsqueeze(-1)
    pos, neg = pos - centre, neg - centre
    if neg_mask is not None:
        neg = neg * neg_mask  # what is not there adds 0 to every sum but that of the number
    # Below threshold 0 every pair counts as active, but pairs left of the hinge still add nothing but -s_i.
    edge = pos + loss.inverse(s.clamp_min(0.0))
    down, order = (-neg).sort()
    there = None if neg_mask is None else neg_mask.gather(-1, order).double()
    total, active, pos_grad_sum = one_sided_sums(pos, down, edge, first, there)
    if first.two_sided:
        mirrored_edge, mirror = _mirrored(pos, edge, first)
        left = one_sided_sums(-pos, -down.flip(-1), mirrored_edge, mirror, None if there is None else there.flip(-1))
        total, active, pos_grad_sum = total + left[0], active + left[1], pos_grad_sum - left[2]
    for piece in others:
        more = one_sided_sums(pos, down, _edge_of(piece, pos, edge), piece, there)
        total, pos_grad_sum = total + more[0], pos_grad_sum + more[2]
    every = float(neg.shape[0]) if neg_mask is None else neg_mask.sum(-1, keepdim=True, dtype=neg.dtype)
    active = torch.where(s < 0, every, active)
    excess = (total - s * active).clamp_min(0.0)  # rounding may leave -1e-17
    return SortedSums(excess.to(dtype), active.to(dtype), pos_grad_sum.to(dtype), pos, neg, edge, loss.pieces, neg_mask)


def _mirrored(pos: Tensor, edge: Tensor, power: PowerForm) -> tuple[Tensor, PowerForm]:
    """Left of -m, (m + t)^2 is the same polynomial of the mirrored scores with margin -m.

    The active pairs are those below the mirror image of the edge.
    """
    return edge - 2.0 * pos + 2.0 * power.margin, PowerForm(-power.margin, 2, coefficient=power.coefficient)


def _edge_of(piece: PowerForm, pos: Tensor, edge: Tensor) -> Tensor:
    """Active pairs to the left of where a piece starts add nothing to it; the first piece starts before them all."""
    return torch.maximum(edge, pos - piece.margin)


def _is_bounded(pieces: tuple[PowerForm, ...]) -> bool:
    """Whether the coefficients of t and t^2 add up to 0, so that the sum is constant right of where all have begun."""
    squares = [piece for piece in pieces if piece.degree == 2]
    linear = sum(p.coefficient for p in pieces if p.degree == 1) + sum(2.0 * p.coefficient * p.margin for p in squares)
    return linear == 0.0 and sum(p.coefficient for p in squares) == 0.0


def _within_reach(pos: Tensor, neg: Tensor, first: float, last: float) -> tuple[Tensor, Tensor]:
    """Scores of a bounded loss, moved to where the loss is constant just as well.

    The pieces of a bounded loss cancel each other where it is constant, so that one score far away would cost all
    others their digits.
    """
    # The loss is constant for t <= -first and for t >= -last; as much again keeps the moved pairs clear of the kinks.
    left, right = 2.0 * first - last, first - 2.0 * last
    pos = pos.clamp(neg.amin(-1, keepdim=True) - right, neg.amax(-1, keepdim=True) + left)
    return pos, neg.clamp(pos.amin(-1, keepdim=True) - left, pos.amax(-1, keepdim=True) + right)


def one_sided_sums(
    pos: Tensor, down: Tensor, edge: Tensor, power: PowerForm, there: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Sums of :math:`c (m + h_j - h_i)^p`, of 1 and of the derivative over the pairs with h_j above each edge.

    Args:
        pos: float64 tensor ``(S,)``, scores h_i, centred: squares of large scores cancel.
        down: float64 tensor ``(B,)``, -h_j of scores centred likewise, in ascending order. The pairs of every positive
            then come first, so that no sum has to be taken as the difference of two larger ones.
        edge: ``(S,)``; every pair above it has :math:`m + h_j - h_i > 0` unless the loss is two-sided.
        power: m, p and c; the caller handles the second side.
        there: float64 tensor of the shape of ``down``, 1 for negatives that are there and 0 for others, whose ``down``
            is 0.

    Returns:
        The sums over j of the power, of 1 and of the derivative :math:`c p (m + h_j - h_i)^{p-1}`, each ``(S,)``.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 2.0]).double()
        >>> sums = one_sided_sums(pos, (-neg).sort().values, pos, PowerForm(0.0, 1))
        >>> [x.tolist() for x in sums]
        [[2.5, 1.0], [2.0, 1.0], [2.0, 1.0]]
    """
    offset = power.margin - pos  # m + h_j - h_i = offset_i + h_j
    count = torch.searchsorted(down, -edge)
    rows = [down] if power.degree == 1 else [down, down.square()]
    moments = _entries(prefix_sums(torch.stack(rows if there is None else [*rows, there])), count)
    number = count.to(pos.dtype) if there is None else moments[-1]
    linear = number * offset - moments[0]
    if power.degree == 1:
        total, grad_sum = linear, number
    else:
        total, grad_sum = offset * (linear - moments[0]) + moments[1], 2.0 * linear
    if power.coefficient != 1.0:
        total, grad_sum = power.coefficient * total, power.coefficient * grad_sum
    return total, number, grad_sum


def one_sided_grad_sums(pos: Tensor, neg: Tensor, edge: Tensor, y: Tensor, power: PowerForm) -> Tensor:
    r"""Sums over i of y_i times the derivative of :math:`c (m + h_j - h_i)^p`, one for each j, above the edges.

    Args:
        pos: as in :func:`one_sided_sums`.
        neg: as in :func:`one_sided_sums`.
        edge: as in :func:`one_sided_sums`.
        y: float64 tensor ``(S,)``, weights of the positives.
        power: m, p and c.

    Returns:
        Tensor ``(B,)``.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 2.0]).double()
        >>> one_sided_grad_sums(pos, neg, pos, torch.ones(2).double(), PowerForm(0.0, 1))
        tensor([1., 2.], dtype=torch.float64)
    """
    # A negative counts for the positives whose edge lies below it: the first ones in ascending order of edges.
    edge, order = edge.sort()
    rows = _entries(y[None] if power.degree == 1 else torch.stack([y, y * (power.margin - pos)]), order)
    sums = _entries(prefix_sums(rows), torch.searchsorted(edge, neg))
    total = sums[0] if power.degree == 1 else 2.0 * (sums[1] + neg * sums[0])
    return total if power.coefficient == 1.0 else power.coefficient * total


def _entries(rows: Tensor, places: Tensor) -> Tensor:
    """Those entries of each row."""
    if places.ndim == 1:
        return rows[:, places]
    return rows.gather(-1, places.expand(rows.shape[0], *places.shape))


def prefix_sums(rows: Tensor) -> Tensor:
    """Running sums along each row, starting from 0.

    Args:
        rows: float tensor ``(..., n)``.

    Returns:
        Tensor ``(..., n + 1)`` whose column k holds the sums of the first k entries.

    Example:
        >>> prefix_sums(torch.tensor([[1.0, 2.0, 4.0]]))
        tensor([[0., 1., 3., 7.]])
    """
    if rows.is_cuda and torch.are_deterministic_algorithms_enabled():
        # Older releases of torch refuse cumsum there, because its order of summation varied.
        return torch.nn.functional.pad(_scan(rows), (1, 0))
    return torch.nn.functional.pad(rows.cumsum(-1), (1, 0))


def _scan(rows: Tensor) -> Tensor:
    """Running sums by doubling: after the k-th pass each entry holds the sum of up to 2^k entries ending there."""
    shift = 1
    while shift < rows.shape[-1]:
        rows = rows + torch.nn.functional.pad(rows[..., :-shift], (shift, 0))
        shift *= 2
    return rows
