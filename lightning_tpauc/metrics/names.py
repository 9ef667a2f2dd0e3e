"""Names under which validation and test log what they measure, as callbacks and schedulers monitor them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

__all__ = ("better_mode", "is_ours", "validated_areas")

_LARGER = r"(val|test)/(auroc|tpr_at_max_fpr|tpauc(_tpr[0-9p]+_fpr[0-9p]+)?)(/.+)?"
_SMALLER = r"(val|test)/(objective|fpr_at_min_tpr)(/.+)?"


def better_mode(name: str) -> Literal["max", "min"] | None:
    """Whether a larger or a smaller value is better, of any rectangle and of any of several data loaders.

    Returns:
        As ``mode`` of a callback or scheduler; ``None`` for what others log.

    Example:
        >>> [better_mode(name) for name in ("val/tpauc", "test/tpauc_tpr25_fpr75", "val/objective", "val/auroc_loss")]
        ['max', 'max', 'min', None]
    """
    if re.fullmatch(_LARGER, name):
        return "max"
    return "min" if re.fullmatch(_SMALLER, name) else None


def is_ours(name: str) -> bool:
    """Whether a validation of ours logs it.

    Example:
        >>> is_ours("val/objective"), is_ours("val/loss")
        (True, False)
    """
    return name.startswith("val/") and better_mode(name) is not None


def validated_areas(metrics: Mapping[str, Any]) -> tuple[float, float]:
    """``val/tpauc`` and ``val/auroc``, of the first of several data loaders; nan where there is none.

    Example:
        >>> validated_areas({"val/tpauc/dataloader_idx_0": 0.5, "val/auroc/dataloader_idx_0": 0.75})
        (0.5, 0.75)
    """
    names = [(f"val/{area}", f"val/{area}/dataloader_idx_0") for area in ("tpauc", "auroc")]
    tpauc, auroc = (float(metrics.get(one, metrics.get(other, math.nan))) for one, other in names)
    return tpauc, auroc
