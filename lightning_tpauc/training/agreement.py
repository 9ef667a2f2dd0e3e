"""Checks that all processes of a run have the same data and settings, before they could act differently.

A difference would mix validation rows into training, or leave a process waiting for batches that another one lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_tpauc.distributed import gather_objects, world_size
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.training.trained_module import TrainedModule

#: Attributes of a Trainer that decide how many batches and passes there are.
_LIMITS = (
    "max_epochs",
    "max_steps",
    "min_epochs",
    "min_steps",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "num_sanity_val_steps",
    "precision",
)
#: Attributes of a module that all ranks must share.
_SETTINGS = ("score_activation", "gradient_clip_val", "lr_scheduler_interval", "warmup", "num_positives")


#: The address in the default ``repr`` of an object.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def require_agreement(describe: Callable[[], dict[str, Any]]) -> None:
    """Compare the descriptions of all ranks; a collective, in which a rank takes part even if ``describe`` fails.

    Args:
        describe: returns values by name, which are compared by their ``repr``.

    Raises:
        ArgumentError: on every rank, if ranks differ. The message says what differs and which rank has which value.
    """
    if world_size() == 1:
        return
    failure: Exception | None = None
    own: dict[str, str] = {}
    try:
        own = {name: _ADDRESS.sub("", repr(value)) for name, value in describe().items()}
    except Exception as error:  # raised again below, when the other ranks know of it
        failure = error
    said: list[tuple[str, dict[str, str]]] = gather_objects(("" if failure is None else str(failure), own))
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(said) if text]
    if failed:
        msg = f"Other processes of this run failed: {'; '.join(failed)}"
        raise ArgumentError(msg)
    differing = [text for name in own if (text := _difference(name, [found.get(name) for _, found in said]))]
    if differing:
        msg = (
            f"The processes of this run differ in what they must share: {'; '.join(differing)}. Give all of them the "
            "same data and arguments: seed what is drawn at random (splits, generated data), and derive none from the "
            "rank. The data module divides the batches among them by itself."
        )
        raise ArgumentError(msg)


def data_and_limits(trainer: Trainer, stage: str) -> dict[str, Any]:
    """What must be the same on all ranks before batches are drawn: data, their arguments, and the Trainer's limits."""
    datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # Trainer sets it at run time
    data = datamodule.description(TrainerFn(stage).value) if hasattr(datamodule, "description") else {}
    return {
        "data module": type(datamodule).__name__,
        **data,
        **{f"Trainer({name})": getattr(trainer, name) for name in _LIMITS},
    }


def training_settings(trainer: Trainer, module: TrainedModule, stages: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on all ranks before the first step: algorithm, optimizer, schedules and starting point."""
    optimizer = trainer.optimizers[0]
    groups = [{name: _plain(v) for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
    return {
        "algorithm": module.algorithm,
        "labels": module.trained_labels,
        **{f"`{name}`": getattr(module, name, None) for name in _SETTINGS},
        "optimizer": (type(optimizer).__name__, groups),
        "lr_scheduler": [(type(c.scheduler).__name__, c.interval, c.frequency) for c in trainer.lr_scheduler_configs],
        "stages": stages,
        "init_from": getattr(module, "init_from", None) is not None,
        "steps of the checkpoint": module.batches_seen,
    }


def _difference(name: str, values: list[str | None]) -> str:
    """Which ranks have which value; empty if all have the same."""
    ranks: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if len(ranks) == 1:
        return ""
    return f"{name}: " + ", ".join(f"{value} on rank {' and '.join(map(str, who))}" for value, who in ranks.items())


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value
