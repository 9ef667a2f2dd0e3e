"""Optimizers and learning-rate schedulers, as Lightning steps and loads them under manual optimization."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.metrics.reporting import better_mode, is_ours


def restore_dtypes(optimizer: Optimizer, states: list[dict[str, Any]] | None) -> None:
    """Give an optimizer's state the dtypes back that it was saved with.

    ``Optimizer.load_state_dict`` casts everything but ``step`` to the dtype of its parameter. Some entries are kept in
    float32 whatever the parameter's dtype is, such as NAdam's ``mu_product`` and ASGD's ``eta`` and ``mu``.
    """
    saved = (states or [{}])[0].get("state", {})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for k, parameter in enumerate(parameters):  # sharded ones are saved by name, and loaded by torch's own function
        for name, value in saved.get(k, {}).items():
            own = optimizer.state[parameter].get(name)
            if isinstance(own, Tensor) and isinstance(value, Tensor) and own.dtype != value.dtype:
                optimizer.state[parameter][name] = value.to(own.device, copy=True)


def step_schedulers(trainer: Trainer, batches_seen: int, *, skipped: bool = False) -> None:
    """Step the schedulers that are due after a batch, except those that follow a metric.

    Schedulers with ``interval="step"`` are due after every batch, those with ``interval="epoch"`` after an epoch's last
    batch. They do not wait for the epoch's end, so that a checkpoint of the last batch holds their new state.
    """
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, ReduceLROnPlateau):
            continue
        if config.interval == "step":
            due = not skipped and batches_seen % config.frequency == 0
        else:
            due = trainer.is_last_batch and (trainer.current_epoch + 1) % config.frequency == 0
        if due:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, None)


def keep_monitors(configured: Any, monitor: str | None = None, *, strict: bool = True) -> Any:
    """Store in every ``ReduceLROnPlateau`` what it follows, since Lightning drops that in manual optimization."""
    if isinstance(configured, (list, tuple)):
        return type(configured)(keep_monitors(one, monitor, strict=strict) for one in configured)
    if isinstance(configured, dict):
        monitor, strict = configured.get("monitor") or monitor, configured.get("strict", strict)
        dropped = ("monitor", "strict", "reduce_on_plateau")
        kept = {name: value for name, value in configured.items() if name not in dropped}
        return {name: keep_monitors(value, monitor, strict=strict) for name, value in kept.items()}
    if isinstance(configured, ReduceLROnPlateau):
        scheduler: Any = configured  # LightningCLI's class has a `monitor` already
        scheduler.monitor = monitor or getattr(scheduler, "monitor", "val/tpauc")
        scheduler.strict = strict
        better = better_mode(scheduler.monitor)
        if better is not None and scheduler.mode != better:
            moves = "fall" if better == "max" else "rise"
            msg = (
                f"ReduceLROnPlateau(mode={scheduler.mode!r}) would wait for {scheduler.monitor!r} to {moves}; pass "
                f"`mode={better!r}`."
            )
            raise ArgumentError(msg)
    return configured


def prepare_plateau_schedulers(trainer: Trainer) -> None:
    """Check, before training, that every ``ReduceLROnPlateau`` will find the metric that it follows.

    Also stores the learning rates that it starts from. The algorithm's step sizes fall by the same factor, also in a
    resumed run.
    """
    for config in _plateaus(trainer):
        name = getattr(config.scheduler, "monitor", None)
        if name is None:
            msg = (
                f"{type(trainer.lightning_module).__name__}.configure_optimizers hides from TPAUCModule what its "
                "ReduceLROnPlateau follows, and Lightning drops it under manual optimization. Set it on the scheduler: "
                "`scheduler.monitor = 'val/tpauc'`."
            )
            raise ArgumentError(msg)
        if is_ours(name) and not trainer.enable_validation and getattr(config.scheduler, "strict", True):
            msg = (
                f"ReduceLROnPlateau follows {name!r}, but this run has no validation, so the learning rate would never "
                "fall. Give it validation data, or set `monitor` to a metric of training such as 'train/loss'."
            )
            raise ArgumentError(msg)
        note_rates(config.scheduler.optimizer)


def note_rates(optimizer: Optimizer) -> None:
    """Store the learning rates from before any schedule as ``initial_lr``, as other schedulers do."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", float(group["lr"]))


def step_plateau_schedulers(
    trainer: Trainer, batches_seen: int, after: Literal["batch", "epoch", "validation"], loss: Tensor | None = None
) -> None:
    """Step every ``ReduceLROnPlateau`` that is due and whose metric has a new value.

    A scheduler with ``interval="epoch"`` is due in every ``frequency``-th epoch, one with ``interval="step"`` when the
    number of steps is a multiple of ``frequency``. Its metric may come from training or from validation. ``loss`` is
    the value of ``train/loss``, even if that is not logged at this step.
    """
    plateaus = _plateaus(trainer)
    if not plateaus or (after == "batch" and all(config.interval == "epoch" for config in plateaus)):
        return
    results: Any = trainer._results  # of the loop that runs; `callback_metrics` still has all older values
    new: dict[str, Any] = results.metrics(after == "batch")["callback"]
    if after == "epoch":
        new = {**results.metrics(True)["callback"], **new}
    if loss is not None:
        new = {**new, "train/loss": loss}
    for config in plateaus:
        name = config.scheduler.monitor
        if config.interval == "step":
            due = after != "epoch" and batches_seen % config.frequency == 0
        else:
            due = after != "batch" and (trainer.current_epoch + 1) % config.frequency == 0
        if due and name in new:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, float(new[name]))
        if after == "epoch":
            _say_if_missing(trainer, config.scheduler)


def _plateaus(trainer: Trainer) -> list[Any]:
    return [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, ReduceLROnPlateau)]


def _say_if_missing(trainer: Trainer, scheduler: Any) -> None:
    """Refuse a metric that is still missing once training and, if there is one, validation have logged theirs."""
    logged, every = trainer.callback_metrics, trainer.check_val_every_n_epoch
    due = every is not None and (trainer.current_epoch + 1) % every == 0
    validated = due or not trainer.enable_validation or "val/tpauc" in logged
    if scheduler.monitor in logged or "train/loss" not in logged or not validated:
        return
    msg = (
        f"ReduceLROnPlateau follows {scheduler.monitor!r}, which nothing has logged, so the learning rate would never "
        f"fall. Set `monitor` to one of {sorted(logged)}; or log it, in a `validation_step` of the module's class, or "
        "in `training_step` with `on_epoch=True`: what a module's own `on_train_epoch_end` logs comes too late."
    )
    if getattr(scheduler, "strict", True):
        raise ArgumentError(msg)
    rank_zero_warn(msg, category=TPAUCWarning)


#: A warm-up takes at most this many epochs, and this many steps in a run without an end.
MOST_WARMUP_EPOCHS, WARMUP_WITHOUT_END = 4, 100


def steps_of_share(trainer: Trainer, share: float, most_epochs: int, without_end: int) -> int:
    """Number of optimizer steps in a share of the run, at most so many epochs; the same on every rank, at least 1."""
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
