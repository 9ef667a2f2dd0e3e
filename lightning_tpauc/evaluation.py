"""What validation and test report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchmetrics import Metric, MetricCollection

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.metrics import ExactObjective, TwoWayPartialAUROC

__all__ = ("IGNORED", "Rectangle", "as_rectangles", "build_metrics", "metric_name")

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
    for rectangle in rectangles:
        check_rectangle(*rectangle)
    return rectangles


def metric_name(rectangle: Rectangle) -> str:
    """Name under which a rectangle other than the trained one is logged, in percent.

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
        others: rectangles to report beside it.
        log_objective: whether to report the exact training objective.
        surrogate: the objective's surrogate; squared hinge if ``None``.
        prefix: ``"val/"`` or ``"test/"``.
    """
    metrics: dict[str, Metric] = {"tpauc": _tpauc(trained), "auroc": _tpauc(Rectangle(0.0, 1.0))}
    metrics.update({metric_name(rectangle): _tpauc(rectangle) for rectangle in others if rectangle != trained})
    if log_objective:
        metrics["objective"] = ExactObjective(*trained, surrogate=surrogate or "squared_hinge", ignore_index=IGNORED)
    return MetricCollection(dict(metrics), prefix=prefix)


def _tpauc(rectangle: Rectangle) -> TwoWayPartialAUROC:
    return TwoWayPartialAUROC(*rectangle, ignore_index=IGNORED)
