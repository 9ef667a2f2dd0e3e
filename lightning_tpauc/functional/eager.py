"""Code that must not become part of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ("eager",)

F = TypeVar("F", bound=Callable[..., object])


def eager(function: F) -> F:
    """Keep ``function`` out of compiled graphs: compiled code interrupts its graph and calls the function as it is.

    Two kinds of functions need this. No graph can hold one that sorts with NumPy or branches on values, as metrics do.
    A function that changes state in place would make gradients silently wrong: a compiled backward pass reads tensors
    when it runs, after they have changed.
    """
    kept: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return kept
