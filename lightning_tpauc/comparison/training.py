"""Trains one cell of a comparison and scores it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.comparison.plan import Budget, Cell, Method, Outcome, sampling_of
from lightning_tpauc.comparison.resampling import Evaluated
from lightning_tpauc.comparison.setup import Setup, weights_digest
from lightning_tpauc.errors import ArgumentError, NonFiniteError, UnsupportedError
from lightning_tpauc.metrics.base import scores_of_each
from lightning_tpauc.metrics.reporting import TaskMetrics, validated_areas
from lightning_tpauc.module import TPAUCModule, make_optimizer


class _Recorder(Callback):
    """Points of the training curve, and steps for a bar."""

    def __init__(self, advance: Callable[[float], object], steps: int) -> None:
        self.curve: list[dict[str, float]] = []
        self.examples = 0
        self.optimizer = ""
        self._advance, self._steps = advance, steps
        self._losses: list[Tensor] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rate = pl_module.base_lr[1]  # type: ignore[index]  # a TPAUCModule's
        shown = "" if rate is None else f", lr {rate:.3g}"
        self.optimizer = f"{type(trainer.optimizers[0]).__name__}{shown}"

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._losses.append(outputs["loss"])
        self.examples += int(batch.num_pos + batch.num_neg + batch.num_dual_neg)
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by `fit`
        if batch.masks is not None and sampling_of(datamodule, pl_module.algorithm) == "uniform":  # type: ignore[arg-type]
            self.examples -= int(batch.num_pos)  # such a batch has all examples in both parts
        self._advance(1 / self._steps)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        tpauc, auroc = validated_areas(trainer.callback_metrics)
        point = {"step": float(trainer.global_step), "examples": float(self.examples), "tpauc": tpauc, "auroc": auroc}
        if self._losses:
            point["loss"] = float(torch.stack(self._losses).mean())
        self._losses = []
        self.curve.append(point)


class _Scores(Callback):
    """The scores that a validation or a test has collected."""

    def __init__(self) -> None:
        self.found: Evaluated | None = None

    def _keep(self, metrics: Any) -> None:
        columns = zip(*scores_of_each(metrics), strict=True)
        scores, labels = (torch.stack(own, 1).detach().cpu() for own in columns)
        known = (labels >= 0).any(1)
        scores, labels = scores[known], labels[known].long()
        several = isinstance(metrics, TaskMetrics)
        self.found = Evaluated(scores, labels) if several else Evaluated(scores[:, 0], labels[:, 0])

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._keep(pl_module._collected["val"])  # a TPAUCModule's

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._keep(pl_module._collected["test"])


def build_module(setup: Setup, method: Method, rectangle: tuple[float, float], seed: int, factor: float) -> TPAUCModule:
    """The module of a method, with the initial weights of a seed and its learning rate times ``factor``."""
    seed_everything(seed, workers=True, verbose=False)
    module = setup.module(method.algorithm(*rectangle), method.options)
    if factor != 1:
        _scale_rate(module, factor)
    return module


def _scale_rate(module: TPAUCModule, factor: float) -> None:
    given = module.optimizer_factory
    others = [kind for kind in type(module).__mro__ if not kind.__module__.startswith(("lightning", "pytorch_light"))]
    if given is None and any("configure_optimizers" in vars(kind) for kind in others):
        msg = (
            f"`trials` varies the learning rate of the module's `optimizer`, but {type(module).__name__} makes its own "
            "in `configure_optimizers`. Pass `optimizer`, or compare with one trial."
        )
        raise UnsupportedError(msg)

    def scaled(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make_optimizer(given, list(parameters), module.algorithm.default_lr)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return optimizer

    module.optimizer_factory = scaled


def train_cell(
    setup: Setup,
    method: Method,
    cell: Cell,
    rectangle: tuple[float, float],
    budget: Budget,
    num_folds: int | None,
    advance: Callable[[float], object],
) -> tuple[Outcome, dict[str, Any]]:
    """Train, and score the validation data with the weights that validated best.

    Returns:
        The outcome, and tensors: ``weights``, ``scores`` and ``target`` of the validation data.
    """
    datamodule = setup.datamodule(cell.run, num_folds)
    module = build_module(setup, method, rectangle, cell.run.seed, cell.factor)
    if weights_digest(module) != cell.identity["weights"]:
        msg = (
            "The model's initial weights are not those of the other methods: `model` must make a new one in each call, "
            "from the global random numbers alone."
        )
        raise ArgumentError(msg)
    steps, between = budget.steps(cell.identity["per_step"])
    recorder, scores = _Recorder(advance, steps), _Scores()
    length = {"max_epochs": -1, "max_steps": steps, "check_val_every_n_epoch": None, "val_check_interval": between}
    trainer = setup.trainer([recorder, scores], {**length, **alone()})
    started = time.perf_counter()
    try:
        trainer.fit(module, datamodule)
    except NonFiniteError as error:
        return Outcome("failed", str(error), time.perf_counter() - started, optimizer=recorder.optimizer), {}
    seconds = time.perf_counter() - started
    (values,) = trainer.validate(module, datamodule, verbose=False)[:1]
    tpauc, auroc = validated_areas(values)
    outcome = Outcome("finished", "", seconds, recorder.examples, recorder.optimizer, curve=recorder.curve)
    outcome.validation = {"tpauc": tpauc, "auroc": auroc}
    outcome.kept_start = all((point["tpauc"], point["auroc"]) < (tpauc, auroc) for point in recorder.curve)
    return outcome, {"weights": _on_cpu(module), **_as_tensors(scores)}


def score_test_set(
    setup: Setup, method: Method, cell: Cell, rectangle: tuple[float, float], num_folds: int | None, weights: Any
) -> tuple[Outcome, dict[str, Any]]:
    """Score the test data with the weights of a training.

    Returns:
        The outcome, and tensors: ``scores`` and ``target``.
    """
    datamodule = setup.datamodule(cell.run, num_folds)
    module = build_module(setup, method, rectangle, cell.run.seed, 1.0)
    module.load_state_dict(weights)
    scores = _Scores()
    started = time.perf_counter()
    setup.trainer([scores], alone()).test(module, datamodule, verbose=False)
    return Outcome("finished", seconds=time.perf_counter() - started), _as_tensors(scores)


def alone() -> dict[str, Any]:
    """Options of a Trainer that uses one device, and that writes and shows nothing by itself."""
    shown = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return {**dict.fromkeys(shown, False), "devices": 1, "num_nodes": 1, "max_time": None, "fast_dev_run": False}


def _as_tensors(scores: _Scores) -> dict[str, Any]:
    return {} if scores.found is None else dict(scores.found._asdict())


def _on_cpu(module: TPAUCModule) -> Mapping[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the messages of dozens of Trainers; errors still show."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)
