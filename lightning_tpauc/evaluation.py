"""What validation and test report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.metrics import ExactObjective, TwoWayPartialAUROC

__all__ = ("IGNORED", "Rectangle", "as_rectangles", "build_metrics", "inputs_and_target", "metric_name")

#: Target of rows that no metric counts; see :class:`~lightning_tpauc.data.batch.EvalBatch`.
IGNORED = -1


class Rectangle(NamedTuple):
    """Lower bound of the true positive rate and upper bound of the false positive rate."""

    min_tpr: float
    max_fpr: float


def as_rectangles(pairs: Any) -> list[Rectangle]:
    """What came in as ``rectangles``, checked.

    Raises:
        ArgumentError: if it is no sequence of pairs of numbers, or a rectangle is not inside the unit square.

    Example:
        >>> as_rectangles([(0.7, 0.3)])
        [Rectangle(min_tpr=0.7, max_fpr=0.3)]
    """
    try:
        rectangles = [Rectangle(*pair) for pair in pairs]
    except TypeError:
        msg = (
            f"Expected `rectangles` to be a list of pairs (min_tpr, max_fpr), such as [(0.7, 0.3)], but got {pairs!r}."
        )
        raise ArgumentError(msg) from None
    return [Rectangle(*check_rectangle(*rectangle)) for rectangle in rectangles]


def metric_name(rectangle: Rectangle) -> str:
    """Name under which a rectangle is logged, in percent; the trained one is logged as ``tpauc`` anyway.

    Neither module names nor the fields of a checkpoint's file name may hold a dot; ``p`` stands for it.

    Example:
        >>> metric_name(Rectangle(0.25, 0.75)), metric_name(Rectangle(0.5, 0.125))
        ('tpauc_tpr25_fpr75', 'tpauc_tpr50_fpr12p5')
    """
    tpr, fpr = (f"{100 * bound:.6g}".replace(".", "p") for bound in rectangle)
    return f"tpauc_tpr{tpr}_fpr{fpr}"


def build_metrics(
    trained: Rectangle, others: Sequence[Rectangle], log_objective: bool, surrogate: Surrogate | None, prefix: str
) -> MetricCollection:
    """Metrics over one shared store of scores: ``tpauc``, further rectangles, ``auroc`` and, if asked, ``objective``.

    Args:
        trained: the rectangle that training maximises.
        others: rectangles to report by their names; the trained one may be among them.
        log_objective: whether to report the exact training objective.
        surrogate: the objective's surrogate; squared hinge if ``None``.
        prefix: ``"val/"`` or ``"test/"``.
    """
    metrics: dict[str, Metric] = {"tpauc": _tpauc(trained), "auroc": _tpauc(Rectangle(0.0, 1.0))}
    metrics.update({metric_name(rectangle): _tpauc(rectangle) for rectangle in others})
    if log_objective:
        metrics["objective"] = ExactObjective(*trained, surrogate=surrogate or "squared_hinge", ignore_index=IGNORED)
    return MetricCollection(dict(metrics), prefix=prefix)


def inputs_and_target(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch for validation or test.

    Args:
        batch: an :class:`~lightning_tpauc.data.batch.EvalBatch`, or what the loader of a data set of pairs gives:
            ``(inputs, target)``, whatever follows. The target may have any shape with N entries; floats 0.0 and 1.0
            are labels, too.

    Returns:
        The inputs, and an integer tensor ``(N,)``.

    Raises:
        ArgumentError: if the batch is nothing of the kind or a label is a fraction.

    Example:
        >>> import torch
        >>> inputs_and_target([torch.zeros(2, 3), torch.tensor([[1.0], [0.0]])])[1]
        tensor([1, 0])
    """
    if not isinstance(batch, (tuple, list)) or len(batch) < 2 or not isinstance(batch[1], Tensor):
        kinds = f" of {', '.join(type(part).__name__ for part in batch)}" if isinstance(batch, (tuple, list)) else ""
        msg = (
            f"Expected batches (inputs, target) to validate and test on, but got a {type(batch).__name__}{kinds}. Let "
            "the data set return such pairs, or give it to PosNegDataModule, which takes mappings and PyG graphs, too."
        )
        raise ArgumentError(msg)
    target = batch[1].reshape(-1)
    labels = target.long() if target.is_floating_point() else target
    if labels is not target and not bool((labels == target).all()):
        found = target[labels != target][0].item()
        msg = f"Expected labels 0 and 1 in the batches, but found {found:g}. Pass, for instance, (y > 0.5) as labels."
        raise ArgumentError(msg)
    return batch[0], labels


def _tpauc(rectangle: Rectangle) -> TwoWayPartialAUROC:
    return TwoWayPartialAUROC(*rectangle, ignore_index=IGNORED)
