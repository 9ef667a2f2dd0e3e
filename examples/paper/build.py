"""Data module, module and Trainer of one trial."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LRSchedulerCallable

from examples.paper.catalog import Experiment, Schedule
from examples.paper.grids import Settings, spread
from examples.paper.methods import WEIGHT_DECAY, Method
from lightning_tpauc import algorithms, data, models
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.metrics.reporting import Rectangle
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.training.stages import StageCallback

__all__ = ("Options", "build_datamodule", "build_module", "build_pretraining", "build_trainer", "stages")


@dataclass(frozen=True)
class Options:
    """Where a trial reads and how it runs; nothing in here changes its result.

    Attributes:
        data_root: folder of the data set's files.
        cache_dir: where parsed data and pre-trained weights are kept.
        accelerator: ``"cpu"``, ``"gpu"`` or ``"auto"``.
        threads: threads of torch per process; 0 leaves them alone.
        num_resamples: of the bootstrap.
        curve_points: points of a training curve.
        download: whether missing files are downloaded to ``data_root``.
    """

    data_root: str
    cache_dir: str
    accelerator: str = "cpu"
    threads: int = 1
    num_resamples: int = 500
    curve_points: int = 20
    download: bool = False


_PAPER_LOSS: Mapping[str, Any] = {"surrogate": "squared_hinge", "margin": 0.5, "step_units": "absolute"}
#: What the paper's methods have where it says nothing else.
PAPER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "STACO": {**_PAPER_LOSS, "beta": 0.3, "beta_prime": 0.3, "share_negatives": False},
    "SOTA": {**_PAPER_LOSS, "alpha": 0.1, "beta": 0.1, "beta_prime": 0.1},
    "SONX": {**_PAPER_LOSS, "beta": 0.1, "beta_prime": 0.1},
    "SOTAs": {**_PAPER_LOSS, "lam": 1.0, "lam_prime": 1.0},
}
#: How the paper trains: a fixed rectangle, the mean of all iterates, the last solution.
PAPER_TRAINING: Mapping[str, Any] = {"averaging": "uniform", "shrink_rectangle": False, "keep_best": False}


def build_datamodule(
    experiment: Experiment,
    options: Options,
    fold: int | None,
    num_folds: int,
    sizes: tuple[int, int, int],
    seed: int = 0,
    epoch_sizes: tuple[int, int] | None = None,
) -> PosNegDataModule:
    """The data module of a fold.

    Args:
        experiment: which data.
        options: where they are.
        fold: fold that validates; ``None`` where the data have a validation part.
        num_folds: number of folds.
        sizes: positives, negatives and dual negatives per step.
        seed: of the batches.
        epoch_sizes: see :class:`~examples.paper.methods.Method`.
    """
    name, arguments = experiment.data
    own: dict[str, Any] = {**arguments, "root": options.data_root, "seed": seed, "download": options.download}
    own["num_pos"], own["num_neg"], own["num_dual_neg"] = sizes
    if name in ("LIBSVMDataModule", "SMILESDataModule"):
        own["cache_dir"] = options.cache_dir
    if fold is not None:
        own.update(num_folds=num_folds, fold=fold)
    if epoch_sizes is not None:
        other = build_datamodule(experiment, options, fold, num_folds, (*epoch_sizes, 0))
        other.prepare_data()
        other.setup("fit")
        own["steps_per_epoch"] = other.steps_per_epoch
    datamodule: PosNegDataModule = getattr(data, name)(**own)
    return datamodule


def build_module(
    experiment: Experiment,
    method: Method,
    settings: Settings,
    rectangle: tuple[float, float] | None,
    schedule: Schedule,
) -> TPAUCModule:
    """The module of a method with these settings."""
    own = spread(dict(settings))
    optimizer = partial(
        torch.optim.SGD, lr=own.pop("lr"), momentum=own.pop("momentum", _momentum(method)), weight_decay=WEIGHT_DECAY
    )
    activation = own.pop("score_activation", method.activation or experiment.activation)
    if rectangle is not None:
        own["min_tpr"], own["max_fpr"] = rectangle
    standing = PAPER_SETTINGS.get(method.algorithm, {})
    algorithm = getattr(algorithms, method.algorithm)(**{**standing, **method.fixed, **own})
    return TPAUCModule(
        _backbone(experiment.model),
        algorithm,
        optimizer,
        _decay(schedule),
        lr_scheduler_interval="step" if schedule.steps else "epoch",
        score_activation=activation,
        rectangles=[r for r in experiment.rectangles if r != Rectangle(algorithm.min_tpr, algorithm.max_fpr)],
    )


def build_pretraining(experiment: Experiment, schedule: Schedule) -> TPAUCModule:
    """The module of the shared start: cross-entropy with Adam at 1e-3."""
    return TPAUCModule(
        _backbone(experiment.model),
        algorithms.CrossEntropy(),
        partial(torch.optim.Adam, lr=1e-3, weight_decay=WEIGHT_DECAY),
        _decay(schedule),
        score_activation=experiment.activation,
        rectangles=experiment.rectangles,
    )


def build_trainer(schedule: Schedule, options: Options, callbacks: list[Callback], *, validates: bool) -> Trainer:
    """A quiet Trainer; without validation Lightning's logging is off, which is a quarter of a linear model's step."""
    warnings.filterwarnings("ignore", message="You are trying to `self.log")  # barebones: nothing is to be logged
    quiet: dict[str, Any] = {"barebones": True}
    if validates:
        quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"), False)
        quiet["num_sanity_val_steps"] = 0
    return Trainer(
        accelerator=options.accelerator,
        devices=1,
        max_steps=schedule.steps or -1,
        max_epochs=schedule.epochs or -1,
        limit_val_batches=None if validates else 0,
        callbacks=callbacks,
        **quiet,
    )


def stages(method: Method) -> StageCallback:
    """The stages of a method, as the paper has them."""
    return StageCallback(every_n_epochs=method.stage_epochs, every_n_steps=method.stage_steps, **PAPER_TRAINING)


def _backbone(model: tuple[str, Mapping[str, Any]]) -> torch.nn.Module:
    name, arguments = model
    backbone: torch.nn.Module = getattr(models, name)(**arguments)
    return backbone


def _decay(schedule: Schedule) -> LRSchedulerCallable:
    return partial(torch.optim.lr_scheduler.MultiStepLR, milestones=list(schedule.milestones), gamma=0.1)


def _momentum(method: Method) -> float:
    """The paper's momentum of AUCM; the other methods have none."""
    return 0.9 if method.algorithm == "AUCM" else 0.0
