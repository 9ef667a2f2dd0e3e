"""What ``torch.compile`` changes around a module: how its steps run, and what its weights are called."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch import LightningModule
from torch import nn

#: Attribute under which ``torch.compile`` keeps the module that it wraps.
_WRAPPED = "_orig_mod"
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")

T = TypeVar("T")


def compile_model_alone(module: LightningModule) -> None:
    """Leave only ``forward`` compiled in a module that a Trainer was given as ``torch.compile(module)``.

    Lightning compiles the steps as well. They change state that a compiled backward pass reads later, so the gradients
    would be wrong. Little is lost, since a step adds only a few sorts to the model's own work.
    """
    context: Any = module._compiler_ctx
    for step in _STEPS if context is not None else ():
        setattr(module, step, context[f"original_{step}"])


def own_names(module: nn.Module, state: dict[str, T]) -> dict[str, T]:
    """Rename the entries of a ``state_dict`` to those of ``module``; either may have compiled parts.

    Example:
        >>> from torch import nn
        >>> own_names(nn.Sequential(nn.Linear(3, 1)), {"0._orig_mod.weight": 5})
        {'0.weight': 5}
    """
    own = {_plain(name): name for name, _ in module.named_modules(remove_duplicate=False)}
    return {_own_name(own, name): value for name, value in state.items()}


def _own_name(own: dict[str, str], name: str) -> str:
    path, _, leaf = _plain(name).rpartition(".")
    found = own.get(path)
    return name if found is None else f"{found}.{leaf}" if found else leaf


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _WRAPPED)
