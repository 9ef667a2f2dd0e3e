"""Sums over pairs by forming them all, in blocks of bounded size: for any loss, and for small batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.functional.sorted_sums import PairSums
from lightning_tpauc.functional.surrogates import Surrogate

__all__ = ("dense_sums", "dense_sums_of_two", "in_one_block")

# Elements of the largest temporary of the dense evaluation. On a CPU, larger ones leave the cache and come from fresh
# pages: one core took 9 ns a pair at 2^16, 20 to 40 ns at 2^22. On a GPU smaller ones wait for launches: an H200 took
# 13 ms for 4096 x 65536 logistic pairs at 2^22, 53 ms at 2^20, 9 ms and 3.5 times the memory at 2^24.
_BLOCK = {"cpu": 2**16, "other": 2**22}


def in_one_block(pos: Tensor, num_neg: int) -> bool:
    """Whether the pairs of ``pos`` with so many negatives are formed at once."""
    return pos.shape[0] * num_neg <= _BLOCK[_kind(pos)]


def dense_sums(pos: Tensor, neg: Tensor, s: Tensor, y: Any, loss: Surrogate, gradients: bool) -> PairSums:
    """Sums over all pairs, block by block.

    Args:
        pos: float tensor ``(S,)``.
        neg: float tensor ``(B,)``.
        s: float tensor ``(S,)``, thresholds.
        y: float tensor ``(S,)``, the weights that ``neg_slope`` will get. Only pairs that fit into one block, which is
            kept, can do without.
        loss: any surrogate.
        gradients: whether the slopes are needed.

    Example:
        >>> from lightning_tpauc.functional.surrogates import get_surrogate
        >>> hinge, y = get_surrogate("hinge"), torch.ones(1)
        >>> sums = dense_sums(torch.tensor([0.0]), torch.tensor([0.5, -2.0]), torch.zeros(1), y, hinge, True)
        >>> sums.excess, sums.active, sums.neg_slope(y)
        (tensor([1.]), tensor([1.]), tensor([1., 0.]))
    """
    num_pos, num_neg, limit = pos.shape[0], neg.shape[0], _BLOCK[_kind(neg)]
    if in_one_block(pos, num_neg):
        return _block(pos, neg, s, loss, gradients)
    rows, cols = max(1, limit // num_neg), min(num_neg, limit)
    per_pos, per_neg = pos.new_zeros(3, num_pos), torch.zeros_like(neg)
    for i in range(0, num_pos, rows):
        row = slice(i, i + rows)
        for j in range(0, num_neg, cols):
            col = slice(j, j + cols)
            block = _block(pos[row], neg[col], s[row], loss, gradients)
            per_pos[:, row] += torch.stack([block.excess, block.active, block.slope])
            if gradients:
                per_neg[col] += block.neg_slope(y[row])
    return PairSums(per_pos[0], per_pos[1], per_pos[2], lambda _: per_neg)


def dense_sums_of_two(
    pos: Tensor, neg: Tensor, dual_neg: Tensor, s: Tensor, loss: Surrogate, gradients: bool
) -> tuple[PairSums, Tensor]:
    """Sums over ``neg``, and the excess over ``dual_neg``, in one block: small batches cost by the operation.

    Args:
        pos: as in :func:`dense_sums`.
        neg: as in :func:`dense_sums`.
        dual_neg: float tensor ``(B',)``; together with ``neg`` it fits into one block.
        s: as in :func:`dense_sums`.
        loss: as in :func:`dense_sums`.
        gradients: as in :func:`dense_sums`.
    """
    num_neg = neg.shape[0]
    t = torch.cat([neg, dual_neg]) - pos.unsqueeze(1)  # (S, B + B')
    over = loss.value(t) - s.unsqueeze(1)
    dual_excess = over[:, num_neg:].clamp_min_(0.0).sum(1)
    return _reduce(t[:, :num_neg], over[:, :num_neg], loss, gradients), dual_excess


def _block(pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, gradients: bool) -> PairSums:
    t = neg - pos.unsqueeze(1)  # (S, B)
    return _reduce(t, loss.value(t) - s.unsqueeze(1), loss, gradients)


def _reduce(t: Tensor, over: Tensor, loss: Surrogate, gradients: bool) -> PairSums:
    # Small batches cost what their number of operations costs, so temporaries are overwritten where they are ours.
    mask = over.sign().clamp_min_(0.0)
    excess, active = over.clamp_min_(0.0).sum(1), mask.sum(1)
    if not gradients:
        return PairSums(excess, active, active, torch.zeros_like)
    slope = mask.mul_(loss.derivative(t))
    # No matrix product: autocast would run it in half precision.
    return PairSums(excess, active, slope.sum(1), lambda y: slope.mul_(y.unsqueeze(1)).sum(0))


def _kind(scores: Tensor) -> str:
    return "cpu" if scores.device.type == "cpu" else "other"
