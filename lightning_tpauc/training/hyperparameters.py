"""The settings of a run, for loggers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.fabric.utilities.data import AttributeDict
from torch import Tensor

from lightning_tpauc.data.datamodule import SAMPLING_ARGUMENTS
from lightning_tpauc.functional.surrogates import Surrogate

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.training.trained_module import TrainedModule

__all__ = ("offer_hyperparameters",)

_OF_MODULE = ("score_activation", "gradient_clip_val", "lr_scheduler_interval")


def offer_hyperparameters(trainer: Trainer, module: TrainedModule) -> None:
    """Add algorithm, optimizer and sampling to the hyperparameters that Lightning is about to log.

    Hyperparameters of the module or the data module with the same names win. Checkpoints do not change.

    Args:
        trainer: has its optimizers, and logs afterwards.
        module: the module that is trained.
    """
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    own, offered = getattr(module, "offered_hparams", ({}, None))
    if offered is None or module._hparams_initial is not offered:  # not what an earlier run put there
        own = dict(module.hparams_initial) if module._log_hyperparams else {}
    elsewhere = dict(getattr(datamodule, "hparams_initial", None) or {})
    algorithm, optimizer = module.algorithm, trainer.optimizers[0]
    arguments = inspect.signature(type(algorithm)).parameters
    found: dict[str, Any] = {
        "algorithm": {"name": type(algorithm).__name__, **_simple({n: getattr(algorithm, n, None) for n in arguments})},
        "optimizer": {"name": type(optimizer).__name__, **_simple(optimizer.param_groups[0])},
        "sampler": _simple({name: getattr(datamodule, name, None) for name in SAMPLING_ARGUMENTS}),
        **_simple({name: getattr(module, name, None) for name in _OF_MODULE}),
    }
    schedulers = [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]
    if schedulers:
        found["lr_scheduler"] = schedulers[0]
    new = {name: value for name, value in found.items() if value != {} and name not in elsewhere}
    module._hparams_initial = AttributeDict({**new, **own})
    module._log_hyperparams = True
    module.offered_hparams = (own, module._hparams_initial)


def _simple(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that loggers can show: numbers, words, and lists of them."""
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if isinstance(value, (bool, int, float, str, list))}


def _plain(value: Any) -> Any:
    if isinstance(value, Surrogate):
        return value.name
    if isinstance(value, Tensor) and value.numel() > 1:
        return None
    if isinstance(value, (Tensor, np.generic)):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [*value] if all(isinstance(entry, (bool, int, float, str)) for entry in value) else None
    return value
