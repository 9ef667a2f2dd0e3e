"""Warnings that appear once, not once per process."""

from __future__ import annotations

import warnings

from torch import distributed

from lightning_tpauc.errors import TPAUCWarning

__all__ = ("warn_on_rank_zero",)


def warn_on_rank_zero(message: str) -> None:
    """Emit a :class:`TPAUCWarning` on rank 0, or in the only process.

    Python's default filter shows equal messages once, so a ``message`` without changing numbers appears once per run.
    """
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0:
        return
    warnings.warn(message, TPAUCWarning, stacklevel=2)
