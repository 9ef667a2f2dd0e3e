"""Several tasks that are trained at once: what is said about each, and what a batch of them has to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle, require_range
from lightning_tpauc.functional.tasks import TaskMasks, check_positions


class Task(NamedTuple):
    """One of several tasks that are trained at once.

    Attributes:
        num_positives: number of its positive training examples.
        min_tpr: lower bound of its true positive rate; the algorithm's if ``None``.
        max_fpr: upper bound of its false positive rate; the algorithm's if ``None``.
        weight: what it counts for in the loss, at least 0; only ratios matter.
    """

    num_positives: int
    min_tpr: float | None = None
    max_fpr: float | None = None
    weight: float = 1.0


def rectangles_of(tasks: Sequence[Task], min_tpr: float, max_fpr: float) -> list[tuple[float, float]]:
    """The rectangle that was asked for, for each task.

    Args:
        tasks: what is said about each.
        min_tpr: lower bound of the true positive rate, for tasks without one of their own.
        max_fpr: upper bound of the false positive rate, for tasks without one of their own.

    Raises:
        ArgumentError: if one is out of range.

    Example:
        >>> rectangles_of([Task(3), Task(4, max_fpr=0.1)], 0.5, 0.5)
        [(0.5, 0.5), (0.5, 0.1)]
    """
    lows = [min_tpr if task.min_tpr is None else task.min_tpr for task in tasks]
    highs = [max_fpr if task.max_fpr is None else task.max_fpr for task in tasks]
    return [check_rectangle(low, high) for low, high in zip(lows, highs, strict=True)]


def shrunk_rectangle(min_tpr: float, max_fpr: float, tightness: float) -> tuple[float, float]:
    """The rectangle on the line from (0, 1) to ``(min_tpr, max_fpr)``, of one task or of each of several.

    Example:
        >>> shrunk_rectangle(0.8, 0.2, 0.5)
        (0.4, 0.6)
    """
    if tightness == 1.0:  # exactly, not up to rounding
        return min_tpr, max_fpr
    return tightness * min_tpr, 1.0 - tightness * (1.0 - max_fpr)


def count_in_loss(tasks: Sequence[Task] | None) -> list[bool]:
    """Of each task, whether its weight is above 0; of one where there is one.

    Example:
        >>> count_in_loss([Task(3), Task(4, weight=0.0)]), count_in_loss(None)
        ([True, False], [True])
    """
    return [True] if tasks is None else [task.weight > 0.0 for task in tasks]


def shares_of_loss(tasks: Sequence[Task]) -> list[float]:
    """The weights of tasks, divided by their sum.

    Raises:
        ArgumentError: if one is negative, or all are 0.

    Example:
        >>> shares_of_loss([Task(3), Task(4, weight=3.0)])
        [0.25, 0.75]
    """
    weights = [require_range("weight", task.weight, 0.0) for task in tasks]
    if not sum(weights):
        msg = f"Expected a `weight` above 0 of one task at least, but got {weights}."
        raise ArgumentError(msg)
    return [weight / sum(weights) for weight in weights]


def check_tasks(
    sizes: tuple[int, ...] | None,
    pos_scores: Tensor,
    neg_scores: Tensor,
    index: Any,
    masks: TaskMasks | None,
    dual: tuple[Tensor | None, Tensor | None] | None,
    *,
    both_classes: bool = True,
) -> TaskMasks:
    """The masks of a batch of several tasks, in which tasks without a negative have no positive either.

    Args:
        sizes: number of positives of each task that the algorithm was set up for.
        pos_scores: what came as scores of positives.
        neg_scores: what came as scores of negatives.
        index: what came as their positions.
        masks: what came as masks.
        dual: scores and mask of the second negatives, for an algorithm that needs them.
        both_classes: if ``False``, tasks without a negative keep their positives.

    Raises:
        ArgumentError: if there are no masks or no tasks, if shapes or dtypes do not fit, or if a position is beyond its
            task. Positions on a GPU are not checked, since that would wait for the device.
    """
    num_tasks = None if sizes is None else len(sizes)
    if masks is None or sizes is None:
        msg = (
            "Expected `masks` where `setup` was given a number of positives for each of several tasks, and only there, "
            f"but got {'no masks' if masks is None else 'masks'} and a setup for {num_tasks or 'one task'}."
        )
        raise ArgumentError(msg)
    pairs: dict[str, tuple[Any, Any]] = {
        "pos": (pos_scores, masks.pos),
        "neg": (neg_scores, masks.neg),
        "index": (index, masks.pos),
    }
    if dual is not None:
        pairs["dual_neg"] = dual
    for name, (scores, mask) in pairs.items():
        right = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.ndim == 2 and mask.shape[0] == num_tasks
        if not right or not isinstance(scores, Tensor) or scores.shape != mask.shape:
            got = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in (scores, mask)]
            msg = (
                f"Expected `{name}` and a bool mask of one shape, ({num_tasks}, number of them), but got {got[0]} and "
                f"{got[1]}."
            )
            raise ArgumentError(msg)
    if masks.pos.device.type == "cpu":
        check_positions(torch.as_tensor(index), masks.pos, sizes)
    ready = masks.neg.any(-1, keepdim=True) | (not both_classes)
    if dual is not None and masks.dual_neg is not None:
        ready = ready & masks.dual_neg.any(-1, keepdim=True)
    return masks._replace(pos=masks.pos & ready, dual_neg=masks.neg if dual is None else masks.dual_neg)
