"""A LightningModule with one optimizer, which is an argument or comes from a class mixed in, and its schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer, SparseAdam

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.lightning_fixes.subclassing import refuse_taken
from lightning_tpauc.scoring.evaluated_module import EvaluatedModule
from lightning_tpauc.training.optimizer import DampedAdam
from lightning_tpauc.training.schedules import (
    MOST_WARMUP_EPOCHS,
    WARMUP_WITHOUT_END,
    LinearWarmup,
    begin_warmup,
    keep_monitors,
    steps_of_share,
    warms_up,
)

_EVALUATES = (
    "{} evaluates the loss by itself, at other weights than those of the step, as sharpness-aware methods do. Here "
    "every evaluation is a step of the dual variables, so a batch has only one. Use another optimizer."
)


class OptimizedModule(EvaluatedModule):
    """Makes the optimizer and its schedule, takes the steps, and tells how far the schedule has lowered the rate.

    Args:
        optimizer: maps parameters to a :class:`torch.optim.Optimizer`. If ``None``, the mixed-in module's
            ``configure_optimizers`` is used, and without one :class:`~lightning_tpauc.DampedAdam` with the algorithm's
            ``default_lr``.
        lr_scheduler: maps the optimizer to a scheduler; needs ``optimizer``, or a module that makes none.
        lr_scheduler_interval: whether the scheduler steps after every ``"step"`` or every ``"epoch"``.
        warmup: share of the run in which the learning rate grows linearly to that of the optimizer, at most 4 epochs;
            0 for none. An ``lr_scheduler``, or the optimizer of a class mixed in, replaces the warm-up.
        **kwargs: of :class:`~lightning_tpauc.scoring.evaluated_module.EvaluatedModule`.

    Raises:
        ArgumentError: if ``lr_scheduler_interval`` is unknown.

    Example:
        >>> from torch import nn
        >>> module = OptimizedModule(backbone=nn.Linear(3, 1))
        >>> module.configure_optimizers().param_groups[0]["lr"]
        0.01
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
        #: Versions of the weights when a step began, at which the optimizer must use the gradients; empty once it has.
        self._awaited: list[int] | None = None

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
        optimizer = make_optimizer(self.optimizer_factory, parameters, self.algorithm.default_lr)
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

        It can't begin earlier: counting the batches is a collective, and before the stage callback has compared the
        ranks' settings, some of them might not take part.
        """
        begin_warmup(self.trainer, steps_of_share(self.trainer, self.warmup, MOST_WARMUP_EPOCHS, WARMUP_WITHOUT_END))

    def single_optimizer(self) -> LightningOptimizer:
        """The optimizer; Lightning's wrapper of it counts its steps."""
        optimizer: Any = self.optimizers()
        if isinstance(optimizer, list):
            names = ", ".join(type(each.optimizer).__name__ for each in optimizer) or "none"
            msg = (
                "Expected `configure_optimizers` to return exactly one optimizer: global_step counts every optimizer's "
                f"step. Got {len(optimizer)} ({names}). Give one optimizer all parameters, in groups."
            )
            raise UnsupportedError(msg)
        return cast(LightningOptimizer, optimizer)

    def forget_gradients(self, optimizer: LightningOptimizer, batch_idx: int) -> None:
        """Set the gradients to ``None`` by the hooks that automatic optimization calls."""
        self._awaited = None
        inner = optimizer.optimizer
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]  # Trainer sets it at run time
            callback.on_before_zero_grad(self.trainer, self, inner)
        self.on_before_zero_grad(inner)
        self.optimizer_zero_grad(self.current_epoch, batch_idx, inner)

    def take_step(
        self, optimizer: LightningOptimizer, batch_idx: int, loss: Tensor, scaler: torch.amp.GradScaler | None
    ) -> bool:
        """Take a step with the present gradients, by the hook ``optimizer_step``, which may change the learning rate.

        Returns:
            Whether a gradient scaler skipped the step.

        Raises:
            UnsupportedError: if the hook does not step once, or the optimizer evaluates the loss by itself.
        """
        steps = self.trainer.global_step
        self._awaited = _versions(optimizer.optimizer)

        def step() -> None:
            self.optimizer_step(self.current_epoch, batch_idx, optimizer, loss.detach)

        skipped = _step_unless_infinite(optimizer.optimizer, scaler, step)
        taken = self.trainer.global_step - steps
        if taken != 1:
            msg = (
                f"{type(self).optimizer_step.__qualname__} took {taken} optimizer steps for a batch; the dual "
                "variables and the average count on one. Call `optimizer.step(closure=optimizer_closure)` once in it."
            )
            raise UnsupportedError(msg)
        if self._awaited:
            name = type(optimizer.optimizer).__name__
            msg = f"{name}.step does not call the closure that Lightning passes to it. Call it first of all."
            raise UnsupportedError(msg)
        return skipped

    def expect_final_gradients(self, optimizer: Optimizer) -> None:
        """Check that the optimizer, which is about to use the gradients, has not moved the weights or used them before.

        Raises:
            UnsupportedError: if it has.
        """
        if self._awaited is not None:
            awaited, self._awaited = self._awaited, []
            if _versions(optimizer) != awaited:
                raise UnsupportedError(_EVALUATES.format(type(optimizer).__name__))

    def step_scale(self, optimizer: LightningOptimizer) -> float:
        """The current learning rate divided by the one before any schedule; the algorithm's step sizes follow it."""
        if self._trainer is not None and warms_up(self._trainer):  # the warm-up slows the weights alone
            return 1.0
        number, base = self.base_lr
        group = optimizer.param_groups[number]
        if base is None:  # another class made the scheduler; OneCycleLR calls a part of the rate "initial"
            base = group.get("max_lr", group.get("initial_lr", group["lr"]))
        scale: float = group["lr"] / base if base else 1.0
        return scale


def _step_unless_infinite(inner: Any, scaler: torch.amp.GradScaler | None, step: Callable[[], None]) -> bool:
    """Take the optimizer's step, unless a gradient scaler finds infinite gradients.

    Averages, stages and schedules count the steps that were taken, so the host must know. The scaler waits for the
    device once a step in any case. Only a fused optimizer decides on the device; then this function waits instead.

    Returns:
        Whether the step was skipped.
    """
    if scaler is None:
        step()
        return False
    if getattr(inner, "_step_supports_amp_scaling", False) or not isinstance(inner, Optimizer):
        one = torch.ones((), device=inner.param_groups[0]["params"][0].device)
        before = scaler.scale(one)
        step()
        return bool(scaler.scale(one) < before)
    taken: list[bool] = []
    hook = inner.register_step_post_hook(lambda *_: taken.append(True))  # runs only if the scaler lets the step run
    try:
        step()
    finally:
        hook.remove()
    return not taken


def make_dense(optimizer: Optimizer) -> None:
    """Make sparse gradients dense, since clipping, the proximal term and a running estimate concern every entry.

    Raises:
        UnsupportedError: if the optimizer takes sparse gradients only.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or not parameter.grad.is_sparse:
                continue
            if isinstance(optimizer, SparseAdam):
                msg = (
                    "SparseAdam moves some rows only, but clipping, the proximal term (a finite `gamma`) and PAUCI's "
                    "estimate concern all weights. Use SGD or Adam, or a method without them."
                )
                raise UnsupportedError(msg)
            parameter.grad = parameter.grad.to_dense()


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each weight has been changed in place, which tells of a change without reading numbers."""
    return [p._version for group in optimizer.param_groups for p in group["params"]]


def make_optimizer(factory: Any, parameters: list[nn.Parameter], default_lr: float) -> Optimizer:
    """The optimizer of ``factory``, or DampedAdam with learning rate ``default_lr`` if that is ``None``.

    Raises:
        ArgumentError: if ``factory`` does not map parameters to one optimizer that has a learning rate.
    """
    if factory is None:
        return DampedAdam(parameters, lr=default_lr)
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
