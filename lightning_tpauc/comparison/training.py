"""Makes the module, the data and the Trainer of a cell of a comparison, trains it, and scores its data."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, LearningRateMonitor, ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from typing_extensions import override

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.comparison.plan import Budget, Cell, Method, Outcome, Run, sampling_of
from lightning_tpauc.comparison.resampling import Evaluated
from lightning_tpauc.data.digest import content_digest
from lightning_tpauc.errors import ArgumentError, NonFiniteError, UnsupportedError
from lightning_tpauc.metrics.figures import ROCFigure
from lightning_tpauc.metrics.reporting import validated_areas
from lightning_tpauc.module import TPAUCModule, make_optimizer
from lightning_tpauc.scoring.prediction import PredictionWriter

#: Callbacks that end, save or show a training; a comparison does these things itself.
_REPLACED = (Checkpoint, EarlyStopping, ProgressBar, LearningRateMonitor, ROCFigure, PredictionWriter)
#: Arguments of the Trainer that a comparison replaces.
_UNUSED = {"devices", "num_nodes", "max_time", "fast_dev_run", "logger", "default_root_dir", "enable_checkpointing"}
_UNUSED |= {"enable_progress_bar", "enable_model_summary"}
#: Their classes are named in keys; of other packages' the source counts as well, which users change.
_LIBRARIES = {"builtins", "torch", "torchvision", "torch_geometric", "lightning", "lightning_tpauc", "torchmetrics"}


@dataclass
class Setup:
    """Makes everything anew for each training.

    Attributes:
        module: ``module(algorithm, options)`` makes a module, whose initial weights depend on the global seed alone.
        datamodule: ``datamodule(run)`` makes or finds the data of a repetition.
        options: arguments of the Trainer.
        settings: whatever else changes the results and is not seen in weights and data; its description is in the keys.
    """

    module: Callable[[Algorithm, Mapping[str, Any]], TPAUCModule]
    datamodule: Callable[[Run], LightningDataModule]
    options: Mapping[str, Any]
    settings: Any = None

    def trainer(self, callbacks: list[Callback], **options: Any) -> Trainer:
        """A Trainer on one device, without callbacks that end, save or show a training."""
        alone = {"devices": 1, "num_nodes": 1, "max_time": None, "fast_dev_run": False}
        silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        kept = copy.deepcopy([c for c in as_list(self.options.get("callbacks")) if not isinstance(c, _REPLACED)])
        return Trainer(**{**self.options, **options, **alone, **silent, "callbacks": [*kept, *callbacks]})

    def build(self, method: Method, rectangle: tuple[float, float], run: Run, factor: float = 1.0) -> TPAUCModule:
        """The module of a method, with the initial weights of a run and its learning rate times ``factor``."""
        seed_everything(run.seed, workers=True, verbose=False)
        module = self.module(method.algorithm(*rectangle), method.options)
        if factor != 1:
            _scale_rate(module, factor)
        return module

    def described(self) -> str:
        """The arguments of the Trainer that change results."""
        kept = {name: value for name, value in self.options.items() if name not in _UNUSED}
        kept["callbacks"] = [c for c in as_list(kept.get("callbacks")) if not isinstance(c, _REPLACED)]
        return description(kept)

    def notes(self) -> list[str]:
        """What a comparison leaves out of the given objects, for the report."""
        left_out = [type(c).__name__ for c in as_list(self.options.get("callbacks")) if isinstance(c, _REPLACED)]
        left_out += ["max_time"] if self.options.get("max_time") is not None else []
        notes = [f"Without {', '.join(left_out)}: all methods train to the end of the budget."] if left_out else []
        if self.options.get("devices", "auto") not in (1, "1", "auto") or self.options.get("num_nodes", 1) != 1:
            notes.append("Trained on one device, whatever the Trainer's arguments say.")
        return notes


def as_list(value: Any) -> list[Any]:
    """A list of what may be one thing, several or nothing, as Lightning takes callbacks."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _scale_rate(module: TPAUCModule, factor: float) -> None:
    given: Any = module.optimizer_factory
    kind = type(module)
    if given is None and any("configure_optimizers" in vars(k) for k in kind.__mro__ if k not in TPAUCModule.__mro__):
        _refuse_trials(kind)

    def scaled(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make_optimizer(given, list(parameters), module.algorithm.default_lr)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        scaled.rates = [group["lr"] for group in optimizer.param_groups]  # type: ignore[attr-defined]  # see _Recorder
        return optimizer

    scaled.rates = []  # type: ignore[attr-defined]
    module.optimizer_factory = scaled


def _refuse_trials(kind: type) -> None:
    msg = (
        f"`trials` varies the learning rate of the module's `optimizer`, but {kind.__name__} makes its own in "
        "`configure_optimizers`, or its schedule sets the rate. Pass `optimizer` alone, or compare with one trial."
    )
    raise UnsupportedError(msg)


class _Recorder(Callback):
    """Points of the training curve, and steps for a bar."""

    def __init__(self, advance: Callable[[float], object], steps: int) -> None:
        self.curve: list[dict[str, float]] = []
        self.examples = 0
        self.optimizer = ""
        self._advance, self._steps = advance, steps
        self._losses: list[Tensor] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        if (rates := getattr(pl_module.optimizer_factory, "rates", None)) is not None:
            groups = trainer.optimizers[0].param_groups
            if rates != [group.get("initial_lr", group["lr"]) for group in groups]:  # a schedule may have set it
                _refuse_trials(type(pl_module))
        rate = pl_module.base_lr[1]
        shown_rate = "" if rate is None else f", lr {rate:.3g}"
        self.optimizer = f"{type(trainer.optimizers[0]).__name__}{shown_rate}"

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # of the step itself: a subclass's `training_step` may return anything
        self._losses.append(pl_module.training_state.step_loss.detach().clone())
        self.examples += int(batch.num_pos + batch.num_neg + batch.num_dual_neg)
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]  # set by `fit`
        if batch.masks is not None and sampling_of(datamodule, pl_module.algorithm) == "uniform":
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
        self.tensors: dict[str, Tensor] = {}

    def _keep(self, module: Any) -> None:  # a TPAUCModule
        scored = module._collected[0].scored
        scores, labels = scored.raw.detach().cpu(), scored.target.cpu()
        known = (labels >= 0).any(1)
        self.tensors = Evaluated(scores[known], labels[known].long())._asdict()

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._keep(pl_module)

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self._keep(pl_module)


def train_cell(
    setup: Setup,
    method: Method,
    cell: Cell,
    rectangle: tuple[float, float],
    budget: Budget,
    advance: Callable[[float], object],
) -> tuple[Outcome, dict[str, Any]]:
    """Train, and score the validation data with the weights that validated best."""
    datamodule = setup.datamodule(cell.run)
    module = setup.build(method, rectangle, cell.run, cell.factor)
    if weights_digest(module) != cell.identity["weights"]:
        msg = (
            "The model's initial weights are not those of the other methods: `model` must make a new one in each call, "
            "from the global random numbers alone."
        )
        raise ArgumentError(msg)
    with isolate_rng():  # what the first weights reach tells whether training has changed anything for the better
        first = validated_areas(setup.trainer([]).validate(module, datamodule, verbose=False)[0])
    steps, between = budget.steps(cell.identity["per_step"])
    recorder, scores = _Recorder(advance, steps), _Scores()
    length = {"max_epochs": -1, "max_steps": steps, "check_val_every_n_epoch": None, "val_check_interval": between}
    trainer = setup.trainer([recorder, scores], **length)
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
    outcome.kept_start = first >= (tpauc, auroc)
    weights = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
    return outcome, {"weights": weights, **scores.tensors}


def score_test_set(
    setup: Setup, method: Method, cell: Cell, rectangle: tuple[float, float], weights: Any
) -> tuple[Outcome, dict[str, Any]]:
    """Score the test data with the weights of a training."""
    datamodule, module, scores = setup.datamodule(cell.run), setup.build(method, rectangle, cell.run), _Scores()
    module.load_state_dict(weights)
    started = time.perf_counter()
    setup.trainer([scores]).test(module, datamodule, verbose=False)
    return Outcome("finished", seconds=time.perf_counter() - started), dict(scores.tensors)


# ---------------------------------------------------------------- what a result depends on


def weights_digest(module: nn.Module) -> str:
    """16 hex digits of all weights and their names."""
    return content_digest(dict(module.state_dict()))


def description(value: Any, depth: int = 4) -> str:
    """A value as text that is the same in the next process, and another one if the value or its source differs.

    Of objects and functions inside of each other four levels count, of plain lists and mappings all.

    Example:
        >>> description([1, "a", nn.Linear]), description(functools.partial(int, base=2))
        ("[1, 'a', Linear]", "int{'args': [], 'keywords': {'base': 2}}")
    """
    inner = functools.partial(description, depth=depth)
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {inner(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inner, value))}]"
    if isinstance(value, functools.partial):
        return inner(value.func) + inner({"args": value.args, "keywords": value.keywords})
    if isinstance(value, nn.Module):
        return structure(value)
    return _described_object(value, depth - 1)


def _described_object(value: Any, depth: int) -> str:
    if inspect.ismodule(value):
        return value.__name__
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        return content_digest(value)
    if isinstance(value, type) or inspect.isbuiltin(value) or depth < 0:
        return named(value if isinstance(value, type) or inspect.isroutine(value) else type(value))
    if inspect.isfunction(value):
        seen = inspect.getclosurevars(value)
        held = {**seen.nonlocals, **seen.globals, "defaults": value.__defaults__}
        return named(value) + description(held, depth)
    own = not is_of_library(type(value))
    held = {k: v for k, v in getattr(value, "__dict__", {}).items() if own or not k.startswith("_")}
    text = "" if held or " at 0x" in repr(value) else repr(value)
    return named(type(value)) + (text or description(held, depth))


def is_of_library(kind: Any) -> bool:
    """Whether a class or function is of a library, which a release changes and not its user."""
    return str(getattr(kind, "__module__", "")).partition(".")[0] in _LIBRARIES


def structure(module: nn.Module) -> str:
    """Layers with their settings, and the source of classes that are no library's."""
    own = sorted({named(type(part)) for part in module.modules()})
    return f"{weights_digest(module)} {module!r} {own}"


def named(thing: Any) -> str:
    """The name of a class or function, and of one that is no library's the digest of its source."""
    name = str(getattr(thing, "__qualname__", type(thing).__qualname__))
    if is_of_library(thing):
        return name
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):
        return name
    return f"{name}#{hashlib.blake2b(source.encode(), digest_size=8).hexdigest()}"
