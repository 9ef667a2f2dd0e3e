"""The hyperparameters of a run: what loggers are shown, what checkpoints hold, and whether it can be read back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.mixins import hparams_mixin
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.data.datamodule import SAMPLING_ARGUMENTS
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.functional.surrogates import Surrogate
from lightning_tpauc.lightning_fixes.plain_values import make_plain
from lightning_tpauc.training.trained_module import TrainedModule

_OF_MODULE = ("score_activation", "gradient_clip_val", "lr_scheduler_interval")


def offer_hyperparameters(trainer: Trainer, module: TrainedModule) -> None:
    """Add algorithm, optimizer and sampling to the hyperparameters that Lightning is about to log.

    Hyperparameters of the module or the data module with the same names win. Checkpoints do not change.
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
    found["tasks"] = {str(label): dict(own) for label, own in module.label_settings.items()}
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


def save_cli_hyperparameters(module: LightningModule) -> None:
    """Keep the configuration that LightningCLI built the module from, so that ``load_from_checkpoint`` can rebuild it.

    Outside the command line nothing is saved: modules and optimizer factories are no hyperparameters, and a subclass
    saves its own with ``self.save_hyperparameters()``.
    """
    given = getattr(hparams_mixin, "_given_hyperparameters", None)
    if given is not None and given.get() is not None:
        module.save_hyperparameters()


def check_savable(trainer: Trainer) -> None:
    """Check before training that the settings in checkpoints can be read back, if any checkpoint will be saved.

    Raises:
        CheckpointError: if hyperparameters, or settings of the optimizer or the schedulers, can't be read back.
    """
    if not trainer.checkpoint_callbacks:
        return
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    held = {
        "hyper_parameters": dict(trainer.lightning_module.hparams),
        "datamodule_hyper_parameters": dict(getattr(datamodule, "hparams", None) or {}),
        "optimizer_states": [
            {"param_groups": [{name: v for name, v in group.items() if name != "params"} for group in o.param_groups]}
            for o in trainer.optimizers
        ],
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
    }
    leave_out_objects(held)
    make_plain(held)


def leave_out_objects(checkpoint: dict[str, Any]) -> None:
    """Leave out hyperparameters that are objects: ``weights_only=True`` could not read a file that holds them.

    ``save_hyperparameters()`` of a subclass, or of a class mixed in, collects our arguments with its own. A backbone's
    weights are in ``state_dict``. The user passes such arguments again to ``load_from_checkpoint``.
    """
    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        hyperparameters = checkpoint.get(key)
        if isinstance(hyperparameters, dict):
            _warn_of_defaults(hyperparameters if key == "hyper_parameters" else {})
            checkpoint[key] = {
                name: value
                for name, value in hyperparameters.items()
                if not isinstance(value, (Algorithm, nn.Module, Dataset, DataLoader)) and not callable(value)
            }


def _warn_of_defaults(hyperparameters: dict[str, Any]) -> None:
    """Warn of functions and classes that are left out, since the default in their place may compute something else.

    Functions that make the optimizer or the scheduler are no reason to warn: a trained model does not use them.
    """
    trains = {"optimizer", "lr_scheduler"}
    lost = [
        f"`{name}` ({getattr(value, '__name__', type(value).__name__)})"
        for name, value in hyperparameters.items()
        if callable(value) and not isinstance(value, (Algorithm, nn.Module)) and name not in trains
    ]
    if lost:
        rank_zero_warn(
            f"Checkpoints can't hold functions or classes, so they leave out the hyperparameter {', '.join(lost)}: "
            "`load_from_checkpoint` would take its default. Pass it there again, or make it a name, such as 'relu'.",
            category=TPAUCWarning,
        )
