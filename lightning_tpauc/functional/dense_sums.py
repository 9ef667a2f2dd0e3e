"""Sums over pairs by forming them all, in blocks of bounded size: for any loss, and for small batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.functional.surrogates import Surrogate

__all__ = ("BlockSums", "DenseSums", "dense_excess", "dense_sums", "dense_sums_of_two", "in_one_block")

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

        Args:
            weights: float tensor ``(S,)``, :math:`y_i`.

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

    Args:
        pos: float tensor ``(S,)``, or ``(K, S)`` for K tasks.
        neg: float tensor ``(B,)``, or ``(K, B)``.
        s: float tensor ``(S,)``, or ``(K, S)``, thresholds.
        loss: any surrogate.
        neg_mask: bool tensor ``(K, B)``: which negatives are there.

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
    """Sums over ``neg``, and the excess over ``dual_neg``, in one block: small batches cost by the operation.

    Args:
        pos: as in :func:`dense_sums`.
        neg: as in :func:`dense_sums`.
        dual_neg: float tensor ``(B',)``; together with ``neg`` it fits into one block.
        s: as in :func:`dense_sums`.
        loss: as in :func:`dense_sums`.
    """
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
