"""Optimizers that Lightning's ways of stepping and loading do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

__all__ = ("accept_closure", "restore_dtypes")


def accept_closure(optimizer: Optimizer) -> None:
    """Let an optimizer whose ``step`` takes no closure have one, as Lightning passes it to every optimizer.

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
        # of the class: a scheduler puts a wrapper in its place that has the signature of the unbound function
        inspect.signature(type(optimizer).step).bind(optimizer, closure=None)
    except TypeError:

        def with_closure(closure: Callable[[], Any] | None = None) -> Any:
            result = closure() if closure is not None else None
            step()
            return result

        vars(with_closure).update(getattr(step, "__dict__", {}))  # a scheduler's mark, or it would warn
        optimizer.step = with_closure  # type: ignore[method-assign]


def restore_dtypes(optimizer: Optimizer, states: list[dict[str, Any]] | None) -> None:
    """Undo the casts of ``Optimizer.load_state_dict``, which gives all but ``step`` the dtype of its parameter.

    What is no moment of the gradient is kept in float32 whatever the parameter is: NAdam's ``mu_product``, ASGD's
    ``eta`` and ``mu``.
    """
    saved = (states or [{}])[0].get("state", {})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, parameter in enumerate(parameters):  # sharded ones are saved by name, and loaded by torch's own function
        for name, value in saved.get(k, {}).items():
            own = optimizer.state[parameter].get(name)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and own.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(own.device, copy=True)
