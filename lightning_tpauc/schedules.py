"""Optimizer and learning-rate schedulers; under manual optimization Lightning keeps but never steps the latter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_tpauc.errors import ArgumentError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

__all__ = ("make_optimizer", "monitored", "step_plateau_schedulers", "step_schedulers")


def step_schedulers(trainer: Trainer, batches_seen: int, *, skipped: bool = False) -> None:
    """Step what is due after a batch: ``interval="step"``, and ``"epoch"`` after the epoch's last batch.

    A batch whose step a gradient scaler ``skipped`` is none to a schedule by steps; the epoch is over all the same.

    Epoch schedulers step here and not at the epoch's end so that a checkpoint of the last batch already holds them.
    """
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            continue
        if config.interval == "step":
            due = not skipped and batches_seen % config.frequency == 0
        else:
            due = trainer.is_last_batch and (trainer.current_epoch + 1) % config.frequency == 0
        if due:
            config.scheduler.step()


def step_plateau_schedulers(trainer: Trainer) -> None:
    """Step ``ReduceLROnPlateau`` with the metric it monitors, after a validation epoch."""
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            name = monitored(config.scheduler)
            if name in trainer.callback_metrics:
                config.scheduler.step(float(trainer.callback_metrics[name]))


def monitored(scheduler: ReduceLROnPlateau) -> str:
    """The metric that a plateau scheduler follows: its ``monitor`` (LightningCLI's class has one), else ``val/tpauc``.

    Raises:
        ArgumentError: if it waits for an area to fall.
    """
    name: str = getattr(scheduler, "monitor", "val/tpauc")
    if scheduler.mode == "min" and ("tpauc" in name or "auroc" in name):
        msg = f"ReduceLROnPlateau(mode='min') would wait for {name!r} to fall; pass `mode='max'`."
        raise ArgumentError(msg)
    return name


def make_optimizer(factory: Any, parameters: list[nn.Parameter]) -> Optimizer:
    """The optimizer of ``factory``, or SGD with learning rate 0.1 if that is ``None``.

    Raises:
        ArgumentError: if ``factory`` does not map parameters to one optimizer.
    """
    if factory is None:
        return SGD(parameters, lr=0.1)
    optimizer = factory(parameters) if callable(factory) else factory
    if not callable(factory) or not isinstance(optimizer, Optimizer):
        msg = (
            "Expected `optimizer` to map parameters to one torch.optim.Optimizer, such as "
            f"`lambda p: torch.optim.SGD(p, lr=0.1)`, but got {optimizer!r}."
        )
        raise ArgumentError(msg)
    return optimizer
