"""Loading weights of another run or model, with an error in one line if they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lightning_tpauc.distributed.fsdp import assign
from lightning_tpauc.errors import CheckpointError
from lightning_tpauc.lightning_fixes.checkpoint_files import read_weights
from lightning_tpauc.lightning_fixes.compiled import own_names

__all__ = ("describe_misfit", "load_state", "load_weights")


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load the weights of another run's checkpoint, or of a ``state_dict``, into a module (fine-tuning).

    Nothing else of a checkpoint is read. A ``state_dict`` may be the module's or its ``backbone``'s.

    Raises:
        CheckpointError: if the file can't be read or its weights do not fit the model.
    """
    try:
        weights = own_names(module, read_weights(path))
    except CheckpointError as error:
        msg = f"`init_from={str(path)!r}` can't be used: {error}."
        raise type(error)(msg) from error
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    of_backbone = own_names(module, {f"backbone.{name}": value for name, value in weights.items()})
    if not own.keys() & weights.keys() and own.keys() & of_backbone.keys():
        weights = of_backbone
    misfit = describe_misfit(own, weights)
    if misfit:
        msg = (
            f"The weights of `init_from={str(path)!r}` do not fit {type(module).__name__}: {misfit}. Use the model "
            "that wrote the file."
        )
        raise CheckpointError(msg)
    with torch.no_grad():
        assign(own.values(), [weights[name] for name in own])


def load_state(module: nn.Module, load: Callable[[], Any], state: Any) -> Any:
    """Let torch load a ``state_dict``, and turn its error into one line.

    Args:
        module: the module that gets the weights.
        load: loads them.
        state: the ``state_dict``.

    Raises:
        CheckpointError: if weights are missing, unknown, or of another shape.
    """
    try:
        return load()
    except (RuntimeError, TypeError) as error:
        if isinstance(state, Mapping):
            what = describe_misfit(module.state_dict(), own_names(module, dict(state)))
        else:
            what = f"expected weights by name, but got a {type(state).__name__}"
        if not what:
            raise
        backbone = getattr(module, "backbone", None)
        backbone = getattr(backbone, "_orig_mod", backbone)  # compiled
        name = type(module).__name__ + (f" with {type(backbone).__name__}" if backbone is not None else "")
        msg = f"The checkpoint's weights do not fit {name}: {what}. Use the model that wrote the checkpoint."
        raise CheckpointError(msg) from error


def describe_misfit(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str:
    """Describe how weights differ from a model's own ``state_dict``; empty if they fit.

    Example:
        >>> describe_misfit({"w": torch.zeros(2), "b": torch.zeros(1)}, {"w": torch.zeros(3), "c": torch.zeros(1)})
        "it lacks 'b'; it adds 'c'; 'w' has shape (3,) instead of (2,)"
    """
    findings = (
        ("it lacks {}", sorted(map(repr, own.keys() - weights.keys()))),
        ("it adds {}", sorted(map(repr, weights.keys() - own.keys()))),
        ("{}", [_other_kind(name, own[name], weights[name]) for name in own if name in weights]),
    )
    said = []
    for text, names in findings:
        found = [name for name in names if name]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        if found:
            said.append(text.format(", ".join(found[:3]) + more))
    return "; ".join(said)


def _other_kind(name: str, own: Any, value: Any) -> str:
    if not isinstance(own, Tensor) or is_lazy(own):
        return ""
    if not isinstance(value, Tensor):
        return f"{name!r} is a {type(value).__name__}"
    return f"{name!r} has shape {tuple(value.shape)} instead of {tuple(own.shape)}" if own.shape != value.shape else ""
