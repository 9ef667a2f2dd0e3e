"""Names of the logged metrics of validation and test, which callbacks and schedulers monitor."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

__all__ = ("better_mode", "is_ours", "passes_below", "validated_areas")

_AT_THRESHOLD = "(sensitivity|specificity|precision)_at_threshold"
_LARGER = rf"(val|test)/(auroc|tpr_at_max_fpr|{_AT_THRESHOLD}|tpauc(_tpr[0-9p]+_fpr[0-9p]+)?)(/.+)?"
_SMALLER = r"(val|test)/(objective|fpr_at_min_tpr)(/.+)?"


def better_mode(name: str) -> Literal["max", "min"] | None:
    """Whether a larger or a smaller value of a metric is better, for any rectangle and any data loader.

    Returns:
        The ``mode`` of a callback or scheduler; ``None`` for metrics that are not ours.

    Example:
        >>> [better_mode(name) for name in ("val/tpauc", "test/tpauc_tpr25_fpr75", "val/objective", "val/auroc_loss")]
        ['max', 'max', 'min', None]
    """
    if re.fullmatch(_LARGER, name):
        return "max"
    return "min" if re.fullmatch(_SMALLER, name) else None


def is_ours(name: str) -> bool:
    """Whether our validation logs a metric of this name.

    Example:
        >>> is_ours("val/objective"), is_ours("val/loss")
        (True, False)
    """
    return name.startswith("val/") and better_mode(name) is not None


def validated_areas(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """``val/tpauc`` and ``val/auroc`` of the first data loader; nan if they were not logged.

    Example:
        >>> validated_areas({"val/tpauc/dataloader_idx_0": 0.5, "val/auroc/dataloader_idx_0": 0.75})
        (0.5, 0.75)
    """
    names = [(f"val/{area}", f"val/{area}/dataloader_idx_0") for area in ("tpauc", "auroc")]
    tpauc, auroc = (float(metrics.get(one, metrics.get(other, math.nan))) for one, other in names)
    return tpauc, auroc


def passes_below(tpr: float, min_tpr: float, max_fpr: float) -> str:
    """What an area of 0 means: how high the ROC curve comes at the rectangle's right border.

    Args:
        tpr: the true positive rate at ``max_fpr``.
        min_tpr: lower bound of the true positive rate.
        max_fpr: upper bound of the false positive rate.

    Example:
        >>> passes_below(0.7132, 0.8, 0.2)
        'the ROC curve passes below the rectangle (TPR 0.71 at FPR 0.2, demanded 0.8)'
    """
    return f"the ROC curve passes below the rectangle (TPR {tpr:.2g} at FPR {max_fpr:g}, demanded {min_tpr:g})"
