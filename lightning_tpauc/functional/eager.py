"""Code that must not become part of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ("eager",)

F = TypeVar("F", bound=Callable[..., object])


def eager(function: F) -> F:
    """Run ``function`` as it is inside of compiled code, which breaks its graph there.

    For a function that sorts with NumPy or branches on what it counted, as metrics do: no graph holds that. And for one
    that changes state in place: a compiled backward pass reads tensors when it runs, also those that have been changed
    since the forward pass, and its gradients would be wrong in silence.
    """
    kept: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return kept
