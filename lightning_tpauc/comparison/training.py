"""Trains one method once, scores its data, and keeps what came out in a file named by all that it depends on."""

import copy
import csv
import functools
import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, LearningRateMonitor, ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from typing_extensions import override

from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.comparison.results import Outcome
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.data.parts import content_digest
from lightning_tpauc.errors import ArgumentError, NonFiniteError, UnsupportedError
from lightning_tpauc.files import replacing
from lightning_tpauc.functional.checks import as_groups
from lightning_tpauc.metrics.figures import ROCFigure
from lightning_tpauc.metrics.reporting import validated_areas
from lightning_tpauc.module import TPAUCModule
from lightning_tpauc.scoring.prediction import PredictionWriter
from lightning_tpauc.training.optimizer import make_optimizer
from lightning_tpauc.version import __version__

#: Callbacks that end, save or show a training; a comparison does these things itself.
_REPLACED = (Checkpoint, EarlyStopping, ProgressBar, LearningRateMonitor, ROCFigure, PredictionWriter)
#: Arguments of the Trainer that a comparison sets: one device, to the end of the budget, without messages and files.
_SET = {"devices": 1, "num_nodes": 1, "max_time": None, "fast_dev_run": False, "default_root_dir": None}
_SET |= dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
#: A release changes their classes and not a user, so that names say enough of them.
_LIBRARIES = {"torch", "torchvision", "torch_geometric", "lightning", "lightning_tpauc", "torchmetrics"}
_LIBRARIES |= sys.stdlib_module_names


#: The others are compared with that of these which validates best.
BASELINES = ("cross-entropy", "balanced cross-entropy", "cross-entropy without average")
_DEFAULT = (*BASELINES, "STACO", "PAUCI")
_SIGMOID = {"score_activation": "sigmoid"}


@dataclass(frozen=True)
class Method:
    """A training method that takes part.

    Attributes:
        name: as tables call it.
        algorithm: makes the algorithm of a rectangle: ``algorithm(min_tpr, max_fpr)``.
        options: arguments of the module that belong to the method, such as ``{"score_activation": "sigmoid"}``.

    Example:
        >>> Method("STACO, logistic", lambda *rectangle: STACO(*rectangle, surrogate="logistic")).name
        'STACO, logistic'
    """

    name: str
    algorithm: Callable[[float, float], Algorithm]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


_KNOWN = {
    method.name: method
    for method in (
        Method("cross-entropy", CrossEntropy),
        Method("balanced cross-entropy", lambda *rectangle: CrossEntropy(*rectangle, balanced=True)),
        Method("cross-entropy without average", lambda *rectangle: CrossEntropy(*rectangle, average=False)),
        Method("STACO", STACO),
        Method("PAUCI", PAUCI, _SIGMOID),
        Method("SOTAs", SOTAs),
        Method("SONX", SONX),
        Method("AUCM", AUCM, _SIGMOID),
    )
}


def method_names() -> list[str]:
    """The methods that are known by name.

    Example:
        >>> method_names()[:2]
        ['cross-entropy', 'balanced cross-entropy']
    """
    return list(_KNOWN)


def chosen_methods(given: Sequence[str | Method] | None) -> list[Method]:
    """The methods that were asked for, in their order."""
    asked = given or _DEFAULT
    if unknown := [entry for entry in asked if not isinstance(entry, Method) and entry not in _KNOWN]:
        raise ArgumentError(f"Expected `methods` to be Methods or names of {list(_KNOWN)}, but got {unknown[0]!r}.")
    found = [entry if isinstance(entry, Method) else _KNOWN[entry] for entry in asked]
    names = [method.name for method in found]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ArgumentError(f"Expected `methods` to be at least two methods of different names, but got {names}.")
    return found


# ---------------------------------------------------------------- repetitions and their files


class Run(NamedTuple):
    """A repetition: a seed of weights and batches, and the fold that validates; ``None`` for the data's own split."""

    seed: int
    fold: int | None


class Cell(NamedTuple):
    """One training: the method's name, the factor of its learning rate, the repetition, and a digest of all else."""

    method: str
    factor: float
    run: Run
    identity: str


def cell_path(folder: Path, cell: Cell) -> Path:
    """The file of a training."""
    return folder / "cells" / f"{content_digest(cell)}.pt"


def save_cell(folder: Path, cell: Cell, outcome: Outcome) -> None:
    """Write what a training yields, whole or not at all, so that it outlives a kill."""
    record = {"cell": [cell.method, cell.factor, *cell.run], **vars(outcome)}
    with replacing(cell_path(folder, cell)) as file:
        torch.save(record, file)


def load_cell(folder: Path, cell: Cell) -> Outcome:
    """What a finished training yields, without its weights: those of all trainings may be more than memory holds."""
    record = torch.load(cell_path(folder, cell), map_location="cpu", weights_only=True)
    return Outcome(**{name: value for name, value in record.items() if name not in ("cell", "weights")})


@dataclass
class Setup:
    """Makes everything anew for each training.

    Attributes:
        module: ``module(algorithm, options)`` makes a module, whose initial weights depend on the global seed alone.
        datamodule: ``datamodule(run)`` makes or finds the data of a repetition.
        options: arguments of the Trainer.
        settings: whatever else changes the results and is not seen in weights and data.
    """

    module: Callable[[Algorithm, Mapping[str, Any]], TPAUCModule]
    datamodule: Callable[[Run], Any]
    options: Mapping[str, Any]
    settings: Any = None

    def trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        """A Trainer on one device, without callbacks that end, save or show a training."""
        kept = copy.deepcopy(self._callbacks(replaced=False))
        return Trainer(**{**self.options, **options, **_SET, "callbacks": [*kept, *callbacks]})

    def _callbacks(self, *, replaced: bool) -> list[Callback]:
        return [c for c in as_list(self.options.get("callbacks")) if isinstance(c, _REPLACED) == replaced]

    def build(self, method: Method, rectangle: tuple[float, float], run: Run, factor: float = 1.0) -> TPAUCModule:
        """The module of a method, with the initial weights of a run and its learning rate times ``factor``.

        Raises:
            UnsupportedError: if the module's class makes its optimizer, whose rate can't be changed.
        """
        seed_everything(run.seed, workers=True, verbose=False)
        module = self.module(method.algorithm(*rectangle), method.options)
        if factor != 1:
            _scale_rate(module, factor)
        return module

    def identity(self, module: TPAUCModule, datamodule: Any, *others: Any) -> str:
        """16 hex digits of all that changes the results of a run, whatever the method, and of ``others``."""
        options = {name: value for name, value in self.options.items() if name not in _SET}
        described = description([module, self.settings, {**options, "callbacks": self._callbacks(replaced=False)}])
        return content_digest(__version__, described, _data_digest(datamodule), *others)

    def notes(self) -> list[str]:
        """What a comparison leaves out of the given objects, for the report."""
        names = [type(callback).__name__ for callback in self._callbacks(replaced=True)]
        return [f"Without {', '.join(names)}: all train on one device, to the end."] if names else []


def as_list(value: Any) -> list[Any]:
    """A list of what may be one thing, several or nothing, as Lightning takes callbacks."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _scale_rate(module: TPAUCModule, factor: float) -> None:
    given, kind = module.optimizer_factory, type(module)
    own = [k for k in kind.__mro__ if k not in TPAUCModule.__mro__ and "configure_optimizers" in vars(k)]
    if own and (given is None or kind.configure_optimizers is not TPAUCModule.configure_optimizers):
        made = f"{kind.__name__} makes its own in `configure_optimizers`: pass `optimizer` in its place"
        raise UnsupportedError(f"`trials` varies the rate of the module's `optimizer`, but {made}.")

    def scaled(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make_optimizer(given, list(parameters), module.algorithm.default_lr)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return optimizer

    module.optimizer_factory = scaled


# ---------------------------------------------------------------- how long methods train


class Length(NamedTuple):
    """Number of steps of a training, of steps between two validations, and of examples in a step."""

    steps: int
    between: int
    per_step: int


def length_of(trainer: Trainer, steps_per_epoch: int, usual: int, per_step: int) -> Length:
    """How long a method trains that takes ``per_step`` examples a step.

    It sees as many examples as the Trainer, whose length is bounded, would train on with ``usual`` of them a step. It
    validates as often, and at its end.
    """
    limit, interval = trainer.limit_train_batches, trainer.val_check_interval
    epoch = min(steps_per_epoch, limit) if isinstance(limit, int) else max(1, int((limit or 1.0) * steps_per_epoch))
    ends = [] if trainer.max_epochs in (None, -1) else [int(trainer.max_epochs or 0) * epoch]
    steps = max(1, min([*ends, *([] if trainer.max_steps == -1 else [trainer.max_steps])]))
    if not isinstance(interval, int):
        interval = epoch * (trainer.check_val_every_n_epoch or 1) * (interval or 1.0)
    validations = max(1, min(steps, round(steps / interval)))
    between = max(1, round(steps * usual / per_step / validations))
    return Length(between * validations, between, per_step)


def examples_per_step(datamodule: PosNegDataModule, algorithm: Algorithm) -> int:
    """How many examples a method trains on in a step, on data that are set up."""
    datamodule.trainer = SimpleNamespace(lightning_module=SimpleNamespace(algorithm=algorithm))  # type: ignore[assignment]
    try:
        return sum(datamodule.batch_sampler().global_sizes(1))
    finally:
        datamodule.trainer = None


# ---------------------------------------------------------------- one training


class _Recorder(Callback):
    """Points of the training curve, and the scores of what is validated or tested after it."""

    def __init__(self) -> None:
        self.curve: list[dict[str, float]] = []
        self.outcome = Outcome()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking:
            tpauc, _ = validated_areas(trainer.callback_metrics)
            self.curve.append({"step": float(trainer.global_step), "tpauc": tpauc})

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # a TPAUCModule
        if trainer.state.fn != TrainerFn.FITTING:
            scored = pl_module._collected[0].scored
            loader = trainer.test_dataloaders if trainer.state.fn == TrainerFn.TESTING else trainer.val_dataloaders
            self.outcome = _known(scored.raw.detach().cpu(), scored.target.cpu(), loader)

    on_test_epoch_end = on_validation_epoch_end


def _known(scores: Tensor, target: Tensor, loader: Any) -> Outcome:
    """Of scores and labels ``(N, K)``, the examples of which a label is known."""
    known, groups = (target >= 0).any(1), getattr(loader, "groups", None)
    own = None if groups is None else as_groups(torch.as_tensor(groups)[known])
    return Outcome(scores[known], target[known].long(), own)


def train_cell(
    setup: Setup, method: Method, cell: Cell, rectangle: tuple[float, float], length: Length, *, test: bool
) -> Outcome:
    """Train for a rectangle, and score the test data, or else the validation data, with the weights that are kept."""
    datamodule = setup.datamodule(cell.run)
    module = setup.build(method, rectangle, cell.run, cell.factor)
    with isolate_rng():  # what the first weights reach tells whether training has changed anything for the better
        first = validated_areas(setup.trainer().validate(module, datamodule, verbose=False)[0])
    recorder, started = _Recorder(), time.perf_counter()
    ends = {"max_epochs": -1, "max_steps": length.steps}
    trainer = setup.trainer(recorder, **ends, check_val_every_n_epoch=None, val_check_interval=length.between)
    try:
        trainer.fit(module, datamodule)
    except NonFiniteError as error:
        return Outcome(failed=str(error))
    seconds, rate = time.perf_counter() - started, module.base_lr[1]
    optimizer = type(trainer.optimizers[0]).__name__ + ("" if rate is None else f", lr {rate:.3g}")
    areas = validated_areas(trainer.validate(module, datamodule, verbose=False)[0])
    if test:
        trainer.test(module, datamodule, verbose=False)
    weights = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
    curve = [{**point, "examples": length.per_step * point["step"]} for point in recorder.curve]
    return replace(
        recorder.outcome,
        seconds=seconds,
        examples=length.steps * length.per_step,
        optimizer=optimizer,
        validation=areas,
        kept_start=first >= areas,
        curve=curve,
        weights=weights,
    )


# ---------------------------------------------------------------- models from elsewhere


def check_others(others: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raise :class:`ArgumentError` for what can't stand in the table."""
    for name, other in others.items():
        if name in methods or not (isinstance(other, (str, Path)) or hasattr(other, "fit")):
            wanted = "classifiers or paths of CSV files, under names that no method has"
            raise ArgumentError(f"Expected `others` to be {wanted}, but got {name!r}: {other!r}.")


def outcome_of(other: Any, datamodule: Any, seed: int, *, test: bool) -> Outcome:
    """Scores of the test or the validation data: of a file, or of a classifier fitted on the training examples.

    A classifier sees the tables that networks are trained on, each example as often as it likes. Its ``random_state``
    is ``seed``.
    """
    from sklearn.base import clone

    datamodule.setup("fit")
    datamodule.setup("test")
    loader = datamodule.test_dataloader() if test else datamodule.val_dataloader()
    inputs, target = _table(loader)
    scored = functools.partial(_known, target=target[:, None], loader=loader)
    if isinstance(other, (str, Path)):
        return scored(_read(Path(other), len(target)))
    parts, start = [_table(own)[0] for own in datamodule.scoring_dataloaders()], time.perf_counter()
    model = clone(other)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    model.fit(np.concatenate(parts), np.repeat([1, 0], [len(own) for own in parts]))
    found = model.predict_proba(inputs)[:, 1] if hasattr(model, "predict_proba") else model.decision_function(inputs)
    about: dict[str, Any] = {"seconds": time.perf_counter() - start, "optimizer": type(other).__name__}
    return replace(scored(torch.as_tensor(found, dtype=torch.float64)[:, None]), examples=sum(map(len, parts)), **about)


def _table(loader: Any) -> tuple[Any, Tensor]:
    """Inputs ``(N, d)`` and labels ``(N,)`` of all examples."""
    batches = list(loader)
    if any(not isinstance(b.inputs, Tensor) or b.inputs.ndim != 2 or b.target.ndim > 1 for b in batches):
        raise UnsupportedError("`others` takes tables, inputs `(N, d)` as one tensor, with one label.")
    inputs, target = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "target"))
    return inputs.numpy(), target.long()


def _read(path: Path, count: int) -> Tensor:
    """The scores ``(count, 1)`` of a file with the columns ``example_id``, 0 to ``count - 1``, and ``score``."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = sorted((int(row["example_id"]), float(row["score"])) for row in csv.DictReader(file))
        if [number for number, _ in rows] != list(range(count)):  # others are of another set, or of two models
            raise ValueError(f"{len(rows)} rows")
        return torch.tensor([[score] for _, score in rows], dtype=torch.float64)
    except (OSError, KeyError, TypeError, ValueError) as error:
        wanted = f"a CSV file with columns `example_id`, 0 to {count - 1} once each, and `score`"
        raise ArgumentError(f"Expected {str(path)!r} of `others` to be {wanted}, but found {error!r}.") from None


# ---------------------------------------------------------------- what a result depends on


def _data_digest(datamodule: Any) -> str:
    """What the data are: all that the data module was given, and what it reads of files, by their first batch."""
    names = {*inspect.signature(type(datamodule).__init__).parameters, *vars(datamodule)} - {"self", "trainer", "seed"}
    given = {name: getattr(datamodule, name, None) for name in sorted(names) if not name.startswith("_")}
    functions = {name: given.pop(name) for name in list(given) if callable(given[name]) or name == "negatives"}
    read = [] if given.get("train_dataset") is not None else [next(iter(datamodule.val_dataloader()))]
    return content_digest(given, description([type(datamodule), functions]), datamodule.fingerprint, *read)


def description(value: Any, depth: int = 4) -> str:
    """A value as text that is the same in the next process, and another one if the value or its source differs.

    Of objects and functions inside of each other four levels count, of plain lists and mappings all.

    Example:
        >>> description([1, "a", nn.Linear]), description(functools.partial(int, base=2))
        ("[1, 'a', Linear]", "partial[int, [], {'base': 2}]")
    """
    inner = functools.partial(description, depth=depth)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {inner(entry)}' for name, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inner, value))}]"
    if isinstance(value, nn.Module):
        classes = sorted({_named(type(part)) for part in value.modules()})
        return f"{content_digest(dict(value.state_dict()))} {value!r} {classes}"
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        return content_digest(value)
    if inspect.ismodule(value) or inspect.isbuiltin(value) or isinstance(value, type):
        return _named(value)
    held: Any = getattr(value, "__dict__", None)
    if isinstance(value, functools.partial):
        held = [value.func, value.args, value.keywords]
    elif inspect.isfunction(value):
        seen = inspect.getclosurevars(value)
        held = [seen.nonlocals, seen.globals, value.__defaults__]
    elif held and _is_of_library(type(value)):
        held = {name: entry for name, entry in held.items() if not name.startswith("_")}
    if not held and " at 0x" not in repr(value):
        return repr(value)
    name = _named(value if inspect.isfunction(value) else type(value))
    return name + description(held, depth - 1) if depth else name


def _is_of_library(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).partition(".")[0] in _LIBRARIES


def _named(thing: Any) -> str:
    """The name of a class or function, and of one that is no library's the digest of its source."""
    name = str(getattr(thing, "__qualname__", getattr(thing, "__name__", thing)))
    if _is_of_library(thing) or inspect.ismodule(thing):
        return name
    try:
        return f"{name}#{content_digest(inspect.getsource(thing))}"
    except (OSError, TypeError):
        return name
