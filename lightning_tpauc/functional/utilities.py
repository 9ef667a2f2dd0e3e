"""Code that must not become part of a compiled graph, and warnings that appear once, not once per process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import distributed

from lightning_tpauc.errors import TPAUCWarning

F = TypeVar("F", bound=Callable[..., object])

_SILENT = ContextVar("_SILENT", default=False)


def eager(function: F) -> F:
    """Keep ``function`` out of compiled graphs: compiled code interrupts its graph and calls the function as it is.

    Two kinds of functions need this. No graph can hold one that sorts with NumPy or branches on values, as metrics do.
    A function that changes state in place would make gradients silently wrong: a compiled backward pass reads tensors
    when it runs, after they have changed.
    """
    kept: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return kept


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise dtype of a device: float64, which Apple's GPUs do not have.

    Example:
        >>> widest_float(torch.device("cpu")), widest_float(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64


def warn_on_rank_zero(message: str) -> None:
    """Emit a :class:`TPAUCWarning` on rank 0, or in the only process.

    Python's default filter shows equal messages once, so a ``message`` without changing numbers appears once per run.
    """
    if _SILENT.get():
        return
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0:
        return
    warnings.warn(message, TPAUCWarning, stacklevel=2)


@contextmanager
def silent() -> Iterator[None]:
    """Keep :func:`warn_on_rank_zero` quiet.

    ``warnings.catch_warnings`` would do so, too, but Python then repeats, each time, all warnings that it shows once.
    """
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
