"""Time per step of all methods on the same batches."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from typing_extensions import override

from examples.paper.catalog import Experiment, Schedule
from examples.paper.methods import Method, settings_of
from examples.paper.report import draw_times, environment
from examples.paper.reported import SECONDS_PER_ITERATION
from examples.paper.trial import Options, build_datamodule, build_module, build_trainer, stages
from lightning_tpauc.comparison.report import as_png

_ROUNDS = 3
_WARM_UP = 3


class StepTimes(Callback):
    """Wall-clock and processor time of each training step in milliseconds, without the time that the loader takes."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []
        self._started = (0.0, 0.0)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._started = _now()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        wall, processor = _now()
        self.times.append((1e3 * (wall - self._started[0]), 1e3 * (processor - self._started[1])))


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def time_methods(experiment: Experiment, options: Options, results: Path, steps: int, command: str) -> Path:
    """Time every method in turns, several rounds, on batches of the same positives and negatives.

    Cross-entropy gets class-balanced batches here, like the others; STACO is timed with one batch of negatives and
    with the paper's two, SONX also with its correction, which needs a second forward pass.
    """
    methods = [m for m in experiment.methods if m.fixed.get("dual_init") != "ones"]
    for method in list(methods):
        if "share_negatives" in method.fixed:
            fixed = {k: v for k, v in method.fixed.items() if k != "share_negatives"}
            methods.append(
                replace(method, name=f"{method.name}, two negative batches", fixed=fixed, sizes=(32, 16, 16))
            )
        if method.algorithm == "SONX":
            fixed = {**method.fixed, "gamma": 0.1}
            methods.append(replace(method, name="SONX with correction", fixed=fixed, reported_as=None))
    found: dict[str, list[tuple[float, float]]] = {method.name: [] for method in methods}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # no messages of dozens of Trainers
    for _ in range(_ROUNDS):
        for method in methods:
            found[method.name] += _time(experiment, method, options, steps)
    folder = results / f"{experiment.name}-seconds-per-step"
    folder.mkdir(parents=True, exist_ok=True)
    wall = {name: [own[0] for own in times] for name, times in found.items()}
    (folder / "times.png").write_bytes(as_png(draw_times(wall, f"{experiment.name}, {experiment.model[0]}")))
    lines = [
        f"# Seconds per step: {experiment.name}\n\nCommand: `{command}`\n",
        f"Backbone {experiment.model[0]}, 64 examples a step, {_ROUNDS} rounds of {steps} steps in turns, medians; "
        f"{options.threads} thread(s). Processor time is what a busy machine disturbs least. {environment()}. The "
        "paper's seconds are on hardware that it doesn't name.\n",
        "| method | wall clock, ms | processor, ms | paper, s |\n|---|---|---|---|",
    ]
    for method in methods:
        reported = SECONDS_PER_ITERATION.get(method.reported_as or method.name, {}).get(experiment.data_name)
        clock, processor = (statistics.median(own) for own in zip(*found[method.name], strict=True))
        paper = "—" if reported is None else f"{reported:.2f}"
        lines.append(f"| {method.name} | {clock:.2f} | {processor:.2f} | {paper} |")
    path = folder / "README.md"
    path.write_text("\n".join([*lines, "\n![Time per step](times.png)\n"]), encoding="utf-8")
    return path


def _time(experiment: Experiment, method: Method, options: Options, steps: int) -> list[tuple[float, float]]:
    seed_everything(0, verbose=False)
    schedule = Schedule(steps=steps + _WARM_UP)
    datamodule = build_datamodule(experiment, options, 0 if experiment.folds else None, 5, method.sizes)
    datamodule.sampling = "pos_neg"
    rectangle = (0.5, 0.5) if method.by_rectangle else None
    module = build_module(experiment, method, settings_of(method.grid)[0], rectangle, schedule)
    times = StepTimes()
    build_trainer(schedule, options, [stages(method), times], validates=False).fit(module, datamodule)
    return times.times[_WARM_UP:]
