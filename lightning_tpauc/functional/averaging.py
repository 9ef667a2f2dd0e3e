r"""Averages over the iterates of a stage.

Two kinds: the model's weights all change at every step, so their running mean is updated in full; of the per-positive
thresholds only the S sampled entries change, and their changes alone are accounted for, at a cost of O(S) a step and
O(n_pos) once, at the stage's end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_tpauc.functional.pairwise import column


@torch.no_grad()
def running_mean_(means: Sequence[Tensor], values: Sequence[Tensor], count: int, decay: float = 0.0) -> None:
    r"""Update :math:`\bar w \leftarrow \bar w + \frac{1 + \eta}{k + \eta} (w - \bar w)` in place.

    With :math:`\eta = 0` that is the plain mean. With :math:`\eta > 0` iterate k weighs about :math:`k^\eta`: the mean
    forgets the start without knowing the length of the run (polynomial-decay averaging, Shamir and Zhang, ICML 2013).

    Args:
        means: tensors that hold the mean of ``count - 1`` iterates; float32 or better, since in bfloat16 a running mean
            stops moving after a few hundred steps.
        values: tensors of the same shapes, iterate number ``count``.
        count: how many iterates the mean holds afterwards, k, at least 1.
        decay: :math:`\eta`, at least 0.

    Example:
        >>> mean = [torch.tensor([1.0])]
        >>> running_mean_(mean, [torch.tensor([4.0])], count=3)
        >>> mean
        [tensor([2.])]
    """
    if not means:
        return
    values = [value.to(mean.dtype) for mean, value in zip(means, values, strict=True)]
    torch._foreach_lerp_(list(means), values, (1.0 + decay) / (count + decay))


def record_change_(moments: Tensor, index: Tensor, change: Tensor, steps_before: Tensor) -> None:
    r"""Account for a change of some entries: :math:`M_i \leftarrow M_i + (k - 1)\,\Delta_{k,i}` in step k.

    Entries that do not change need no work: see :func:`mean_from_changes`.

    Args:
        moments: float tensor ``(n_pos,)``, M, zero at the stage's start; updated in place.
        index: int64 tensor ``(S,)``, the entries that change in this step, without repetition.
        change: float tensor ``(S,)``, :math:`\Delta_{k,i} = s_{k,i} - s_{k-1,i}`.
        steps_before: int32 tensor ``()``, k - 1: steps of this stage that are complete. Of K tasks it is ``(K,)``, and
            ``index`` and ``change`` are ``(K, S)``; an entry that comes twice does not change.

    Example:
        >>> moments = torch.zeros(3)
        >>> record_change_(moments, torch.tensor([1]), torch.tensor([0.5]), torch.tensor(4, dtype=torch.int32))
        >>> moments
        tensor([0., 2., 0.])
    """
    added = (change * column(steps_before)).to(moments.dtype)
    if index.ndim == 1:
        moments.index_add_(0, index, added)
    else:
        moments.index_add_(0, index.reshape(-1), added.reshape(-1))


def mean_from_changes(moments: Tensor, values: Tensor, steps_done: Tensor) -> Tensor:
    r"""The mean of a stage's K iterates, :math:`\frac1K \sum_{k=1}^K s_{k,i} = s_{K,i} - M_i / K`.

    For :math:`s_{k,i} = s_{K,i} - \sum_{l > k} \Delta_{l,i}`: the change of step l is missing from the l - 1 iterates
    before it.

    Args:
        moments: float tensor ``(n_pos,)``, M of :func:`record_change_`.
        values: float tensor ``(n_pos,)``, the current values :math:`s_K`.
        steps_done: int32 tensor ``()``, K; for K = 0 the current values are returned.

    Example:
        >>> steps_done = torch.tensor(8, dtype=torch.int32)  # entry 1 rose by 0.5 in step 5
        >>> mean_from_changes(torch.tensor([0.0, 2.0]), torch.tensor([0.5, 1.0]), steps_done)
        tensor([0.5000, 0.7500])
    """
    return values - moments / steps_done.clamp(min=1)


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """``dtype``, or float32 where it is a half-precision type: means and anchors must not lose small steps."""
    return torch.promote_types(dtype, torch.float32)
