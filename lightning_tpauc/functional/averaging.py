r"""Averages over the iterates of a stage.

Two kinds: the model's weights all change at every step, so their running mean is updated in full; of the per-positive
thresholds only the S sampled entries change, so their sum is updated lazily, at a cost of O(S) a step and O(n_pos)
once, at the stage's end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ("flush_lazy_sum", "running_mean_", "update_lazy_sum_")


@torch.no_grad()
def running_mean_(means: Sequence[Tensor], values: Sequence[Tensor], count: int) -> None:
    r"""Update :math:`\bar w \leftarrow \bar w + (w - \bar w) / k` in place.

    Args:
        means: tensors that hold the mean of ``count - 1`` iterates; float32 or better, since in bfloat16 a running mean
            stops moving after a few hundred steps.
        values: tensors of the same shapes, iterate number ``count``.
        count: how many iterates the mean holds afterwards, at least 1.

    Example:
        >>> mean = [torch.tensor([1.0])]
        >>> running_mean_(mean, [torch.tensor([4.0])], count=3)
        >>> mean
        [tensor([2.])]
    """
    if not means:
        return
    values = [value.to(mean.dtype) for mean, value in zip(means, values, strict=True)]
    torch._foreach_lerp_(list(means), values, 1.0 / count)


def update_lazy_sum_(
    deviation_sum: Tensor,
    last_step: Tensor,
    index: Tensor,
    values: Tensor,
    anchor: Tensor,
    steps_done: Tensor,
) -> None:
    r"""Account for the time that some entries kept their value, before they change.

    Entry i had the value :math:`s_i` after each of the steps ``last_step[i] + 1 .. steps_done``. The sum is kept of
    :math:`s_i - s_{0,i}`, which is small, so that single precision suffices for long stages.

    Args:
        deviation_sum: float tensor ``(n_pos,)``, updated in place.
        last_step: int32 tensor ``(n_pos,)``, the step up to which the sum is complete, updated in place.
        index: int64 tensor ``(S,)``, entries that are about to change, without repetition.
        values: float tensor ``(S,)``, their values so far.
        anchor: float tensor ``(S,)``, their values at the stage's start.
        steps_done: int32 tensor ``()``, number of steps of this stage that are complete.

    Example:
        >>> total, last = torch.zeros(3), torch.zeros(3, dtype=torch.int32)
        >>> done = torch.tensor(4, dtype=torch.int32)
        >>> update_lazy_sum_(total, last, torch.tensor([1]), torch.tensor([0.7]), torch.tensor([0.5]), done)
        >>> total, last
        (tensor([0.0000, 0.8000, 0.0000]), tensor([0, 4, 0], dtype=torch.int32))
    """
    duration = (steps_done - last_step[index]).to(values.dtype)
    deviation_sum.index_add_(0, index, (values - anchor) * duration)
    last_step.index_copy_(0, index, steps_done.expand(index.shape))


def flush_lazy_sum(
    deviation_sum: Tensor, last_step: Tensor, values: Tensor, anchor: Tensor, steps_done: Tensor
) -> Tensor:
    r"""The mean over a stage, :math:`\bar s_i = s_{0,i} + \frac1K \sum_{k=1}^{K} (s_{k,i} - s_{0,i})`.

    Args:
        deviation_sum: float tensor ``(n_pos,)``, see :func:`update_lazy_sum_`.
        last_step: int32 tensor ``(n_pos,)``, see :func:`update_lazy_sum_`.
        values: float tensor ``(n_pos,)``, the current values.
        anchor: float tensor ``(n_pos,)``, the values at the stage's start.
        steps_done: int32 tensor ``()``, K; for K = 0 the current values are returned.

    Returns:
        Float tensor ``(n_pos,)``.

    Example:
        >>> anchor, values = torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.9])
        >>> last = torch.tensor([0, 4], dtype=torch.int32)
        >>> flush_lazy_sum(torch.tensor([0.0, 0.8]), last, values, anchor, torch.tensor(8, dtype=torch.int32))
        tensor([0.5000, 0.8000])
    """
    remaining = (steps_done - last_step).to(values.dtype)
    steps = steps_done.clamp(min=1).to(values.dtype)
    mean = anchor + (deviation_sum + (values - anchor) * remaining) / steps
    return torch.where(steps_done > 0, mean, values)
