"""One training: its data, module and Trainer, what identifies it, and what is measured about it."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.cli import LRSchedulerCallable
from torch import Tensor
from typing_extensions import override

from examples.paper.catalog import Experiment, Schedule
from examples.paper.methods import WEIGHT_DECAY, Method, Settings, spread
from lightning_tpauc import algorithms, data, models
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import DataError, NonFiniteError
from lightning_tpauc.files import replacing
from lightning_tpauc.functional import bootstrap_interval, tpauc_objective, two_way_partial_auroc
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.forward import device_batches
from lightning_tpauc.training.rectangle import score_training_set
from lightning_tpauc.training.stages import StageCallback

_LOSS: Mapping[str, Any] = {"surrogate": "squared_hinge", "margin": 0.5}
_PAPER_LOSS: Mapping[str, Any] = {**_LOSS, "step_units": "absolute"}
#: What the paper's methods have where it says nothing else.
PAPER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "STACO": {**_PAPER_LOSS, "beta": 0.3, "beta_prime": 0.3, "share_negatives": False},
    "SOTA": {**_PAPER_LOSS, "alpha": 0.1, "beta": 0.1, "beta_prime": 0.1},
    "SONX": {**_PAPER_LOSS, "beta": 0.1, "beta_prime": 0.1},
    "SOTAs": {**_PAPER_LOSS, "lam": 1.0, "lam_prime": 1.0},
    "CrossEntropy": {"average": False},
}
#: How the paper trains: a fixed rectangle, the mean of all iterates, the last solution.
PAPER_TRAINING: Mapping[str, Any] = {"averaging": "uniform", "shrink_rectangle": False, "keep_best": False}


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


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        experiment: name of the experiment.
        method: name of the method.
        settings: value of each searched argument.
        fold: fold that validates; ``None`` for data with a validation part of its own.
        seed: seed of the initial weights and of the batches.
        rectangle: rectangle that is trained on, as (min_tpr, max_fpr); ``None`` if the settings or nothing decides.
        kind: ``"pretrain"`` makes the start of the others, ``"search"`` sees validation data only, ``"final"`` is the
            chosen setting again, with test values and training curves.
        protocol: whatever else changes the result: schedule, data, model, fixed arguments.
    """

    experiment: str
    method: str
    settings: Mapping[str, Any]
    fold: int | None
    seed: int = 0
    rectangle: tuple[float, float] | None = None
    kind: Literal["pretrain", "search", "final"] = "search"
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits of all fields: equal digests have equal results."""
        key = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()

    @property
    def schedule(self) -> Schedule:
        """How long it lasts."""
        own = self.protocol["schedule"]
        return Schedule(own["steps"], own["epochs"], tuple(own["milestones"]))


@dataclass
class Outcome:
    """What a trial yields; rectangles are named as in :func:`~lightning_tpauc.metrics.reporting.metric_name`.

    Attributes:
        status: ``"failed"`` if the numbers became infinite: a result about the setting, not a fault of the run.
        message: why it failed.
        seconds: wall-clock time, validations included.
        val: validation TPAUC by rectangle.
        test: test TPAUC by rectangle, for final trials.
        interval: ends of the bootstrap interval of ``test``, by rectangle.
        curve: points during training, for final trials.
    """

    status: Literal["finished", "failed"]
    message: str = ""
    seconds: float = 0.0
    val: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    interval: dict[str, tuple[float, float]] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


# ---------------------------------------------------------------- data module, module and Trainer


def build_datamodule(
    experiment: Experiment,
    options: Options,
    fold: int | None,
    num_folds: int,
    sizes: tuple[int, int, int],
    seed: int = 0,
    epoch_sizes: tuple[int, int] | None = None,
) -> PosNegDataModule:
    """The data module of a fold, with numbers of positives, negatives and dual negatives per step."""
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
    method: Method | None,
    settings: Settings,
    rectangle: tuple[float, float] | None,
    schedule: Schedule,
) -> TPAUCModule:
    """The module of a method with these settings; without a method, of the shared start: cross-entropy with Adam."""
    name, arguments = experiment.model
    decay: LRSchedulerCallable = partial(
        torch.optim.lr_scheduler.MultiStepLR, milestones=list(schedule.milestones), gamma=0.1
    )
    optimizer: Any
    if method is None:
        algorithm: algorithms.Algorithm = algorithms.CrossEntropy(average=False)
        optimizer, activation = partial(torch.optim.Adam, lr=1e-3, weight_decay=WEIGHT_DECAY), experiment.activation
    else:
        own = {**PAPER_SETTINGS.get(method.algorithm, {}), **method.fixed, **spread(settings)}
        momentum = own.pop("momentum", 0.9 if method.algorithm == "AUCM" else 0.0)  # the paper's
        optimizer = partial(torch.optim.SGD, lr=own.pop("lr"), momentum=momentum, weight_decay=WEIGHT_DECAY)
        activation = own.pop("score_activation", method.activation or experiment.activation)
        if rectangle is not None:
            own["min_tpr"], own["max_fpr"] = rectangle
        algorithm = getattr(algorithms, method.algorithm)(**own)
    return TPAUCModule(
        getattr(models, name)(**arguments),
        algorithm,
        optimizer,
        decay,
        lr_scheduler_interval="step" if schedule.steps else "epoch",
        score_activation=activation,
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


# ---------------------------------------------------------------- what is recorded


class CurveRecorder(Callback):
    """Exact training objective, training TPAUC and the method's own loss, after some steps.

    The first two are those of the solution so far: STACO's is an average, so this is what training would return if it
    stopped there. The last is the mean of what the steps since the point before returned.
    """

    def __init__(self, steps: Iterable[int], rectangles: Sequence[Rectangle]) -> None:
        self.steps, self.rectangles = set(steps), rectangles
        self.curve: list[dict[str, float]] = []
        self._losses: list[Tensor] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if 0 in self.steps:
            self._look(pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._losses.append(outputs["loss"])
        if pl_module.training_state.batches_seen in self.steps:
            self._look(pl_module)

    def _look(self, module: TPAUCModule) -> None:
        module.training_state.show_average()
        ((pos, neg),) = score_training_set(module) or []
        module.training_state.restore_last_iterate()
        scores, target = torch.cat([pos, neg]), torch.cat([torch.ones_like(pos), torch.zeros_like(neg)]).long()
        point = {"step": float(module.training_state.batches_seen)}
        for rectangle in self.rectangles:
            point[metric_name(rectangle)] = float(two_way_partial_auroc(scores, target, *rectangle))
            point[objective_name(rectangle)] = float(tpauc_objective(pos, neg, *rectangle, **_LOSS))
        if self._losses:
            point["loss"] = float(torch.stack(self._losses).mean())
        self._losses = []
        self.curve.append(point)


def objective_name(rectangle: Rectangle) -> str:
    """What a point of a curve calls the exact objective of a rectangle."""
    return f"objective_{metric_name(rectangle)}"


class BestWeights(Callback):
    """The weights of the best validation for each rectangle; the Trainer holds the average while this looks."""

    def __init__(self, rectangles: Sequence[Rectangle]) -> None:
        self.values: dict[Rectangle, float] = dict.fromkeys(rectangles, -1.0)
        self.weights: dict[Rectangle, dict[str, Tensor]] = {}

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        for rectangle in self.values:
            value = float(trainer.callback_metrics[f"val/{metric_name(rectangle)}"])
            if value > self.values[rectangle]:
                self.values[rectangle] = value
                self.weights[rectangle] = copy.deepcopy(pl_module.state_dict())


@torch.no_grad()
def raw_scores(module: TPAUCModule, loader: Any) -> tuple[Tensor, Tensor]:
    """Raw scores and targets of all batches, on the CPU: sigmoids would tie the largest scores."""
    module.to(module.trainer.strategy.root_device).eval()  # a Trainer that has finished leaves its model on the CPU
    found = [(module.raw_scores(b.inputs).cpu(), b.target.cpu()) for b in device_batches(module, loader, "Scoring")]
    scores, targets = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(targets)


# ---------------------------------------------------------------- the training


def run_trial(experiment: Experiment, method: Method | None, trial: Trial, num_folds: int, options: Options) -> Outcome:
    """Train, and measure on validation data; a final trial also measures on test data and records training curves.

    Without a method this makes the start that the others share.
    """
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # no messages of hundreds of Trainers
        if options.threads:
            torch.set_num_threads(options.threads)
        seed_everything(trial.seed, verbose=False)
        try:
            outcome = _train(experiment, method, trial, num_folds, options)
        except NonFiniteError as error:
            outcome = Outcome("failed", message=str(error))
    return replace(outcome, seconds=time.perf_counter() - started)


def pretrained_path(trial: Trial, options: Options) -> Path:
    """Where the weights of the pre-training trial lie."""
    return Path(options.cache_dir) / f"pretrained-{trial.experiment}-{trial.digest}.pt"


def _train(experiment: Experiment, method: Method | None, trial: Trial, num_folds: int, options: Options) -> Outcome:
    schedule, best = trial.schedule, BestWeights(experiment.rectangles)
    sizes, epoch_sizes = ((32, 32, 0), None) if method is None else (method.sizes, method.epoch_sizes)
    datamodule = build_datamodule(experiment, options, trial.fold, num_folds, sizes, trial.seed, epoch_sizes)
    module = build_module(experiment, method, dict(trial.settings), trial.rectangle, schedule)
    if method is None:
        build_trainer(schedule, options, [best], validates=True).fit(module, datamodule)
        with replacing(pretrained_path(trial, options)) as file:  # another runner may be reading
            torch.save(best.weights[experiment.rectangles[0]], file)
        return Outcome("finished", val={metric_name(r): value for r, value in best.values.items()})
    callbacks: list[Callback] = [stages(method)]
    validates = schedule.epochs is not None
    if validates:
        callbacks.append(best)
    if "pretrained" in trial.protocol:
        path = pretrained_path(Trial(**trial.protocol["pretrained"]), options)
        if not path.is_file():
            msg = f"There are no weights of the shared start in {path}: its pre-training failed."
            raise DataError(msg)
        module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    recorder = CurveRecorder([], experiment.rectangles)
    if trial.kind == "final":
        datamodule.prepare_data()
        datamodule.setup("fit")
        total = schedule.steps or (schedule.epochs or 0) * datamodule.steps_per_epoch
        recorder.steps = {round(total * k / options.curve_points) for k in range(options.curve_points + 1)}
        callbacks.append(recorder)
    build_trainer(schedule, options, callbacks, validates=validates).fit(module, datamodule)
    outcome = Outcome("finished", curve=recorder.curve)
    for rectangle in experiment.rectangles:
        if validates:
            module.load_state_dict(best.weights[rectangle])
        name = metric_name(rectangle)
        outcome.val[name] = float(two_way_partial_auroc(*raw_scores(module, datamodule.val_dataloader()), *rectangle))
        if trial.kind == "final":
            datamodule.setup("test")
            scored = raw_scores(module, datamodule.test_dataloader())
            value, low, high = map(float, bootstrap_interval(*scored, *rectangle, num_resamples=options.num_resamples))
            outcome.test[name], outcome.interval[name] = value, (low, high)
    return outcome
