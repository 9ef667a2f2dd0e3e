"""What a comparison needs to make modules, data and Trainers, and how Python objects provide it."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from torch import nn

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.comparison.plan import Run
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.module import TPAUCModule

#: Callbacks that end, save or show a training; a comparison does these things itself.
_LEFT_OUT = ("Checkpoint", "EarlyStopping", "ProgressBar", "ROCFigure", "PredictionWriter", "LearningRateMonitor")


class Setup(Protocol):
    """Makes everything anew for each training."""

    @property
    def trainer_options(self) -> Mapping[str, Any]:
        """Arguments of the Trainer, as far as they say how long to train."""

    def module(self, algorithm: Algorithm, options: Mapping[str, Any]) -> TPAUCModule:
        """A module with this algorithm; its initial weights depend on the global seed alone."""

    def datamodule(self, run: Run, num_folds: int | None) -> LightningDataModule:
        """The data of a repetition."""

    def trainer(self, callbacks: list[Callback], options: Mapping[str, Any]) -> Trainer:
        """A Trainer with further callbacks and other options than the given ones."""

    def identity(self) -> dict[str, Any]:
        """What changes the results and is not seen in weights and data, as JSON can hold it."""

    def notes(self) -> list[str]:
        """Notes for the report: what a comparison leaves out of the given objects."""

    def close(self) -> None:
        """Leave the given objects as they were."""


class ObjectSetup:
    """A :class:`Setup` of Python objects; see :func:`~lightning_tpauc.comparison.compare`."""

    def __init__(
        self, model: Any, datamodule: Any, module_options: Mapping[str, Any], trainer: Mapping[str, Any]
    ) -> None:
        self._model: Any = model
        self._datamodule: Any = datamodule
        self._options, self.trainer_options = dict(module_options), dict(trainer)
        self._seed = getattr(datamodule, "seed", None) if isinstance(datamodule, LightningDataModule) else None
        unknown = sorted(set(trainer) - set(inspect.signature(Trainer).parameters))
        if unknown:
            msg = f"Expected arguments of `compare` or of lightning's Trainer, but got {', '.join(map(repr, unknown))}."
            raise ArgumentError(msg)
        if isinstance(model, TPAUCModule):
            msg = (
                "Expected `model` to be a backbone, a function that makes one, or a subclass of TPAUCModule, but got "
                f"an object with an algorithm of its own. Pass its class, or `partial({type(model).__name__}, ...)` "
                "with its other arguments."
            )
            raise ArgumentError(msg)
        if not callable(model):
            msg = f"Expected `model` to be a torch.nn.Module or a function that makes one, but got {model!r}."
            raise ArgumentError(msg)

    def module(self, algorithm: Algorithm, options: Mapping[str, Any]) -> TPAUCModule:
        """See :class:`Setup`."""
        own = {**self._options, **options}
        if _makes_module(self._model):
            module: TPAUCModule = copy.deepcopy(self._model)(algorithm=algorithm, **own)
            return module
        backbone = copy.deepcopy(self._model) if isinstance(self._model, nn.Module) else self._model()
        return TPAUCModule(backbone, algorithm, **own)

    def datamodule(self, run: Run, num_folds: int | None) -> LightningDataModule:
        """See :class:`Setup`."""
        given: Any = self._datamodule  # which may have a `seed`
        if isinstance(given, LightningDataModule):
            if num_folds is not None:
                msg = (
                    "`folds` needs a data module for each of them: pass a function, such as `datamodule=lambda seed, "
                    "fold, num_folds: PosNegDataModule(data, seed=seed, fold=fold, num_folds=num_folds)`."
                )
                raise ArgumentError(msg)
            if self._seed is not None:
                self._datamodule.seed = self._seed + run.seed
            return given
        if not callable(self._datamodule):
            msg = (
                "Expected `datamodule` to be a LightningDataModule or a function that makes one, but got "
                f"{self._datamodule!r}."
            )
            raise ArgumentError(msg)
        fold = {} if num_folds is None else {"fold": run.fold, "num_folds": num_folds}
        made: LightningDataModule = self._datamodule(seed=run.seed, **fold)
        return made

    def trainer(self, callbacks: list[Callback], options: Mapping[str, Any]) -> Trainer:
        """See :class:`Setup`."""
        kept = copy.deepcopy(kept_callbacks(as_list(self.trainer_options.get("callbacks")))[0])
        return Trainer(**{**self.trainer_options, **options, "callbacks": [*kept, *callbacks]})

    def identity(self) -> dict[str, Any]:
        """See :class:`Setup`."""
        given = {"module": self._options, "trainer": self.trainer_options}
        return {name: {k: shown(v) for k, v in sorted(values.items())} for name, values in given.items()}

    def notes(self) -> list[str]:
        """See :class:`Setup`."""
        return left_out(kept_callbacks(as_list(self.trainer_options.get("callbacks")))[1], self.trainer_options)

    def close(self) -> None:
        """See :class:`Setup`."""
        if self._seed is not None:
            self._datamodule.seed = self._seed


def left_out(callbacks: list[str], trainer: Mapping[str, Any]) -> list[str]:
    """Notes on callbacks and devices that a comparison does without.

    Example:
        >>> left_out(["EarlyStopping"], {"devices": 1})
        ['Without EarlyStopping: all methods train to the end of the budget.']
    """
    if trainer.get("max_time") is not None:
        callbacks = [*callbacks, "max_time"]
    notes = [f"Without {', '.join(callbacks)}: all methods train to the end of the budget."] if callbacks else []
    if trainer.get("devices", "auto") not in (1, "1", "auto") or trainer.get("num_nodes", 1) != 1:
        notes.append("Trained on one device, whatever the Trainer's arguments say.")
    return notes


def _makes_module(model: Callable[..., Any]) -> bool:
    made = model.func if isinstance(model, functools.partial) else model
    return isinstance(made, type) and issubclass(made, TPAUCModule)


def shown(value: Any) -> str:
    """A value as text that is the same in the next process: an object is its class.

    Example:
        >>> shown([1, "a", nn.ReLU()]), shown(functools.partial(int, base=2))
        ("[1, 'a', ReLU]", 'int(base=2)')
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, functools.partial):
        given = [*map(shown, value.args), *(f"{name}={shown(entry)}" for name, entry in value.keywords.items())]
        return f"{shown(value.func)}({', '.join(given)})"
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plain else getattr(value, "__qualname__", type(value).__qualname__)


def as_list(value: Any) -> list[Any]:
    """A list of what may be one thing, several or nothing, as Lightning takes callbacks.

    Example:
        >>> as_list(None), as_list("one"), as_list(("one", "two"))
        ([], ['one'], ['one', 'two'])
    """
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def kept_callbacks(callbacks: list[Callback]) -> tuple[list[Callback], list[str]]:
    """Callbacks that take part, and the names of those that don't: they end, save or show a training.

    Example:
        >>> from lightning.pytorch.callbacks import ModelCheckpoint
        >>> kept_callbacks([ModelCheckpoint()])
        ([], ['ModelCheckpoint'])
    """
    kinds = [any(part in kind.__name__ for kind in type(c).__mro__ for part in _LEFT_OUT) for c in callbacks]
    kept = [callback for callback, out in zip(callbacks, kinds, strict=True) if not out]
    return kept, [type(callback).__name__ for callback, out in zip(callbacks, kinds, strict=True) if out]


def weights_digest(module: nn.Module) -> str:
    """16 hex digits of all weights and their names.

    Example:
        >>> weights_digest(nn.Linear(2, 1)) == weights_digest(nn.Linear(2, 1))
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
