"""The warm-up of the learning rate, and how long a share of a run is."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

#: A warm-up takes at most this many epochs, and this many steps in a run without an end.
MOST_WARMUP_EPOCHS, WARMUP_WITHOUT_END = 4, 100


def steps_of_share(trainer: Trainer, share: float, most_epochs: int, without_end: int) -> int:
    """Number of optimizer steps in a share of the run.

    Args:
        trainer: whose ``max_steps`` and ``max_epochs`` say how long the run is; its training data are there.
        share: of the run, in (0, 1].
        most_epochs: upper bound in epochs, since early stopping may end a run long before its nominal length.
        without_end: the result if neither the run nor its epochs have a length.

    Returns:
        At least 1; the same on every rank.
    """
    total = float(trainer.estimated_stepping_batches)
    if total < 0:  # Lightning returns -1 if epochs have no length, even if their number is bounded
        total = math.inf
    length = min(share * total, most_epochs * float(trainer.num_training_batches))
    return max(1, int(length)) if math.isfinite(length) else without_end


class LinearWarmup(LRScheduler):
    """Lets the learning rate grow linearly to the optimizer's own over the first steps, then leaves it alone.

    If positives are few, a network that begins at the full rate has its best validation after a few steps.

    The number of steps is known only when there are data. Until :meth:`begin` is called with it, nothing changes.

    Example:
        >>> optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
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
