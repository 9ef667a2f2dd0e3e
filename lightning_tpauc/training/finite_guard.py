"""Stops a run whose numbers are not finite any more, before it writes worthless checkpoints, and explains why."""

from __future__ import annotations

import atexit
import math
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.distributed import whole
from lightning_tpauc.errors import NonFiniteError
from lightning_tpauc.lightning_fixes.subclassing import KeepsDuties, duty
from lightning_tpauc.training.trained_module import TrainedModule

#: On an accelerator, the result of a check is read this many steps later, so that the host can run ahead. The number is
#: the same on all ranks, so that they stop at the same step and none waits for the others.
_LAG = 4
#: After this many halvings of the scale in a row, every float16 gradient would be zero.
_MOST_SKIPPED = 50
#: A run diverges if its loss is this many times that of the first step.
_GROWTH = 1e10
#: How long the other processes have to print why they stop.
_GRACE_SECONDS = 2.0


class FiniteGuard(KeepsDuties, Callback):
    """Stops the run at the first step whose loss or state is not finite or far too large, and says what to change.

    Far too large is 1e10 times the value at the first step of this run, new or resumed, and at least 1e10. The weights
    diverge then, although single precision may take many more steps to overflow.

    On a CPU the check is immediate. On an accelerator the result is copied to the host without blocking and read a few
    steps later. No bad checkpoint is written meanwhile, since saving checks everything itself. A run is also stopped if
    a gradient scaler skips every step. When rank 0 fails, the processes that it started end with it.

    Raises:
        NonFiniteError: on every rank at the same step.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="cpu", logger=False, callbacks=[FiniteGuard()])  # added if left out
        >>> any(isinstance(callback, FiniteGuard) for callback in trainer.callbacks)
        True
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, Any]] = []
        self._limit: Tensor | None = None
        self._skipped = 0

    @override
    @duty("before")
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier run, which may have ended in an error."""
        self._pending.clear()
        self._limit = None
        self._skipped = 0

    @override
    @duty("before")
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Check the last step; a step that a gradient scaler skipped is only counted."""
        module: TrainedModule = pl_module  # type: ignore[assignment]
        self._skipped = self._skipped + 1 if module.step_skipped else 0
        if self._skipped >= _MOST_SKIPPED:
            raise NonFiniteError(_always_skipped(module))
        if module.step_skipped:
            return
        total: Tensor = module.step_loss + module.algorithm.scalar_sum()  # finite only if both are
        if self._limit is None:
            self._limit = total.abs().clamp_min(1.0) * _GROWTH
        within = total.abs() < self._limit  # false for nan, too
        if total.device.type != "cuda":
            self._stop_unless(bool(within), module, total)
            return
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(within, non_blocking=True)
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record()
        self._pending.append((flag, total, event))
        if len(self._pending) > _LAG:
            self._read(1, module)

    @override
    @duty("before")
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the checks that were not read yet."""
        self._read(len(self._pending), pl_module)  # type: ignore[arg-type]

    @override
    @duty("before")
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the other processes when rank 0 fails.

        Lightning ends all processes when one of them fails, but not when rank 0 does, which started them. They would
        wait for rank 0 in a collective, under NCCL for minutes, and keep their GPUs.
        """
        started = getattr(trainer.strategy.launcher, "procs", ())
        children = [process for process in started if isinstance(process, subprocess.Popen)]
        if children:
            atexit.register(_end, children)

    def _read(self, count: int, module: TrainedModule) -> None:
        for _ in range(count):
            flag, total, event = self._pending.pop(0)
            event.synchronize()  # the step is _LAG steps old, so this hardly ever waits
            self._stop_unless(bool(flag), module, total)

    def _stop_unless(self, within: bool, module: TrainedModule, total: Tensor) -> None:
        if within:
            return
        algorithm = module.algorithm
        said: dict[str, Any] = {"steps": module.batches_seen, "score_activation": module.score_activation}
        if math.isfinite(total):
            raise NonFiniteError(diagnose_divergence(algorithm, float(total), **said))
        raise NonFiniteError(diagnose(algorithm, module, module.trainer.optimizers, **said))


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    for child in children:
        if child.poll() is None:
            child.kill()  # a process that waits in a collective ignores SIGTERM


def _always_skipped(module: TrainedModule) -> str:
    scaler: Any = getattr(module.trainer.precision_plugin, "scaler", None)
    return (
        f"Not finite after {module.batches_seen} steps: the gradient scaler skipped {_MOST_SKIPPED} steps in a row and "
        f"is down to a scale of {scaler.get_scale():.1g}, so the gradients are infinite or nan at any scale. Look for "
        "such numbers in the inputs, or train with precision='bf16-mixed', which has the range of float32."
    )


def diagnose(
    algorithm: Algorithm,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    steps: int,
    score_activation: str,
    only_if_broken: bool = False,
) -> str:
    """Say what is not finite and what to change."""
    broken = algorithm.non_finite_states()
    weights = [name for name, p in model.named_parameters() if not bool(torch.isfinite(whole(p.detach())).all())]
    if only_if_broken and not broken and not weights:
        return ""
    sizes = sorted({algorithm.step_sizes[name] for name in broken if name in algorithm.step_sizes})
    if weights or not sizes:
        where = f"the weights ({', '.join(weights[:3])})" if weights else "the loss"
        cause = _half_precision(model, optimizers) if weights else ""
        also = f" or {_quoted(sizes)} of the algorithm" if sizes else ""
        return f"Not finite after {steps} steps: {where}. {cause or _remedy(algorithm, score_activation, also)}"
    lower = f"Lower {_quoted(sizes)} of {type(algorithm).__name__}."
    return f"Not finite after {steps} steps: the state {_quoted(broken)}. {lower}"


def diagnose_divergence(algorithm: Algorithm, reached: float, *, steps: int, score_activation: str) -> str:
    """Say that numbers grow without bound, although they are still finite."""
    remedy = _remedy(algorithm, score_activation)
    return f"Diverged after {steps} steps: loss and state have grown to {reached:.2g}. {remedy}"


def _remedy(algorithm: Algorithm, score_activation: str, also: str = "") -> str:
    unbounded = score_activation == "identity" and not algorithm.takes_logits
    bound = ", or bound the scores with `score_activation='sigmoid'`" if unbounded else ""
    return f"Lower the optimizer's `lr`{also}, standardise the inputs{bound}."


def _half_precision(model: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Say what float16 weights break by themselves, at any learning rate; empty for other weights."""
    if all(p.dtype != torch.float16 for p in model.parameters()):
        return ""
    optimizer: Any = optimizers[0]
    name, precision = type(optimizer).__name__, "precision='16-mixed', '32-true' or 'bf16-true'"
    epsilons = [group["eps"] for group in optimizer.param_groups if "eps" in group]
    lost = [eps for eps in epsilons if eps and not bool(torch.tensor(float(eps), dtype=torch.float16))]
    if lost:
        return (
            f"In float16 (precision='16-true') `eps={lost[0]:g}` of {name} is 0, so it divides by zero wherever a "
            f"squared gradient is too small for float16. Pass `eps=1e-4`, or train with {precision}."
        )
    return f"Weights in float16 (precision='16-true') end at 65504. Lower `lr`, or train with {precision}."


def _quoted(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
