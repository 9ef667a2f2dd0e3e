"""Names under which validation and test log what they measure, as callbacks and schedulers monitor them."""

from __future__ import annotations

import re

__all__ = ("is_area", "is_ours")

_AREA = r"(val|test)/(auroc|tpauc(_tpr[0-9p]+_fpr[0-9p]+)?)(/.+)?"


def is_area(name: str) -> bool:
    """Whether larger is better: an area, of any rectangle and of any of several data loaders.

    Example:
        >>> [is_area(name) for name in ("val/tpauc", "test/tpauc_tpr25_fpr75", "val/objective", "val/auroc_loss")]
        [True, True, False, False]
    """
    return re.fullmatch(_AREA, name) is not None


def is_ours(name: str) -> bool:
    """Whether a validation of ours logs it.

    Example:
        >>> is_ours("val/objective"), is_ours("val/loss")
        (True, False)
    """
    return name.startswith("val/") and (is_area(name) or re.fullmatch(r"val/objective(/.+)?", name) is not None)
