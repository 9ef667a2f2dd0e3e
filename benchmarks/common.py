"""What the benchmarks share: interleaved timing, a Trainer without trimmings, the plain cross-entropy module.

Two sides are always timed in one process, in turns, so that whatever else the machine does hits both alike. A ratio is
the median over rounds of the ratio within a round. The clock is the processor time of this process, which for work on
one thread is the wall-clock time of a machine that does nothing else; ``--wall`` takes the wall clock.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

__all__ = (
    "PlainCrossEntropy",
    "Repeat",
    "Timing",
    "arguments",
    "bare_trainer",
    "compare",
    "data_folder",
    "fit_seconds_per_step",
    "header",
    "import_libauc",
    "now",
    "once",
    "quiet",
    "repeat",
    "verdict",
)


def arguments(doc: str | None, args: list[str] | None = None, **options: Any) -> argparse.Namespace:
    """``--quick`` and further options with their defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, less than a minute")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; more than one implies --wall")
    parser.add_argument("--wall", action="store_true", help="wall-clock instead of processor time")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parsed = parser.parse_args(args)
    torch.set_num_threads(parsed.threads)
    if parsed.wall or parsed.threads > 1:
        _Clock.now = time.perf_counter
    return parsed


class _Clock:
    now: Callable[[], float] = time.process_time


def now() -> float:
    """Seconds on the chosen clock."""
    return _Clock.now()


def header(title: str) -> None:
    """What was measured, where, and how busy the machine was."""
    print(f"## {title}")
    clock = "processor" if _Clock.now is time.process_time else "wall-clock"
    print(
        f"{time.strftime('%Y-%m-%d')}, {_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{torch.get_num_threads()} thread(s), {clock} time, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":")[1].strip() if names else platform.machine()


def verdict(what: str, value: float, target: float, *, at_least: bool = False, unit: str = "") -> bool:
    """Print one line that compares a figure with its target."""
    met = value >= target if at_least else value <= target
    sign = ">=" if at_least else "<="
    print(f"{what}: {value:.3g}{unit} (target {sign} {target:g}{unit}) {'ok' if met else 'MISSED'}")
    return met


class Timing(NamedTuple):
    """Seconds of one side over the rounds."""

    seconds: list[float]

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.seconds)

    def over(self, other: Timing) -> float:
        """Median of the ratios within a round."""
        return statistics.median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def once(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = now()
    work()
    return now() - start


def repeat(work: Callable[[], Any], times: int) -> Callable[[], float]:
    """A side that does ``work`` several times and returns the seconds of one, for works of microseconds."""

    def side() -> float:
        start = now()
        for _ in range(times):
            work()
        return (now() - start) / times

    return side


def compare(
    sides: Mapping[str, Callable[[], float]], rounds: int, unit: float = 1e3, name: str = "ms"
) -> dict[str, Timing]:
    """Time all sides in turns, the order reversed from round to round, and print a table.

    Args:
        sides: functions that do their work and return the seconds it took.
        rounds: repetitions after one that warms up.
        unit: units in a second.
        name: name of the unit.
    """
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for k in range(rounds + 1):
        order = list(sides.items())
        for side, work in order if k % 2 else reversed(order):
            gc.collect()
            seconds[side].append(work())
    clocks = {side: Timing(values[1:]) for side, values in seconds.items()}
    first = next(iter(clocks.values()))
    print(f"| side | median {name} | min | max | ratio to the first |")
    print("|---|---|---|---|---|")
    for side, clock in clocks.items():
        numbers = " | ".join(f"{unit * x:.4g}" for x in (clock.median, min(clock.seconds), max(clock.seconds)))
        print(f"| {side} | {numbers} | {clock.over(first):.3f} |")
    return clocks


# ---------------------------------------------------------------------------------------------------------- training


def quiet() -> None:
    """Keep Lightning's messages out of the tables."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def bare_trainer(**options: Any) -> Trainer:
    """A Trainer on one CPU device without logger, checkpoints, progress bar and summary, but for ``options``."""
    return Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


class PlainCrossEntropy(LightningModule):
    """Cross-entropy as one writes it in Lightning; batches are those of a ``PosNegDataModule``."""

    def __init__(self, backbone: nn.Module, lr: float = 0.1) -> None:
        super().__init__()
        self.backbone = backbone
        self.lr = lr

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, target = batch[0], batch[1]
        loss = nn.functional.binary_cross_entropy_with_logits(self.backbone(inputs).reshape(-1), target)
        self.log("train/loss", loss, batch_size=len(target))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class _StepTimer(Callback):
    """Seconds between the end of a warm-up batch and the end of the last one."""

    def __init__(self, warmup: int, last: int) -> None:
        self.warmup, self.last = warmup, last
        self.start = self.stop = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.warmup - 1:
            self.start = now()
        elif batch_idx == self.last - 1:
            self.stop = now()


def fit_seconds_per_step(
    module: LightningModule, data: Any, steps: int, warmup: int = 20, callbacks: Iterable[Callback] = (), **kwargs: Any
) -> float:
    """Seconds per step of a fit of ``steps`` batches; everything of Lightning that happens in a step is included.

    Args:
        module: what to train.
        data: a data module, or an iterable of batches.
        steps: batches, of which the first ``warmup`` don't count.
        warmup: see ``steps``.
        callbacks: further callbacks.
        **kwargs: of the Trainer.
    """
    timer = _StepTimer(warmup, steps)
    trainer = bare_trainer(
        max_epochs=1,
        limit_train_batches=steps,
        callbacks=[*callbacks, timer],
        **kwargs,
    )
    trainer.fit(module, data)
    if not timer.stop:
        msg = f"An epoch has fewer than {steps} steps."
        raise ValueError(msg)
    return (timer.stop - timer.start) / (steps - warmup)


class Repeat:
    """Ready-made batches, again and again: what remains is the training step."""

    def __init__(self, batches: list[Any], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self.batches), self.length)


# ------------------------------------------------------------------------------------------------- peers and data


def import_libauc() -> tuple[Any, Any, Any]:
    """Loss, optimizer and sampler of LibAUC, the authors' package (``pip install 'lightning-tpauc[benchmarks]'``)."""
    from libauc.losses.auc import tpAUC_CVaR_loss
    from libauc.optimizers import STACO
    from libauc.sampler import DualSampler

    return tpAUC_CVaR_loss, STACO, DualSampler


def data_folder() -> Path:
    """The folder of real data sets: ``$TPAUC_DATA``, or ``../shared/data`` beside the repository."""
    return Path(os.environ.get("TPAUC_DATA") or Path(__file__).resolve().parents[1].parent / "shared" / "data")
