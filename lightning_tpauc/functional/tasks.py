r"""Several tasks at once: the scores of K tasks have a leading dimension of tasks, and masks say which are there.

Every function of one task takes ``(S,)`` positives and ``(B,)`` negatives. Where it takes ``(K, S)`` and ``(K, B)`` as
well, masks of the same shapes leave out what pads a row and what was not measured, and numbers of a task, such as
:math:`s'`, have shape ``(K,)`` instead of ``()``. Masked scores have to be finite; they count for nothing.
"""

from __future__ import annotations

from typing import NamedTuple, overload

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.order import ceil_count
from lightning_tpauc.functional.utilities import widest_float


class TaskMasks(NamedTuple):
    """Which scores of K tasks are there.

    Attributes:
        pos: bool tensor ``(K, S)``. A task without any is not in play: nothing of it changes.
        neg: bool tensor ``(K, B)``, at least one in every task that is in play.
        dual_neg: bool tensor ``(K, B')`` of a second batch of negatives, if there is one.
    """

    pos: Tensor
    neg: Tensor
    dual_neg: Tensor | None = None


@overload
def column(x: Tensor) -> Tensor: ...
@overload
def column(x: float | Tensor) -> float | Tensor: ...
def column(x: float | Tensor) -> float | Tensor:
    """One number per task, ``(K,)``, as a column that broadcasts over the task's scores; a single number unchanged."""
    return x.unsqueeze(-1) if isinstance(x, Tensor) and x.ndim else x


def add_scaled(x: Tensor, y: Tensor, factor: float | Tensor) -> Tensor:
    """``x + factor * y``, in one pass where the factor is one number."""
    return x + y * column(factor) if isinstance(factor, Tensor) else torch.add(x, y, alpha=factor)


@overload
def number(scores: Tensor, mask: Tensor) -> Tensor: ...
@overload
def number(scores: Tensor, mask: Tensor | None) -> int | Tensor: ...
def number(scores: Tensor, mask: Tensor | None) -> int | Tensor:
    """How many scores there are; with a mask of each task, ``(K,)``, at least 1: sums over none are 0 anyway.

    Example:
        >>> number(torch.zeros(2, 3), torch.tensor([[True, True, False], [False, False, False]]))
        tensor([2., 1.])
    """
    return scores.shape[-1] if mask is None else mask.sum(-1, dtype=scores.dtype).clamp_min(1.0)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of one task, or with a mask of what is there of each, 0 where nothing is.

    Example:
        >>> masked_mean(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[True, True], [False, True]]))
        tensor([2., 7.])
    """
    return values.mean() if mask is None else (values * mask).sum(-1) / number(values, mask)


def there(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores that are there, and 0 instead of the others, whatever these are."""
    return torch.where(mask, scores, scores.new_zeros(()))


def in_play(new: Tensor, old: Tensor | float, masks: TaskMasks | None) -> Tensor:
    """``new``, ``(K,)``, for tasks in play and ``old`` for the others; ``new`` where there is one task."""
    return new if masks is None else torch.where(masks.pos.any(-1), new, old)


def highest(scores: Tensor, share: float | Tensor, mask: Tensor | None) -> Tensor:
    r"""The :math:`\lceil \theta n \rceil`-th highest score, at least the highest, of each task.

    Args:
        scores: float tensor ``(n,)``, or ``(K, n)`` with a mask.
        share: :math:`\theta` in (0, 1]; with a mask also a tensor ``(K,)`` of the device's most precise dtype.
        mask: bool tensor ``(K, n)``.

    Returns:
        Tensor ``()`` or ``(K,)``; minus infinity for a task without scores.

    Example:
        >>> highest(torch.tensor([[3.0, 1.0, 2.0, 9.0]]), 0.5, torch.tensor([[True, True, True, False]]))
        tensor([2.])
    """
    if mask is None:
        rank = max(1, ceil_count(float(share), scores.shape[0]))
        return torch.topk(scores, rank, sorted=False).values.min()
    dtype = widest_float(scores.device)
    count = mask.sum(-1).to(dtype)
    # as `ceil_count` does for numbers on the host
    slack = (torch.finfo(dtype).eps * count).clamp_min(1e-9)
    place = (count * share - slack).ceil().long().clamp_min(1) - 1
    down = scores.masked_fill(~mask, -torch.inf).sort(-1, descending=True).values
    return down.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def with_dual_negatives(masks: TaskMasks | None) -> TaskMasks | None:
    """The masks with the second batch of negatives in the place of the first."""
    return masks if masks is None or masks.dual_neg is None else masks._replace(neg=masks.dual_neg)


def check_positions(index: Tensor, pos_mask: Tensor, sizes: tuple[int, ...]) -> None:
    """Raise :class:`ArgumentError` if a position is beyond its task, where it would be one of the next.

    Example:
        >>> check_positions(torch.tensor([[0, 7]]), torch.tensor([[True, False]]), (3,))
    """
    wrong = pos_mask & ((index < 0) | (index >= torch.tensor(sizes).unsqueeze(-1)))
    if bool(wrong.any()):
        task, place = wrong.nonzero()[0].tolist()
        msg = (
            f"Expected `index` to number the positives of each task from 0, below {sizes[task]} for task {task}, but "
            f"got {int(index[task, place])}."
        )
        raise ArgumentError(msg)
