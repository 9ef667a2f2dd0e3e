"""What checkpoints hold of hyperparameters, and whether it can be read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.core.mixins import hparams_mixin
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.lightning_fixes.plain_values import make_plain

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ("check_savable", "leave_out_objects", "save_cli_hyperparameters")


def save_cli_hyperparameters(module: LightningModule) -> None:
    """Keep the configuration that LightningCLI built the module from, so that ``load_from_checkpoint`` can rebuild it.

    Outside the command line nothing is saved: modules and optimizer factories are no hyperparameters, and a subclass
    saves its own with ``self.save_hyperparameters()``.
    """
    given = getattr(hparams_mixin, "_given_hyperparameters", None)
    if given is not None and given.get() is not None:
        module.save_hyperparameters()


def check_savable(trainer: Trainer) -> None:
    """Look at the beginning at what checkpoints will hold from the beginning, if any will be saved.

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
    """Hyperparameters that are objects would make the file unreadable with ``weights_only=True``.

    ``save_hyperparameters()`` of a subclass, or of a class mixed in, collects our arguments with its own. A backbone's
    weights are in ``state_dict``; such arguments are passed again to ``load_from_checkpoint``.
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
    """Functions and classes may have a default that fits the weights and still computes something else.

    Those that make optimizer and scheduler change nothing of what a trained model computes.
    """
    trains = {"optimizer", "lr_scheduler"}
    lost = [
        f"`{name}` ({getattr(value, '__name__', type(value).__name__)})"
        for name, value in hyperparameters.items()
        if callable(value) and not isinstance(value, (Algorithm, nn.Module)) and name not in trains
    ]
    if lost:
        rank_zero_warn(
            f"Checkpoints hold no functions and classes, and not the hyperparameter {', '.join(lost)}: "
            "`load_from_checkpoint` would take its default. Pass it there again, or make it a name, such as 'relu'.",
            category=TPAUCWarning,
        )
