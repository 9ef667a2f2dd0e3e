"""The default optimizer, the warm-up, and schedulers as Lightning steps and loads them under manual optimization."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import require_range
from lightning_tpauc.lightning_fixes.unsupported import refuse_wrong_mode

#: A CPU moves parameters of at most so many weights together; larger ones would push each other out of its caches.
_SMALL = 2**13
#: How much shorter than Adam's a step may be.
_MOST_DAMPING = 3.0


class DampedAdam(Optimizer):
    r"""Adam that moves a weight less if its gradients are small beside those of other weights of the same output.

    Adam divides each weight's mean gradient by the root of its own mean square :math:`\sqrt{v_{ij}}`. So the weights of
    inputs that say nothing move as fast as those of inputs that matter, and a few positives with many inputs are
    memorised within a few steps. Here the divisor is

    .. math:: \min\bigl(\max_k \sqrt{v_{ik}},\ 3 \sqrt{v_{ij}}\bigr) + \epsilon

    where :math:`k` runs over the weights of output :math:`i`: over a row of a linear layer's weight, over a filter of a
    convolution. Within a factor of three the steps are proportional to the gradients, as those of SGD. No step is
    longer than Adam's, and none is shorter than a third of it, whatever the scales of the inputs. Biases and other
    vectors get Adam's steps. ``benchmarks/defaults.py`` compares both.

    The options and the saved state are those of :class:`torch.optim.AdamW`, and either loads the state of the other.
    There is no ``amsgrad``: a divisor that never falls would keep the weights of a row apart for good.

    Args:
        params: parameters, or groups of them with options of their own.
        lr: learning rate, at least 0; a number, or a tensor of shape ().
        betas: rates of decay of the mean gradient and of the mean square, both in [0, 1).
        eps: added to the divisor, at least 0.
        weight_decay: each step shrinks matrices, and filters, by ``lr`` times this share, as AdamW's does; biases and
            other vectors keep their size. At least 0. ``benchmarks/regimes.py`` compares the default with 0.
        maximize: whether the objective rises.
        foreach: whether the parameters of one device and dtype move together, in fewer kernels and with more memory. On
            the CPU, ``None`` moves large ones one at a time.
        capturable: whether a CUDA graph may capture the steps. The counts of steps are on the device then.

    Raises:
        ArgumentError: if an option is out of its range, or a gradient is sparse or complex.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1, 3))
        >>> optimizer = DampedAdam([weight], lr=0.1)
        >>> weight.grad = torch.tensor([[1.0, 0.5, 0.01]])
        >>> optimizer.step()
        >>> weight.data
        tensor([[-0.1000, -0.0500, -0.0333]])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled_weight_decay": True}
        super().__init__(params, {**own, "maximize": maximize, "foreach": foreach, "capturable": capturable})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; :class:`ArgumentError` as for the optimizer's."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state that was saved or pickled, that of torch's Adam, too."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.update({**self.defaults, "weight_decay": 0.0, **group})  # what names no decay was trained without
            _check(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the weights that have a gradient.

        Args:
            closure: evaluates the loss and the gradients, and is called first.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            together: dict[Any, list[Tensor]] = defaultdict(list)
            for k, weight in enumerate(group["params"]):
                if weight.grad is not None:
                    fits = not weight.is_cpu or weight.numel() <= _SMALL
                    joined = fits if group["foreach"] is None else group["foreach"]
                    together[(weight.device, weight.dtype) if joined else k].append(weight)
            for weights in together.values():
                self._move(weights, [self._state_of(weight, group["capturable"]) for weight in weights], group)
        return loss

    def _state_of(self, weight: Tensor, capturable: bool) -> dict[str, Tensor]:
        """A parameter's state, named as Adam names it."""
        if weight.grad is not None and (weight.grad.is_sparse or weight.is_complex()):
            remedy = "`view_as_complex` of real weights" if weight.is_complex() else "embeddings with `sparse=False`"
            raise ArgumentError(f"DampedAdam takes real, dense gradients: use {remedy}.")
        state: dict[str, Tensor] = self.state[weight]
        if not state:  # the count is on the host, so that no step waits for the device
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device if capturable else None)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        return state

    @staticmethod
    def _move(weights: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]) -> None:
        lr, (first, second) = group["lr"], group["betas"]
        steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
        gradients: Any = [weight.grad for weight in weights]
        if group["maximize"]:
            gradients = torch._foreach_neg(gradients)
        if group["weight_decay"] and (matrices := [weight for weight in weights if weight.ndim > 1]):
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        roots = list(torch._foreach_sqrt(squares))
        rows = [k for k, root in enumerate(roots) if root.ndim > 1 and root.numel()]
        largest = [roots[k].amax(dim=tuple(range(1, roots[k].ndim)), keepdim=True) for k in rows]
        if rows:
            torch._foreach_div_(largest, _MOST_DAMPING)
        factors: list[Any] = [1.0] * len(roots)
        for k, limit in zip(rows, largest, strict=True):
            roots[k], factors[k] = torch.minimum(roots[k], limit), _MOST_DAMPING
        on_device = group["capturable"] or torch.compiler.is_compiling()
        counts: list[Any] = steps if on_device else [float(step) for step in steps]
        # The mean square of a young run is too small by 1 - second^step, the mean gradient by 1 - first^step.
        factors = [factor * (1 - second**count) ** -0.5 for factor, count in zip(factors, counts, strict=True)]
        torch._foreach_mul_(roots, factors)
        torch._foreach_add_(roots, group["eps"])
        if on_device:
            torch._foreach_mul_(roots, [(first**count - 1) / lr for count in counts])
            torch._foreach_addcdiv_(weights, means, roots)
        else:
            torch._foreach_addcdiv_(weights, means, roots, [-float(lr) / (1 - first**count) for count in counts])


def _check(options: dict[str, Any]) -> None:
    """Raise :class:`ArgumentError` for options that no group can have."""
    for beta in options["betas"]:
        require_range("betas", beta, 0.0, 1.0, open_high=True)
    for name in ("lr", "eps", "weight_decay"):
        value = options[name]
        require_range(name, value.item() if isinstance(value, Tensor) and value.ndim == 0 else value, 0.0)
    if options.get("amsgrad") or (options["weight_decay"] and not options.get("decoupled_weight_decay", True)):
        raise ArgumentError(
            "DampedAdam has no `amsgrad`, and its `weight_decay` is AdamW's: load a state without them, or of AdamW."
        )


def make_optimizer(factory: Any, parameters: list[nn.Parameter], default_lr: float) -> Optimizer:
    """The optimizer that ``factory`` makes, or DampedAdam with learning rate ``default_lr`` if that is ``None``."""
    if factory is None:
        return DampedAdam(parameters, lr=default_lr)
    optimizer = factory(parameters) if callable(factory) else factory
    if not callable(factory) or not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            "Expected `optimizer` to map parameters to one torch.optim.Optimizer, such as "
            f"`lambda p: torch.optim.SGD(p, lr=0.1)`, but got a {type(optimizer).__name__}."
        )
    return optimizer


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


# ---------------------------------------------------------------- the warm-up

#: Shares of a run are at most this many epochs, since early stopping may end it long before its nominal length.
_MOST_EPOCHS = 20
#: Of a run that has neither an end nor epochs, shares are those of this many steps.
_STEPS_WITHOUT_END = 2000


class QuadraticWarmup(LRScheduler):
    """Lets the learning rate grow with the square of the steps up to the optimizer's own, then leaves it alone.

    If positives are few or some labels wrong, a network that begins at the full rate has its best validation after a
    few steps, and a worse one than slow steps reach. The number of steps is known only when there are data. Until
    :meth:`begin` is called with it, nothing changes.

    Example:
        >>> optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        >>> warmup, rates = QuadraticWarmup(optimizer), []
        >>> warmup.begin(steps=4)
        >>> for _ in range(6):
        ...     rates.append(optimizer.param_groups[0]["lr"])
        ...     optimizer.step()
        ...     warmup.step()
        >>> rates
        [0.0625, 0.25, 0.5625, 1.0, 1.0, 1.0]
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.steps, self.share, self.clock = 0, 1.0, 0.0
        super().__init__(optimizer)

    def begin(self, steps: int, share: float = 1.0) -> None:
        """Set the number of steps, and the share of the run's time; lower the rates to those of the first step."""
        self.steps, self.share = steps, share
        self._last_lr = self.get_lr()
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def follow_clock(self, trainer: Trainer) -> None:
        """Be as far as the time where ``max_time`` ends the run before its steps; a collective of runs with a limit."""
        if self.last_epoch + 1 < self.steps and (over := share_of_time(trainer)):
            self.clock = min(1.0, trainer.strategy.broadcast(over) / self.share)
            self.steps = self.steps if self.clock < 1.0 else self.last_epoch + 2  # the next step has the full rate

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group in the next step."""
        if self.last_epoch >= self.steps:  # now the rate belongs to whoever changes it
            return [group["lr"] for group in self.optimizer.param_groups]
        return [rate * max((self.last_epoch + 1) / self.steps, self.clock) ** 2 for rate in self.base_lrs]


def begin_warmup(trainer: Trainer, share: float | None, default: float) -> None:
    """Begin the :class:`QuadraticWarmup` of a training, if it has one, over this share of the run, or the default."""
    if share is None:  # a short run needs its steps: below 500, the default is smaller in proportion, down to a tenth
        share = min(default, max(0.1, default * _steps(trainer) / 500))
    for config in _configs(trainer, QuadraticWarmup):
        config.scheduler.begin(steps_of_share(trainer, share), share)


def steps_of_share(trainer: Trainer, share: float) -> int:
    """Number of optimizer steps in a share of the run, at most 20 epochs; the same on every rank, at least 1."""
    length = min(share * _steps(trainer), _MOST_EPOCHS * float(trainer.num_training_batches))
    return max(1, int(length if math.isfinite(length) else share * _STEPS_WITHOUT_END))


def _steps(trainer: Trainer) -> float:
    total = float(trainer.estimated_stepping_batches)
    return math.inf if total < 0 else total  # -1: epochs have no length, even if their number is bounded


def share_of_time(trainer: Trainer) -> float:
    """The share of ``max_time`` that is over; 0 if there is no limit."""
    timers = [timer for timer in trainer.callbacks if isinstance(timer, Timer)]  # type: ignore[attr-defined]
    times = [(timer.time_elapsed(), timer.time_remaining()) for timer in timers]
    return max((elapsed / (elapsed + left) for elapsed, left in times if left is not None), default=0.0)


# ---------------------------------------------------------------- other schedulers


def step_schedulers(trainer: Trainer, batches_seen: int, *, skipped: bool = False) -> None:
    """Step the schedulers that are due after a batch, except those that follow a metric.

    Schedulers with ``interval="step"`` are due after every batch, those with ``interval="epoch"`` after an epoch's last
    batch. They do not wait for the epoch's end, so that a checkpoint of the last batch holds their new state.
    """
    for config in trainer.lr_scheduler_configs:
        if config.interval == "step":
            due = not skipped and batches_seen % config.frequency == 0
        else:
            due = trainer.is_last_batch and (trainer.current_epoch + 1) % config.frequency == 0
        if due and not isinstance(config.scheduler, ReduceLROnPlateau):
            if isinstance(config.scheduler, QuadraticWarmup):
                config.scheduler.follow_clock(trainer)
            trainer.lightning_module.lr_scheduler_step(config.scheduler, None)


def keep_monitors(configured: Any, monitor: str | None = None) -> Any:
    """Store in every ``ReduceLROnPlateau`` what it follows, since Lightning drops that in manual optimization."""
    if isinstance(configured, (list, tuple)):
        return type(configured)(keep_monitors(one, monitor) for one in configured)
    if isinstance(configured, dict):
        monitor = configured.get("monitor") or monitor
        dropped = ("monitor", "strict", "reduce_on_plateau")
        return {name: keep_monitors(value, monitor) for name, value in configured.items() if name not in dropped}
    if isinstance(configured, ReduceLROnPlateau):
        scheduler: Any = configured  # LightningCLI's class has a `monitor` already
        scheduler.monitor = monitor or getattr(scheduler, "monitor", "val/tpauc")
        refuse_wrong_mode(scheduler)
    return configured


def prepare_schedulers(trainer: Trainer) -> None:
    """Store the rates before any schedule as ``initial_lr``: step sizes fall by the same factor, also if resumed."""
    for group in trainer.optimizers[0].param_groups:
        group.setdefault("initial_lr", float(group["lr"]))


def step_plateau_schedulers(
    trainer: Trainer, batches_seen: int, after: Literal["batch", "epoch", "validation"], loss: Tensor | None = None
) -> None:
    """Step every ``ReduceLROnPlateau`` that is due and whose metric has a new value.

    A scheduler with ``interval="epoch"`` is due in every ``frequency``-th epoch, one with ``interval="step"`` when the
    number of steps is a multiple of ``frequency``. Its metric may come from training or from validation. ``loss`` is
    the value of ``train/loss``, even if that is not logged at this step.
    """
    plateaus = _configs(trainer, ReduceLROnPlateau)
    if not plateaus or (after == "batch" and all(config.interval == "epoch" for config in plateaus)):
        return
    results: Any = trainer._results  # of the loop that runs; `callback_metrics` still has all older values
    whole: dict[str, Any] = results.metrics(True)["callback"] if after == "epoch" else {}
    last = {} if loss is None else {"train/loss": loss}
    new = {**whole, **results.metrics(after == "batch")["callback"], **last}
    for config in plateaus:
        if config.interval == "step":
            due = after != "epoch" and batches_seen % config.frequency == 0
        else:
            due = after != "batch" and (trainer.current_epoch + 1) % config.frequency == 0
        if due and (name := config.scheduler.monitor) in new:
            trainer.lightning_module.lr_scheduler_step(config.scheduler, float(new[name]))
        if after == "epoch":
            _refuse_missing(trainer, config.scheduler)


def _configs(trainer: Trainer, kind: type[LRScheduler]) -> list[Any]:
    return [config for config in trainer.lr_scheduler_configs if isinstance(config.scheduler, kind)]


def _refuse_missing(trainer: Trainer, scheduler: Any) -> None:
    """Refuse a metric that is still missing once training and, if there is one, validation have logged theirs."""
    logged, every = trainer.callback_metrics, trainer.check_val_every_n_epoch
    due = every is not None and (trainer.current_epoch + 1) % every == 0
    validated = due or not trainer.enable_validation or "val/tpauc" in logged
    if validated and scheduler.monitor not in logged:
        raise ArgumentError(
            f"ReduceLROnPlateau follows {scheduler.monitor!r}, which nothing has logged. Set `monitor` to one of "
            f"{sorted(logged)}, or log it before a module's own `on_train_epoch_end`, which comes too late."
        )
