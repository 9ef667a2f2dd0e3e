"""Time per step of all methods on the same batches."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from typing_extensions import override

from examples.paper.build import Options, build_datamodule, build_module, build_trainer, stages
from examples.paper.catalog import Experiment, Schedule
from examples.paper.figures import draw_times
from examples.paper.grids import settings_of
from examples.paper.methods import Method
from examples.paper.report import environment
from examples.paper.reported import SECONDS_PER_ITERATION

__all__ = ("StepTimes", "time_methods")

_ROUNDS = 3
_WARM_UP = 3


class StepTimes(Callback):
    """Wall-clock and processor time of each training step, without the time that the loader takes."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []
        self._started = (0.0, 0.0)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._started = _now()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        wall, processor = _now()
        self.wall.append(1e3 * (wall - self._started[0]))
        self.processor.append(1e3 * (processor - self._started[1]))


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def time_methods(experiment: Experiment, options: Options, results: Path, steps: int, command: str) -> Path:
    """Time every method in turns, several rounds, on batches of the same positives and negatives.

    Cross-entropy gets class-balanced batches here, like the others; STACO is timed with one batch of negatives and
    with the paper's two.

    Args:
        experiment: data, model and methods.
        options: where to read and how to run.
        results: folder of results.
        steps: steps per round and method.
        command: the command that was given, for the record.

    Returns:
        The path of the Markdown file.
    """
    methods = [m for m in experiment.methods if m.fixed.get("dual_init") != "ones"]
    methods += [_two_batches(m) for m in methods if "share_negatives" in m.fixed]
    methods += [_corrected(m) for m in methods if m.algorithm == "SONX"]
    wall: dict[str, list[float]] = {m.name: [] for m in methods}
    processor: dict[str, list[float]] = {m.name: [] for m in methods}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # no messages of dozens of Trainers
    for _ in range(_ROUNDS):
        for method in methods:
            times = _time(experiment, method, options, steps)
            wall[method.name] += times.wall[_WARM_UP:]
            processor[method.name] += times.processor[_WARM_UP:]
    folder = results / f"{experiment.name}-seconds-per-step"
    draw_times(wall, f"{experiment.name}, {experiment.model[0]}", folder / "times.png")
    path = folder / "README.md"
    path.write_text(_markdown(experiment, methods, wall, processor, command, options, steps), encoding="utf-8")
    return path


def _two_batches(method: Method) -> Method:
    fixed = {k: v for k, v in method.fixed.items() if k != "share_negatives"}
    return replace(method, name=f"{method.name}, two negative batches", fixed=fixed, sizes=(32, 16, 16))


def _corrected(method: Method) -> Method:
    """SONX with its correction, which needs a second forward pass."""
    return replace(method, name="SONX with correction", fixed={**method.fixed, "gamma": 0.1}, reported_as=None)


def _time(experiment: Experiment, method: Method, options: Options, steps: int) -> StepTimes:
    seed_everything(0, verbose=False)
    schedule = Schedule(steps=steps + _WARM_UP)
    datamodule = build_datamodule(experiment, options, 0 if experiment.folds else None, 5, method.sizes)
    datamodule.sampling = "pos_neg"
    settings = settings_of(method.grid)[0]
    rectangle = (0.5, 0.5) if method.by_rectangle else None
    module = build_module(experiment, method, settings, rectangle, schedule)
    times = StepTimes()
    build_trainer(schedule, options, [stages(method), times], validates=False).fit(module, datamodule)
    return times


def _markdown(
    experiment: Experiment,
    methods: list[Method],
    wall: dict[str, list[float]],
    processor: dict[str, list[float]],
    command: str,
    options: Options,
    steps: int,
) -> str:
    lines = [
        f"# Seconds per step: {experiment.name}",
        "",
        f"Command: `{command}`",
        "",
        f"Backbone {experiment.model[0]}, 64 examples a step, {_ROUNDS} rounds of {steps} steps in turns, medians; "
        f"{options.threads} thread(s). Processor time is what a busy machine disturbs least. {environment()}. The "
        "paper's seconds are on hardware that it doesn't name.",
        "",
        "| method | wall clock, ms | processor, ms | paper, s |",
        "|---|---|---|---|",
    ]
    for method in methods:
        reported = SECONDS_PER_ITERATION.get(method.reported_as or method.name, {}).get(experiment.data_name)
        cells = (statistics.median(wall[method.name]), statistics.median(processor[method.name]))
        paper = "—" if reported is None else f"{reported:.2f}"
        lines.append(f"| {method.name} | {cells[0]:.2f} | {cells[1]:.2f} | {paper} |")
    lines += ["", "![Time per step](times.png)", ""]
    return "\n".join(lines)
