"""Sums over pairs: by sorting and prefix sums for powers of score differences, in blocks for any other loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.surrogates import PowerForm, Surrogate
from lightning_tpauc.functional.tasks import masked_mean


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
        """See :meth:`~lightning_tpauc.functional.pair_sums.DenseSums.grad_sums`."""
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


# Elements of the largest temporary of the dense evaluation. On a CPU, larger ones leave the cache and come from fresh
# pages: one core took 9 ns a pair at 2^16, 20 to 40 ns at 2^22. On a GPU smaller ones wait for launches: an H200 took
# 13 ms for 4096 x 65536 logistic pairs at 2^22, 53 ms at 2^20, 9 ms and 3.5 times the memory at 2^24.
_BLOCK = {"cpu": 2**16, "other": 2**22}


class DenseSums(NamedTuple):
    r"""Sums over the negatives j of each positive i, with the pairs that they were taken from.

    Attributes:
        excess: ``(S,)``, or ``(K, S)`` and likewise below for K tasks, of :math:`(\ell_{ij} - s_i)_+`.
        active: ``(S,)``, number of pairs with :math:`\ell_{ij} > s_i`.
        differences: ``(S, B)``, :math:`h_j - h_i`.
        is_active: ``(S, B)``, 1 for active pairs and 0 for the others.
        loss: the surrogate.
    """

    excess: Tensor
    active: Tensor
    differences: Tensor
    is_active: Tensor
    loss: Surrogate

    def grad_sums(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        r"""Sums of :math:`\ell'` over the active pairs.

        Returns:
            ``pos_grad_sum`` ``(S,)``, the sums over j of :math:`\ell'_{ij}`, and ``neg_grad_sum`` ``(B,)``, the sums
            over i of :math:`y_i \ell'_{ij}`.
        """
        slopes = self.is_active * self.loss.derivative(self.differences)
        # No matrix product: autocast would run it in half precision.
        return slopes.sum(-1), slopes.mul_(weights.unsqueeze(-1)).sum(-2)


class BlockSums:
    """As :class:`DenseSums`, of more pairs than are kept: they are formed when a sum is asked for.

    :meth:`grad_sums` finds ``excess`` and ``active`` on its way; only who asks for these before pays for two rounds.
    """

    def __init__(
        self, pos: Tensor, neg: Tensor, thresholds: Tensor, loss: Surrogate, neg_mask: Tensor | None = None
    ) -> None:
        self._pairs = pos, neg, thresholds, loss, neg_mask
        self._totals: tuple[Tensor, Tensor] | None = None

    @property
    def excess(self) -> Tensor:
        """See :class:`DenseSums`."""
        return self._found()[0]

    @property
    def active(self) -> Tensor:
        """See :class:`DenseSums`."""
        return self._found()[1]

    def grad_sums(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`DenseSums.grad_sums`."""
        excess, active, pos_grad_sum, neg_grad_sum = _sums_over_blocks(*self._pairs, weights)
        self._totals = excess, active
        return pos_grad_sum, neg_grad_sum

    def _found(self) -> tuple[Tensor, Tensor]:
        if self._totals is None:
            excess, active, _, _ = _sums_over_blocks(*self._pairs, None)
            self._totals = excess, active
        return self._totals


def in_one_block(pos: Tensor, num_neg: int) -> bool:
    """Whether the pairs of ``pos`` with so many negatives are formed at once."""
    return pos.numel() * num_neg <= _BLOCK[_kind(pos)]


def dense_sums(
    pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None = None
) -> DenseSums | BlockSums:
    """Sums over all pairs, at once or block by block; the caller switches gradients off.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> sums = dense_sums(torch.tensor([0.0]), torch.tensor([0.5, -2.0]), torch.zeros(1), get_surrogate("hinge"))
        >>> sums.excess, sums.active, sums.grad_sums(torch.ones(1))
        (tensor([1.]), tensor([1.]), (tensor([1.]), tensor([1., 0.])))
    """
    if in_one_block(pos, neg.shape[-1]):
        return _one_block(pos, neg, s, loss, neg_mask)
    return BlockSums(pos, neg, s, loss, neg_mask)


def dense_excess(pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None = None) -> Tensor:
    """``excess`` of :func:`dense_sums` alone, in fewer operations."""
    if in_one_block(pos, neg.shape[-1]):
        return _pairs(pos, neg, s, loss, neg_mask)[1].clamp_min_(0.0).sum(-1)
    return BlockSums(pos, neg, s, loss, neg_mask).excess


def dense_sums_of_two(
    pos: Tensor, neg: Tensor, dual_neg: Tensor, s: Tensor, loss: Surrogate
) -> tuple[DenseSums, Tensor]:
    """Sums over ``neg``, and the excess over ``dual_neg``, in one block: small batches cost by the operation."""
    num_neg = neg.shape[0]
    t = torch.cat([neg, dual_neg]) - pos.unsqueeze(1)  # (S, B + B')
    over = loss.value(t) - s.unsqueeze(1)
    dual_excess = over[:, num_neg:].clamp_min_(0.0).sum(1)
    return _reduce(t[:, :num_neg], over[:, :num_neg], loss), dual_excess


@torch.no_grad()
def _sums_over_blocks(
    pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``excess``, ``active``, ``pos_grad_sum`` and ``neg_grad_sum``; the last two stay 0 without weights."""
    num_pos, num_neg, limit = pos.shape[-1], neg.shape[-1], _BLOCK[_kind(neg)]
    per_row = neg.numel()  # pairs of one positive of each task
    rows, cols = max(1, limit // per_row), max(1, min(num_neg, limit * num_neg // per_row))
    excess, active, pos_grad_sum = pos.new_zeros(3, *pos.shape)
    neg_grad_sum = torch.zeros_like(neg)
    for i in range(0, num_pos, rows):
        row = (..., slice(i, i + rows))
        for j in range(0, num_neg, cols):
            col = (..., slice(j, j + cols))
            block = _one_block(pos[row], neg[col], s[row], loss, None if neg_mask is None else neg_mask[col])
            excess[row] += block.excess
            active[row] += block.active
            if weights is not None:
                of_pos, of_neg = block.grad_sums(weights[row])
                pos_grad_sum[row] += of_pos
                neg_grad_sum[col] += of_neg
    return excess, active, pos_grad_sum, neg_grad_sum


def _one_block(pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None = None) -> DenseSums:
    return _reduce(*_pairs(pos, neg, s, loss, neg_mask), loss)


def _pairs(
    pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Differences of all scores, and by how much their losses exceed the thresholds."""
    t = (neg if neg_mask is None else neg.unsqueeze(-2)) - pos.unsqueeze(-1)  # (S, B)
    over = loss.value(t) - s.unsqueeze(-1)
    if neg_mask is not None:  # what is not there exceeds no threshold, not even one below 0
        over.masked_fill_(~neg_mask.unsqueeze(-2), -torch.inf)
    return t, over


def _reduce(t: Tensor, over: Tensor, loss: Surrogate) -> DenseSums:
    # Small batches cost what their number of operations costs, so temporaries are overwritten where they are ours.
    is_active = over.sign().clamp_min_(0.0)
    return DenseSums(over.clamp_min_(0.0).sum(-1), is_active.sum(-1), t, is_active, loss)


def _kind(scores: Tensor) -> str:
    return "cpu" if scores.device.type == "cpu" else "other"
