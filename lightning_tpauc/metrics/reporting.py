"""The metrics that validation and test report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.metrics.base import ScoreMetric
from lightning_tpauc.metrics.objective import ExactObjective
from lightning_tpauc.metrics.operating_points import FPRAtMinTPR, TPRAtMaxFPR
from lightning_tpauc.metrics.tpauc import TwoWayPartialAUROC

__all__ = (
    "IGNORED",
    "Rectangle",
    "as_rectangles",
    "build_metrics",
    "gathered_scores",
    "metric_name",
)

#: Target of rows that metrics leave out; see :class:`~lightning_tpauc.data.core.batch.EvalBatch`.
IGNORED = -1
#: Names of what is logged beside the metrics, and of one that is not.
_TAKEN = ("loss", "objective_ratios", "threshold")


class Rectangle(NamedTuple):
    """Lower bound of the true positive rate and upper bound of the false positive rate."""

    min_tpr: float
    max_fpr: float


def as_rectangles(pairs: Any) -> list[Rectangle]:
    """Check the argument ``rectangles``.

    Raises:
        ArgumentError: if it is no sequence of pairs of numbers, or if a rectangle is not inside the unit square.

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
    """Name under which a rectangle's area is logged, with the bounds in percent; the trained one's is also ``tpauc``.

    ``p`` stands for the decimal point, since names of modules and fields of a checkpoint's file name can't hold a dot.

    Example:
        >>> metric_name(Rectangle(0.25, 0.75)), metric_name(Rectangle(0.5, 0.125))
        ('tpauc_tpr25_fpr75', 'tpauc_tpr50_fpr12p5')
    """
    tpr, fpr = (f"{100 * bound:.6g}".replace(".", "p") for bound in rectangle)
    return f"tpauc_tpr{tpr}_fpr{fpr}"


def build_metrics(
    trained: Rectangle,
    others: Sequence[Rectangle],
    log_objective: bool,
    surrogate: Surrogate | None,
    score_activation: Literal["identity", "sigmoid"] | None,
    prefix: str,
    further: Mapping[str, Metric] | None = None,
) -> MetricCollection:
    """Metrics over one shared store of scores.

    They are the area ``tpauc`` in the trained rectangle and in others, ``auroc``, the points at which the ROC curve
    crosses the trained rectangle's borders (``tpr_at_max_fpr``, ``fpr_at_min_tpr``) and, if asked, ``objective``.

    Args:
        trained: the rectangle that training maximises.
        others: rectangles to report by their names; the trained one may be among them.
        log_objective: whether to report the exact training objective.
        surrogate: the objective's surrogate; squared hinge if ``None``.
        score_activation: what the objective applies to the raw scores, as training does; ``None`` if updates pass
            ``algorithm_scores``.
        prefix: ``"val/"`` or ``"test/"``.
        further: other metrics to report, by name; each collection has its own copies.

    Raises:
        ArgumentError: if one of these has a name of ours.
    """
    metrics: dict[str, Metric] = {"tpauc": _tpauc(trained), "auroc": _tpauc(Rectangle(0.0, 1.0))}
    metrics["tpr_at_max_fpr"] = TPRAtMaxFPR(trained.max_fpr, ignore_index=IGNORED)
    metrics["fpr_at_min_tpr"] = FPRAtMinTPR(trained.min_tpr, ignore_index=IGNORED)
    metrics.update({metric_name(rectangle): _tpauc(rectangle) for rectangle in others})
    if log_objective:
        metrics["objective"] = ExactObjective(
            *trained,
            surrogate=surrogate or "squared_hinge",
            score_activation=score_activation,
            ignore_index=IGNORED,
        )
    taken = sorted({*metrics, *_TAKEN} & {*(further or {})})
    if taken:
        msg = f"`metrics` has {taken[0]!r}, a name that ours are logged under. Give it another: `{{'mine': metric}}`."
        raise ArgumentError(msg)
    metrics.update({name: metric.clone() for name, metric in (further or {}).items()})
    return MetricCollection(dict(metrics), prefix=prefix)


def gathered_scores(metrics: MetricCollection) -> tuple[Tensor, Tensor]:
    """Scores and labels that :func:`build_metrics`' metrics have collected, of all processes; a collective.

    Example:
        >>> import torch
        >>> metrics = build_metrics(Rectangle(0.5, 0.5), (), False, None, "identity", "val/")
        >>> metrics.update(torch.tensor([2.0, 1.0]), torch.tensor([1, 0]))
        >>> gathered_scores(metrics)
        (tensor([2., 1.]), tensor([1, 0], dtype=torch.int8))
    """
    return next(m for m in metrics.values(copy_state=False) if isinstance(m, ScoreMetric)).gathered()


def _tpauc(rectangle: Rectangle) -> TwoWayPartialAUROC:
    return TwoWayPartialAUROC(*rectangle, ignore_index=IGNORED)
