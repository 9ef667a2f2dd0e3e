"""Checks on one GPU in a few minutes; without a GPU it runs what a CPU can and says what it left out.

    python benchmarks/gpu_check.py

Prints a line for each check and exits with 1 if one fails. On a GPU: the same trajectory as on the CPU, training steps
in which the host never waits for the device, launches and times of a step beside cross-entropy with fused Adam, mixed
precision with the proximal term, a compiled backbone, a resumed run, the guard against non-finite numbers, and two
processes that share the device.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.errors import NonFiniteError

DIM = 8


class Skipped(Exception):  # noqa: N818  # no error
    """The check needs what is not here."""


METHODS: dict[str, Callable[[], Algorithm]] = {
    "STACO1": lambda: STACO(0.6, 0.4, alpha=0.3, beta=0.2, beta_prime=0.1),
    "STACO2": lambda: STACO(0.6, 0.4, gamma=4.0, alpha=0.3, beta=0.2, beta_prime=0.1),
    "SOTA": SOTA,
    "SOTAs": SOTAs,
    "SONX": lambda: SONX(gamma=0.1),
    "PAUCI": PAUCI,
    "AUCM": AUCM,
    "CrossEntropy": CrossEntropy,
}


class Losses(Callback):
    """Keeps every loss on its device."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep this one."""
        self.values.append(outputs["loss"].clone())


class NoWaiting(Callback):
    """Lets torch raise when the host waits for the device, in the steps that are neither the first nor the last."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.steps = first, last, 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to watch before the step."""
        if torch.cuda.is_available() and trainer.global_step == self.first:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End after it; the hooks of the package's own callbacks are watched as well."""
        self.steps += self.first < trainer.global_step <= self.last
        if torch.cuda.is_available() and trainer.global_step == self.last:
            torch.cuda.set_sync_debug_mode("default")


def device_name() -> str:
    """What the Trainer calls the device that is checked."""
    return "gpu" if torch.cuda.is_available() else "cpu"


def need_gpu(what: str) -> None:
    """Leave the check if there is none."""
    if not torch.cuda.is_available():
        msg = f"{what} needs a GPU"
        raise Skipped(msg)


def make_net() -> nn.Module:
    """A small network without what would differ between devices."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 16), nn.Tanh(), nn.Linear(16, 1, bias=False))


def make_data(ranks: int = 1) -> PosNegDataModule:
    """1,000 examples, one in four positive."""
    generator = torch.Generator().manual_seed(3)
    y = (torch.arange(1000) % 4 == 0).long()
    x = torch.randn(1000, DIM, generator=generator) + 0.4 * y[:, None]
    return PosNegDataModule((x, y), val_dataset=(x[:200], y[:200]), num_pos=16 // ranks, num_neg=32 // ranks)


def fit(
    algorithm: Algorithm,
    accelerator: str,
    steps: int,
    *,
    net: nn.Module | None = None,
    lr: float = 0.1,
    fused: bool = False,
    callbacks: tuple[Callback, ...] = (),
    ckpt: Path | None = None,
    stage: int = 20,
    ranks: int = 1,
    activation: Literal["identity", "sigmoid"] = "sigmoid",
    **trainer: Any,
) -> tuple[TPAUCModule, Tensor, Trainer]:
    """The module after training, all losses, and the Trainer."""
    losses = Losses()
    module = TPAUCModule(
        net or make_net(),
        algorithm,
        lambda p: torch.optim.SGD(p, lr=lr, momentum=0.5, fused=fused),
        score_activation=activation,
    )
    options = {"precision": "32-true", "devices": 1, "max_epochs": -1, "max_steps": steps, **trainer}
    run = Trainer(
        accelerator=accelerator,
        callbacks=[StageCallback(every_n_steps=stage), losses, *callbacks],
        logger=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        **options,
    )
    run.fit(module, make_data(ranks), ckpt_path=ckpt)
    kept = [value.detach().cpu() for value in losses.values]  # none where forks did the work
    return module, torch.stack(kept) if kept else torch.empty(0), run


def distance(first: Tensor, second: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((first.double() - second.double()).abs().max() / second.double().abs().max().clamp(min=1e-12))


def within(value: float, bound: float) -> str:
    """Say the distance; raise if it is too large."""
    if not value <= bound:
        msg = f"differs by {value:.1e}, allowed are {bound:.0e}"
        raise AssertionError(msg)
    return f"differs by {value:.1e}"


# ---------------------------------------------------------------- checks


def check_parity() -> str:
    """All methods, 60 steps and three stages in float64."""
    need_gpu("parity of two devices")
    print(torch.cuda.get_device_name())  # not before the forks of the first check, which CUDA rules out
    worst = 0.0
    for make in METHODS.values():
        ours, our_losses, _ = fit(make(), "gpu", 60, precision="64-true")
        theirs, their_losses, _ = fit(make(), "cpu", 60, precision="64-true")
        pairs = [(our_losses, their_losses)]
        pairs += [(p.detach().cpu(), q.detach()) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)]
        worst = max(worst, *(distance(a, b) for a, b in pairs))
    return within(worst, 1e-8)


def check_no_waiting() -> str:
    """100 steps of every method without a stage's end in between."""
    for name, make in METHODS.items():
        watch = NoWaiting(10, 110)
        try:
            fit(make(), device_name(), 120, callbacks=(watch,), stage=1000)
        except RuntimeError as error:
            msg = f"{name}: {error}"
            raise AssertionError(msg) from error
        finally:
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")
        if watch.steps != 100:
            msg = f"{name}: only {watch.steps} steps were watched"
            raise AssertionError(msg)
    need_gpu(f"ran on the CPU; that no step waits ({len(METHODS)} methods, {watch.steps} steps each)")
    return f"{len(METHODS)} methods, {watch.steps} steps each"


class Launches(Callback):
    """Kernels that 20 steps launch, and the seconds that 100 further ones take."""

    first, profiled, last = 20, 40, 140

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin either after a pause, so that nothing of the steps before is counted."""
        if trainer.global_step in (self.first, self.profiled):
            torch.cuda.synchronize()
            self.began = time.perf_counter()
        if trainer.global_step == self.first:
            self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self.profile.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop and count."""
        if trainer.global_step == self.profiled:
            torch.cuda.synchronize()
            self.profile.stop()
            calls = [event for event in self.profile.key_averages() if "LaunchKernel" in event.key]
            self.launches = sum(event.count for event in calls) / (self.profiled - self.first)
        elif trainer.global_step == self.last:
            torch.cuda.synchronize()
            self.seconds = (time.perf_counter() - self.began) / (self.last - self.profiled)


class Plain(LightningModule):
    """Cross-entropy with torch's fused Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """On the batches of the other side, whose first rows are positive."""
        scores = self.net(batch.inputs)[:, 0]
        target = (torch.arange(len(scores), device=scores.device) < batch.num_pos).float()
        return nn.functional.binary_cross_entropy_with_logits(scores, target)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Fused."""
        return torch.optim.Adam(self.parameters(), lr=0.01, fused=True)


def check_launches() -> str:
    """A step with all defaults against one of cross-entropy."""
    need_gpu("launches and times of a step")
    found = []
    for module in (TPAUCModule(make_net()), Plain()):
        counted = Launches()
        options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        options |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "limit_val_batches": 0}
        run = Trainer(accelerator="gpu", devices=1, max_epochs=-1, max_steps=150, callbacks=[counted], **options)
        run.fit(module, make_data())
        found.append(f"{counted.launches:.0f} launches, {1e3 * counted.seconds:.2f} ms")
    return f"a step {found[0]}; cross-entropy with fused Adam {found[1]}"


def check_mixed(precision: str, fused: bool) -> str:
    """Ten steps of STACO2 against float32; a gradient scaler itself reads one flag per step from the device."""
    options: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        options = {"precision": None, "plugins": [MixedPrecision("16-mixed", device, scaler=scaler)]}
    # within the first stage: the exact restart amplifies rounding
    ours, _, _ = fit(METHODS["STACO2"](), device_name(), 10, fused=fused, **options)
    theirs, _, _ = fit(METHODS["STACO2"](), device_name(), 10)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return within(max(distance(p.detach(), q.detach()) for p, q in pairs), 2e-2)


def check_compiled() -> str:
    """A compiled backbone, 40 steps and a stage's end."""
    compiled: Any = torch.compile(make_net(), backend="inductor" if torch.cuda.is_available() else "aot_eager")
    _, ours, _ = fit(METHODS["STACO2"](), device_name(), 40, net=compiled)
    _, theirs, _ = fit(METHODS["STACO2"](), device_name(), 40)
    return within(distance(ours, theirs), 1e-3)


def check_resumed() -> str:
    """Dropout's generator of the device included."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(DIM, 16), nn.Dropout(0.5), nn.Linear(16, 1))

    with tempfile.TemporaryDirectory() as folder:
        saver = ModelCheckpoint(folder, every_n_train_steps=15, save_last=True)
        straight, _, _ = fit(METHODS["STACO2"](), device_name(), 50, net=net())
        fit(METHODS["STACO2"](), device_name(), 40, net=net(), callbacks=(saver,))
        torch.manual_seed(99)
        resumed, _, _ = fit(METHODS["STACO2"](), device_name(), 50, net=net(), ckpt=Path(folder, "last.ckpt"))
    pairs = zip(straight.parameters(), resumed.parameters(), strict=True)
    bound = 1e-6 if torch.cuda.is_available() else 0.0  # some kernels of a GPU add in any order
    return within(max(distance(p.detach(), q.detach()) for p, q in pairs), bound)


def check_guard() -> str:
    """A run that diverges is stopped; on a GPU some steps after it happened."""
    try:
        fit(METHODS["STACO1"](), device_name(), 400, lr=1e38, activation="identity")
    except NonFiniteError as error:
        return str(error)
    msg = "a run with lr=1e38 was not stopped"
    raise AssertionError(msg)


def _two_ranks(strategy: DDPStrategy, accelerator: str, devices: Any, folder: str) -> float:
    class Dump(Callback):
        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            weights = [p.detach().cpu() for p in pl_module.parameters()]
            torch.save(weights, Path(folder, f"rank{trainer.global_rank}.pt"))

    fit(METHODS["STACO2"](), accelerator, 40, ranks=2, strategy=strategy, devices=devices, callbacks=(Dump(),))
    single, _, _ = fit(METHODS["STACO2"](), "cpu", 40)
    expected = [p.detach() for p in single.parameters()]
    ranks = [torch.load(Path(folder, f"rank{rank}.pt")) for rank in range(2)]
    return max(distance(p, q) for weights in ranks for p, q in zip(weights, expected, strict=True))


def check_two_ranks_cpu() -> str:
    """Two forks on the CPU; has to come before anything touches the GPU."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        msg = "forks are impossible once CUDA is in use"
        raise Skipped(msg)
    with tempfile.TemporaryDirectory() as folder:
        strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
        return within(_two_ranks(strategy, "cpu", 2, folder), 1e-4)


def check_two_ranks_gpu() -> str:
    """The exchange of scores on GPU tensors by two processes that share the device, over gloo, since NCCL refuses."""
    need_gpu("two processes on one device")
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_share_device, args=(folder,), nprocs=2, join=True)  # type: ignore[no-untyped-call]  # likewise
        except ProcessRaisedException as error:
            if "gloo" not in str(error).lower():
                raise
            msg = f"gloo can't gather GPU tensors here: {str(error).splitlines()[-1]}"
            raise Skipped(msg) from error
        worst = max(float(torch.load(Path(folder, f"rank{rank}.pt"))) for rank in range(2))
    return within(worst, 1e-6)


def _share_device(rank: int, folder: str) -> None:
    """Gradients of a joint loss on two ranks against those of one, with the scores on the GPU."""
    import torch.distributed as dist

    from lightning_tpauc.distributed import gather_scores

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    scores = torch.randn(2, 12, device="cuda")
    own = scores[rank].clone().requires_grad_()
    sizes = (3, 5, 4)
    index = torch.arange(3, device="cuda") + 3 * rank
    pos, neg, dual = torch.split(own, list(sizes))
    joint = gather_scores((pos, neg, dual), index, None, (sizes, sizes))
    loss = (joint.pos_scores[:, None] * joint.neg_scores[None, :].sin()).mean() + joint.dual_neg_scores.square().sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    whole = scores.clone().requires_grad_()
    pos, neg, dual = (part.reshape(-1) for part in torch.split(whole, list(sizes), dim=1))
    expected = (pos[:, None] * neg[None, :].sin()).mean() + dual.square().sum()
    expected.backward()  # type: ignore[no-untyped-call]  # likewise
    assert own.grad is not None and whole.grad is not None  # noqa: S101, PT018  # for the type checker
    # data-parallel training averages over ranks, so each rank's gradient is twice its part
    error = max(distance(own.grad, 2 * whole.grad[rank]), float((joint.index != torch.arange(6, device="cuda")).sum()))
    torch.save(torch.tensor(error), Path(folder, f"rank{rank}.pt"))
    dist.destroy_process_group()


CHECKS: dict[str, Callable[[], str]] = {
    "two ranks equal one, on the CPU": check_two_ranks_cpu,
    "CPU and GPU give one trajectory": check_parity,
    "no step waits for the device": check_no_waiting,
    "launches and times of a step": check_launches,
    "bf16-mixed": lambda: check_mixed("bf16-mixed", fused=False),
    "16-mixed": lambda: check_mixed("16-mixed", fused=False),
    "16-mixed, fused optimizer": lambda: check_mixed("16-mixed", fused=True),
    "compiled backbone": check_compiled,
    "resumed equals unbroken": check_resumed,
    "divergence is stopped": check_guard,
    "two ranks on one GPU": check_two_ranks_gpu,
}


def main(arguments: list[str] | None = None) -> None:
    """Run all checks, or those whose name contains the argument."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="")
    args = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"torch {torch.__version__}" + ("" if torch.cuda.is_available() else ", no GPU: its checks are skipped"))
    failed = 0
    for title, check in CHECKS.items():
        if args.name not in title:
            continue
        began = time.monotonic()
        try:
            verdict, detail = "ok", check()
        except Skipped as reason:
            verdict, detail = "skipped", str(reason)
        except Exception as error:
            verdict, detail, failed = "FAILED", f"{type(error).__name__}: {error}", failed + 1
        print(f"{verdict:<8}{title:<34}{time.monotonic() - began:6.1f} s  {detail}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
