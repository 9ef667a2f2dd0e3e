"""Optimizers that do not fit how Lightning steps and loads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ("accept_closure", "restore_dtypes")


def accept_closure(optimizer: Optimizer) -> None:
    """Let ``step`` of an optimizer take a closure, which Lightning passes to every optimizer.

    Example:
        >>> import torch
        >>> class Plain(Optimizer):
        ...     def step(self):
        ...         print("stepped")
        >>> plain = Plain([torch.zeros(1)], {})
        >>> accept_closure(plain)
        >>> plain.step(closure=lambda: 5.0)
        stepped
        5.0
    """
    step: Any = optimizer.step
    try:
        # Look at the class: a scheduler wraps the method of the instance, and the wrapper has another signature.
        inspect.signature(type(optimizer).step).bind(optimizer, closure=None)
    except TypeError:

        def with_closure(closure: Callable[[], Any] | None = None) -> Any:
            result = closure() if closure is not None else None
            step()
            return result

        # schedulers mark the method, and warn if the mark is missing
        vars(with_closure).update(getattr(step, "__dict__", {}))
        optimizer.step = with_closure  # type: ignore[method-assign]


def restore_dtypes(optimizer: Optimizer, states: list[dict[str, Any]] | None) -> None:
    """Give an optimizer's state the dtypes back that it was saved with.

    ``Optimizer.load_state_dict`` casts everything but ``step`` to the dtype of its parameter. Some entries are kept in
    float32 whatever the parameter's dtype is, such as NAdam's ``mu_product`` and ASGD's ``eta`` and ``mu``.
    """
    saved = (states or [{}])[0].get("state", {})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, parameter in enumerate(parameters):  # sharded ones are saved by name, and loaded by torch's own function
        for name, value in saved.get(k, {}).items():
            own = optimizer.state[parameter].get(name)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and own.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(own.device, copy=True)
