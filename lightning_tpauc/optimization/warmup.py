"""The default optimizer and the default schedule, which warms up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_tpauc.errors import ArgumentError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch import Tensor

__all__ = ("LinearWarmup", "begin_warmup", "make_optimizer", "warms_up")


class LinearWarmup(LRScheduler):
    """Lets the learning rate grow linearly to the optimizer's own over the first steps, then leaves it alone.

    If positives are few, a network that begins at the full rate has its best validation after a few steps.

    The number of steps is known only when there are data. Until :meth:`begin` is called with it, nothing changes.

    Args:
        optimizer: whose learning rates grow.

    Example:
        >>> optimizer = Adam([nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> warmup, rates = LinearWarmup(optimizer), []
        >>> warmup.begin(steps=4)
        >>> for _ in range(6):
        ...     rates.append(optimizer.param_groups[0]["lr"])
        ...     optimizer.step()
        ...     warmup.step()
        >>> rates
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.steps = 0
        super().__init__(optimizer)

    def begin(self, steps: int) -> None:
        """Set the number of steps of the warm-up, and lower the rates to those of its first step."""
        self.steps = steps
        rates = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = rates

    @property
    def is_over(self) -> bool:
        """Whether the full rate is reached; after that the rate belongs to the optimizer, or to whoever changes it."""
        return self.last_epoch >= self.steps - 1

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group in the next step."""
        if self.last_epoch >= self.steps:
            return [group["lr"] for group in self.optimizer.param_groups]
        return [rate * ((self.last_epoch + 1) / self.steps) for rate in self.base_lrs]


def begin_warmup(trainer: Trainer, steps: int) -> None:
    """Begin the :class:`LinearWarmup` of a training, if it has one."""
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, LinearWarmup):
            config.scheduler.begin(steps)


def warms_up(trainer: Trainer) -> bool:
    """Whether a :class:`LinearWarmup` still keeps the learning rate below the optimizer's own."""
    schedulers = (config.scheduler for config in trainer.lr_scheduler_configs)
    return any(isinstance(scheduler, LinearWarmup) and not scheduler.is_over for scheduler in schedulers)


def make_optimizer(factory: Any, parameters: list[nn.Parameter], default_lr: float) -> Optimizer:
    """The optimizer of ``factory``, or Adam with learning rate ``default_lr`` if that is ``None``.

    Raises:
        ArgumentError: if ``factory`` does not map parameters to one optimizer that has a learning rate.
    """
    if factory is None:
        return Adam(parameters, lr=default_lr)
    optimizer = factory(parameters) if callable(factory) else factory
    if not callable(factory) or not isinstance(optimizer, Optimizer):
        found = " ".join(repr(optimizer).split())  # torch shows an optimizer on twenty lines
        msg = (
            "Expected `optimizer` to map parameters to one torch.optim.Optimizer, such as "
            f"`lambda p: torch.optim.SGD(p, lr=0.1)`, but got {found}."
        )
        raise ArgumentError(msg)
    if any("lr" not in group for group in optimizer.param_groups):
        msg = (
            f"{type(optimizer).__name__} has no learning rate that schedules could change: expected 'lr' in each of "
            "its `param_groups`. Name it in the defaults, `super().__init__(params, {'lr': 0.1})`."
        )
        raise ArgumentError(msg)
    return optimizer
