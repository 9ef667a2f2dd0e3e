"""A LightningModule with one optimizer: injected, or that of a class mixed in."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.optim import Optimizer

from lightning_tpauc.algorithms.arguments import require_range
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.run_length import steps_of_share
from lightning_tpauc.schedules import LinearWarmup, begin_warmup, keep_monitors, make_optimizer, warms_up
from lightning_tpauc.scoring import ScoringModule, refuse_taken

__all__ = ("OptimizedModule", "take_step")

#: A warm-up is no longer than that, however long the run.
_MOST_WARMUP_EPOCHS, _WARMUP_WITHOUT_END = 4, 100


class OptimizedModule(ScoringModule):
    """Makes the optimizer and its schedule, and says how far the schedule has come.

    Args:
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. If ``None``, the mixed-in module's
            ``configure_optimizers`` is used, and without one Adam with learning rate 0.003.
        lr_scheduler: maps the optimizer to a scheduler; needs ``optimizer``, or a module that makes none.
        lr_scheduler_interval: whether the scheduler steps after every ``"step"`` or every ``"epoch"``.
        warmup: share of the run, and of at most 4 epochs, in which the learning rate grows linearly to that of the
            optimizer, where no ``lr_scheduler`` and no class mixed in says otherwise; 0 for none.
        **kwargs: of :class:`~lightning_tpauc.scoring.ScoringModule`.

    Raises:
        ArgumentError: if ``lr_scheduler_interval`` is unknown.

    Example:
        >>> from torch import nn
        >>> module = OptimizedModule(backbone=nn.Linear(3, 1))
        >>> module.configure_optimizers().param_groups[0]["lr"]
        0.003
    """

    def __init__(
        self,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        warmup: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if lr_scheduler_interval not in ("epoch", "step"):
            msg = f"Expected `lr_scheduler_interval` to be 'epoch' or 'step', but got {lr_scheduler_interval!r}."
            raise ArgumentError(msg)
        refuse_taken(self, "optimizer_factory", "scheduler_factory", "lr_scheduler_interval", "warmup", "base_lr")
        self.automatic_optimization = False
        self.optimizer_factory, self.scheduler_factory = optimizer, lr_scheduler
        self.lr_scheduler_interval, self.warmup = lr_scheduler_interval, require_range("warmup", warmup, 0.0, 1.0)
        #: Which parameter group leads the algorithm's step sizes, and its learning rate before any schedule.
        self.base_lr: tuple[int, float | None] = (0, None)

    def configure_optimizers(self) -> Any:
        """The injected optimizer and scheduler, or those of the class mixed in."""
        self.require_model()
        parent = super().configure_optimizers
        mixed_in = getattr(parent, "__func__", None) is not LightningModule.configure_optimizers
        if self.optimizer_factory is None and mixed_in:
            if self.scheduler_factory is not None:
                msg = (
                    "`lr_scheduler` needs `optimizer`: without it the optimizer, and its scheduler, are those of the "
                    f"`configure_optimizers` that {type(self).__name__} inherits. Pass both, or neither."
                )
                raise ArgumentError(msg)
            self.base_lr = (0, None)
            return keep_monitors(parent())
        parameters = [p for p in self.parameters() if p.requires_grad]
        if not parameters:
            msg = f"{type(self).__name__} has no parameter that requires a gradient: there is nothing to train."
            raise ArgumentError(msg)
        optimizer = make_optimizer(self.optimizer_factory, parameters)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        number = next((k for k, rate in enumerate(rates) if rate > 0), 0)
        scheduler = self.scheduler_factory(optimizer) if self.scheduler_factory is not None else None
        # the rate from before the scheduler, which may have changed it by now; of a cycle, its top
        self.base_lr = (number, optimizer.param_groups[number].get("max_lr", rates[number]))
        if scheduler is None:
            return self._warmed_up(optimizer)
        config = {"scheduler": scheduler, "interval": self.lr_scheduler_interval}
        return keep_monitors({"optimizer": optimizer, "lr_scheduler": config})

    def _warmed_up(self, optimizer: Optimizer) -> Any:
        """The optimizer, with a scheduler for its first steps unless every step sees all data."""
        if self.warmup == 0 or self._trainer is None or self.algorithm.sampling == "full":
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LinearWarmup(optimizer), "interval": "step"}}

    def begin_warmup(self) -> None:
        """Begin the warm-up of a new training, when it starts.

        Not before: how many batches there are, the ranks find out together, and until the stage callback has made sure
        of it they may differ in whether they ask.
        """
        begin_warmup(self.trainer, steps_of_share(self.trainer, self.warmup, _MOST_WARMUP_EPOCHS, _WARMUP_WITHOUT_END))

    def single_optimizer(self) -> LightningOptimizer:
        """The optimizer; Lightning's wrapper of it counts its steps."""
        optimizer: Any = self.optimizers()
        if isinstance(optimizer, list):
            msg = (
                "Expected `configure_optimizers` to return exactly one optimizer: global_step counts every optimizer's "
                f"step. Got {optimizer!r}."
            )
            raise UnsupportedError(msg)
        return cast(LightningOptimizer, optimizer)

    def step_scale(self, optimizer: LightningOptimizer) -> float:
        """The current learning rate over the one before any schedule, which the algorithm's step sizes follow."""
        if self._trainer is not None and warms_up(self._trainer):  # the weights alone
            return 1.0
        number, base = self.base_lr
        group = optimizer.param_groups[number]
        if base is None:  # another class made the scheduler; OneCycleLR leaves a part of the rate as "initial"
            base = group.get("max_lr", group.get("initial_lr", group["lr"]))
        scale: float = group["lr"] / base if base else 1.0
        return scale


def take_step(optimizer: LightningOptimizer, scaler: torch.amp.GradScaler | None) -> bool:
    """Take the optimizer's step, unless a gradient scaler finds infinite gradients.

    To know it the scaler waits for the device once a step, as it does everywhere; only a fused optimizer decides on the
    device, and then this waits once instead: averages, stages and schedules count the steps that were taken.

    Returns:
        Whether the step was skipped.
    """
    if scaler is None:
        optimizer.step()
        return False
    inner = optimizer.optimizer
    if getattr(inner, "_step_supports_amp_scaling", False) or not isinstance(inner, Optimizer):
        one = torch.ones((), device=inner.param_groups[0]["params"][0].device)
        before = scaler.scale(one)
        optimizer.step()
        return bool(scaler.scale(one) < before)
    taken: list[bool] = []
    hook = inner.register_step_post_hook(lambda *_: taken.append(True))  # runs where the scaler lets the step run
    try:
        optimizer.step()
    finally:
        hook.remove()
    return not taken
