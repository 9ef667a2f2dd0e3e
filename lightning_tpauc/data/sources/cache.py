"""Where parsed data are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("default_cache_dir",)


def default_cache_dir() -> Path:
    """``lightning_tpauc`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``.

    Example:
        >>> default_cache_dir().name
        'lightning_tpauc'
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_tpauc"
