"""One training and what is measured about it."""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, seed_everything

from examples.paper.build import (
    Options,
    build_datamodule,
    build_module,
    build_pretraining,
    build_trainer,
    stages,
)
from examples.paper.catalog import Experiment, Schedule
from examples.paper.methods import Method
from examples.paper.recorders import BestWeights, CurveRecorder, raw_scores
from examples.paper.records import Outcome, Trial
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import DataError, NonFiniteError
from lightning_tpauc.files import replacing
from lightning_tpauc.functional import bootstrap_interval, two_way_partial_auroc
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from lightning_tpauc.module import TPAUCModule

__all__ = ("pretrained_path", "run_trial")


def run_trial(experiment: Experiment, method: Method | None, trial: Trial, num_folds: int, options: Options) -> Outcome:
    """Train, and measure on validation data; a final trial also measures on test data and records training curves.

    Args:
        experiment: what the trial belongs to.
        method: the method; ``None`` for pre-training.
        trial: the trial.
        num_folds: number of folds.
        options: where to read and how to run.

    Returns:
        The outcome; ``"failed"`` if the numbers became infinite.
    """
    started = time.perf_counter()
    with warnings.catch_warnings():
        _silence(options)
        seed_everything(trial.seed, verbose=False)
        try:
            outcome = (
                _pretrain(experiment, trial, num_folds, options)
                if method is None
                else _train(experiment, method, trial, num_folds, options)
            )
        except NonFiniteError as error:
            outcome = Outcome("failed", message=str(error))
    return replace(outcome, seconds=time.perf_counter() - started)


def pretrained_path(trial: Trial, options: Options) -> Path:
    """Where the weights of the pre-training trial lie."""
    digest = hashlib.blake2b(trial.key.encode(), digest_size=8).hexdigest()
    return Path(options.cache_dir) / f"pretrained-{trial.experiment}-{digest}.pt"


def _pretrain(experiment: Experiment, trial: Trial, num_folds: int, options: Options) -> Outcome:
    schedule = _schedule(trial.protocol["schedule"])
    datamodule = build_datamodule(experiment, options, trial.fold, num_folds, (32, 32, 0), trial.seed)
    module = build_pretraining(experiment, schedule)
    best = BestWeights(experiment.rectangles)
    build_trainer(schedule, options, [best], validates=True).fit(module, datamodule)
    with replacing(pretrained_path(trial, options)) as file:  # another runner may be reading
        torch.save(best.weights[experiment.rectangles[0]], file)
    return Outcome("finished", val={metric_name(r): value for r, value in best.values.items()})


def _train(experiment: Experiment, method: Method, trial: Trial, num_folds: int, options: Options) -> Outcome:
    schedule = _schedule(trial.protocol["schedule"])
    datamodule = build_datamodule(
        experiment, options, trial.fold, num_folds, method.sizes, trial.seed, method.epoch_sizes
    )
    module = build_module(experiment, method, dict(trial.settings), trial.rectangle, schedule)
    if "pretrained" in trial.protocol:
        module.load_state_dict(_start(Trial(**trial.protocol["pretrained"]), options))
    validates = schedule.epochs is not None
    callbacks: list[Callback] = [stages(method)]
    best = BestWeights(experiment.rectangles) if validates else None
    if best is not None:
        callbacks.append(best)
    recorder = None
    if trial.kind == "final":
        recorder = _curve_recorder(experiment, module, datamodule, schedule, options)
        callbacks.append(recorder)
    build_trainer(schedule, options, callbacks, validates=validates).fit(module, datamodule)
    outcome = Outcome("finished", curve=recorder.curve if recorder is not None else [])
    for rectangle in experiment.rectangles:
        if best is not None:
            module.load_state_dict(best.weights[rectangle])
        _measure(outcome, module, datamodule, rectangle, trial.kind == "final", options)
    return outcome


def _start(trial: Trial, options: Options) -> dict[str, torch.Tensor]:
    path = pretrained_path(trial, options)
    if not path.is_file():
        msg = f"There are no weights of the shared start in {path}: its pre-training failed. Change its data or model."
        raise DataError(msg)
    weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def _measure(
    outcome: Outcome,
    module: TPAUCModule,
    datamodule: PosNegDataModule,
    rectangle: Rectangle,
    final: bool,
    options: Options,
) -> None:
    name = metric_name(rectangle)
    loader = datamodule.val_dataloader()
    if isinstance(loader, list):
        msg = "Settings are chosen on validation data, but there are none: give the experiment folds."
        raise DataError(msg)
    outcome.val[name] = float(two_way_partial_auroc(*raw_scores(module, loader), *rectangle))
    if final:
        datamodule.setup("test")
        scores, target = raw_scores(module, datamodule.test_dataloader())
        estimate, *ends = bootstrap_interval(scores, target, *rectangle, num_resamples=options.num_resamples)
        outcome.test[name] = float(estimate)
        outcome.interval[name] = (float(ends[0]), float(ends[1]))


def _curve_recorder(
    experiment: Experiment, module: TPAUCModule, datamodule: PosNegDataModule, schedule: Schedule, options: Options
) -> CurveRecorder:
    total = schedule.steps
    if total is None:
        datamodule.setup("fit")
        total = (schedule.epochs or 0) * datamodule.steps_per_epoch
    # half of the points in the first sixth, where curves move most
    half = options.curve_points // 2
    early = [round(total / 6 * k / half) for k in range(half)]
    late = [round(total / 6 + total * 5 / 6 * k / (options.curve_points - half - 1)) for k in range(half)]
    own = Rectangle(module.algorithm.min_tpr, module.algorithm.max_fpr)
    return CurveRecorder([*early, *late, total], own, experiment.rectangles)


def _schedule(values: dict[str, Any]) -> Schedule:
    return Schedule(values["steps"], values["epochs"], tuple(values["milestones"]))


def _silence(options: Options) -> None:
    """No messages of hundreds of Trainers; errors still show."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if options.threads:
        torch.set_num_threads(options.threads)
