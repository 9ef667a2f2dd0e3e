"""What is trained: methods and their settings, cells, how long each lasts, and which setting is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.comparison.store import Ended, Keyed
from lightning_tpauc.data import PosNegDataModule
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import check_count
from lightning_tpauc.scoring.labels import Labels, listed

#: What the others are compared with.
BASELINE = "cross-entropy"
DEFAULT_METHODS = (BASELINE, "balanced cross-entropy", "STACO", "PAUCI")
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
        Method(BASELINE, CrossEntropy),
        Method("balanced cross-entropy", lambda *rectangle: CrossEntropy(*rectangle, balanced=True)),
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
        >>> method_names()[:3]
        ['cross-entropy', 'balanced cross-entropy', 'STACO']
    """
    return list(_KNOWN)


def chosen_methods(given: Sequence[str | Method] | None) -> tuple[Method, ...]:
    """The methods that were asked for, in their order."""
    found = [entry if isinstance(entry, Method) else _known(entry) for entry in given or DEFAULT_METHODS]
    names = [method.name for method in found]
    if len(set(names)) < len(names) or len(names) < 2:
        msg = f"Expected `methods` to be at least two methods of different names, but got {names}."
        raise ArgumentError(msg)
    return tuple(found)


def methods_for(
    methods: Sequence[Method], labels: Labels | None, rectangle: tuple[float, float], *, chosen: bool
) -> tuple[tuple[Method, ...], list[str]]:
    """The methods that can train these labels, and the names of the others."""
    left_out = [m.name for m in methods if labels is not None and not m.algorithm(*rectangle).takes_tasks]
    if left_out and chosen and labels is not None:
        msg = (
            f"{listed(left_out)} of `methods` {'trains' if len(left_out) == 1 else 'train'} one label, but the data "
            f"have {len(labels.names)}: {listed(labels.names)}. Take cross-entropy, balanced cross-entropy, STACO or "
            "SOTAs, or pass one column of labels."
        )
        raise UnsupportedError(msg)
    return tuple(m for m in methods if m.name not in left_out), left_out


def _known(name: Any) -> Method:
    if name not in _KNOWN:
        msg = f"Expected `methods` to be Method objects or names out of {', '.join(_KNOWN)}, but got {name!r}."
        raise ArgumentError(msg)
    return _KNOWN[name]


def rate_factors(trials: int) -> tuple[float, ...]:
    """Factors of the default learning rate to try, half a power of ten apart, the default itself first."""
    check_count(trials, "trials", 1)
    return tuple(10.0 ** ((k + 1) // 2 / (2 if k % 2 else -2)) for k in range(trials))


class Run(NamedTuple):
    """A repetition: a seed of weights and batches, and the fold that validates; ``None`` for the data's own split."""

    seed: int
    fold: int | None


@dataclass(frozen=True)
class Cell(Keyed):
    """One training, or the test of its weights.

    Attributes:
        method: name of the method.
        factor: of the learning rate.
        run: the repetition.
        kind: ``"train"`` sees training and validation data only; ``"test"`` scores the test set with the weights of
            that training.
        identity: whatever else changes the result.

    Example:
        >>> one, other = (Cell("STACO", factor, Run(0, None), "train") for factor in (1.0, 10.0))
        >>> one.key == other.key
        False
    """

    method: str
    factor: float
    run: Run
    kind: Literal["train", "test"]
    identity: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Outcome(Ended):
    """What a cell yields, beside tensors.

    Attributes:
        examples: how many were trained on, repetitions included.
        optimizer: what the weights were trained by.
        validation: ``tpauc`` and ``auroc`` on validation data of the weights that are kept.
        kept_start: whether nothing validated better than the first weights.
        curve: a point for each validation: ``step``, ``examples``, ``tpauc``, ``auroc``, ``loss``.
    """

    examples: int = 0
    optimizer: str = ""
    validation: dict[str, float] = field(default_factory=dict)
    kept_start: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)


class Budget(NamedTuple):
    """How long all methods are trained.

    Attributes:
        examples: to train on, repetitions included.
        validations: how often to validate.
    """

    examples: int
    validations: int

    def steps(self, per_step: int) -> tuple[int, int]:
        """Number of steps, and of steps between two validations, the last of which is at the end."""
        between = max(1, round(self.examples / per_step / self.validations))
        return between * self.validations, between


def as_budget(trainer: Mapping[str, Any], steps_per_epoch: int, per_step: int) -> Budget:
    """The examples and validations of a training by these arguments of the Trainer."""
    limit = _given(trainer, "limit_train_batches", 1.0)
    epoch = min(steps_per_epoch, limit) if isinstance(limit, int) else max(1, int(limit * steps_per_epoch))
    epochs, most = trainer.get("max_epochs"), _given(trainer, "max_steps", -1)
    if (epochs is None and most == -1) or (epochs == -1 and most == -1):
        msg = (
            "Expected `max_epochs` or `max_steps` of the Trainer to say how long methods train, but got neither: they "
            "are compared on the same number of examples."
        )
        raise ArgumentError(msg)
    counts = ([epochs * epoch] if epochs not in (None, -1) else []) + ([most] if most != -1 else [])
    steps = max(1, min(counts))
    return Budget(steps * per_step, max(1, min(steps, round(steps / _between(trainer, epoch)))))


def _between(trainer: Mapping[str, Any], epoch: int) -> float:
    """Steps between two validations."""
    interval, epochs = _given(trainer, "val_check_interval", 1.0), trainer.get("check_val_every_n_epoch", 1)
    if isinstance(interval, int):
        return interval
    return float(epoch * (epochs or 1) * interval) if isinstance(interval, float) else float(epoch)


def _given(trainer: Mapping[str, Any], name: str, default: Any) -> Any:
    value = trainer.get(name)
    return default if value is None else value


def examples_per_step(datamodule: Any, algorithm: Any) -> int:
    """How many examples a method trains on in a step, on data that are set up and belong to no Trainer."""
    if not isinstance(datamodule, PosNegDataModule):
        kind = type(datamodule).__name__
        msg = f"Expected `datamodule` to be a PosNegDataModule, but got a {kind}: pass its data sets to one."
        raise ArgumentError(msg)
    sampler = datamodule.batch_sampler()
    sizes = sampler.global_sizes(1)
    kind = sampling_of(datamodule, algorithm)
    if kind != "pos_neg" and datamodule.negatives is not None:
        msg = (
            f"{algorithm!r} draws from the whole training set, but negatives are a stream. Leave it out of `methods`, "
            "for instance ['balanced cross-entropy', 'STACO']."
        )
        raise UnsupportedError(msg)
    if kind == "full":
        return int(datamodule.num_positives + datamodule.num_negatives)
    if kind == "uniform":
        tasks = sampler.label_rows
        size = datamodule.num_positives + datamodule.num_negatives if tasks is None else len(tasks.measured)
        return int(min(sampler.sizes.num_pos + sampler.sizes.num_neg, size))
    given = datamodule.num_dual_neg
    dual = (sizes.num_neg if given is None else given) if algorithm.needs_dual_negatives else 0
    return int(sizes.num_pos + sizes.num_neg + dual)


def sampling_of(datamodule: PosNegDataModule, algorithm: Algorithm) -> str:
    """How batches are drawn: as the data module says, or else the algorithm."""
    return algorithm.sampling if datamodule.sampling == "auto" else datamodule.sampling


def best_factor(outcomes: Mapping[float, Sequence[Outcome | None]]) -> float | None:
    """The learning rate with the best mean ``tpauc`` on validation data, then ``auroc``; the first of equals."""
    best, chosen = (-1.0, -1.0), None
    for factor, found in outcomes.items():
        done = [outcome.validation for outcome in found if outcome is not None and outcome.status == "finished"]
        if len(done) == len(found):
            tpauc, auroc = (sum(values[name] for values in done) / len(done) for name in ("tpauc", "auroc"))
            if (tpauc, auroc) > best:
                best, chosen = (tpauc, auroc), factor
    return chosen
