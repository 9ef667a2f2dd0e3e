"""Nested containers as one dictionary of tensors, to be compared one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def flat(value: Any, name: str = "") -> dict[str, Tensor]:
    """Nested containers as one dictionary of tensors; what is no number is left out."""
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in flat(item, f"{name}/{key}").items()}
    return {name: torch.as_tensor(value).clone()} if isinstance(value, (bool, int, float, Tensor)) else {}
