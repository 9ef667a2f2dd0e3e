"""The experiments: data, model, schedule, methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from examples.paper.methods import (
    Method,
    deep_methods,
    linear_methods,
    parts_of,
    tuned_deep_methods,
    tuned_linear_methods,
)
from lightning_tpauc.metrics.reporting import Rectangle

_RECTANGLES = (Rectangle(0.5, 0.5), Rectangle(0.25, 0.75))


@dataclass(frozen=True)
class Schedule:
    """How long a training lasts and when its step sizes fall by ten.

    Attributes:
        steps: number of steps; ``None`` where ``epochs`` is given.
        epochs: number of epochs.
        milestones: in the same unit.
    """

    steps: int | None = None
    epochs: int | None = None
    milestones: tuple[int, ...] = ()

    def scaled(self, length: int) -> Schedule:
        """The same schedule in a shorter or longer training.

        Example:
            >>> Schedule(epochs=60, milestones=(20, 40)).scaled(6)
            Schedule(steps=None, epochs=6, milestones=(2, 4))
        """
        own = self.steps or self.epochs or 1
        milestones = tuple(sorted({max(1, round(at * length / own)) for at in self.milestones}))
        unit = "steps" if self.steps else "epochs"
        return replace(self, milestones=milestones, **{unit: length})


@dataclass(frozen=True)
class Experiment:
    """Everything but the folds and seeds.

    Attributes:
        name: as the command calls it.
        data_name: name of the data set, for the paper's values.
        data: data module (class in :mod:`lightning_tpauc.data`) and its arguments; ``root`` is given when it is run.
        model: backbone (class in :mod:`lightning_tpauc.models`) and its arguments.
        schedule: of the compared methods.
        methods: what is compared.
        pretrain: schedule of a start that all methods share: cross-entropy with Adam at 1e-3. ``None``: no such start.
        activation: ``score_activation`` of the methods.
        folds: whether validation is a fold; otherwise the data have a validation part and runs differ by seeds.
        rectangles: what is reported.
    """

    name: str
    data_name: str
    data: tuple[str, Mapping[str, Any]]
    model: tuple[str, Mapping[str, Any]]
    schedule: Schedule
    methods: tuple[Method, ...]
    pretrain: Schedule | None = None
    activation: Literal["identity", "sigmoid"] = "identity"
    folds: bool = True
    rectangles: tuple[Rectangle, ...] = field(default=_RECTANGLES)


_LINEAR = Schedule(steps=3000, milestones=(500, 1500, 2500))
_DEEP = Schedule(epochs=60, milestones=(20, 40))
_PRETRAIN = Schedule(epochs=60, milestones=(30, 45))


def _linear(name: str, features: int, tuned: bool, **data: Any) -> Experiment:
    methods = tuned_linear_methods() if tuned else linear_methods()
    source = ("LIBSVMDataModule", {"batch_size": 65536, **data})
    return Experiment(name, name, source, ("Linear", {"num_features": features}), _LINEAR, methods)


def _deep(name: str, data_name: str, data: tuple[str, Mapping[str, Any]], model: str, tuned: bool) -> Experiment:
    return Experiment(
        name,
        data_name,
        data,
        (model, {}),
        _DEEP,
        tuned_deep_methods() if tuned else deep_methods(),
        pretrain=_PRETRAIN,
        activation="sigmoid",
        folds=model == "GIN",
    )


def _catalog(tuned: bool) -> dict[str, Experiment]:
    one_file = {"test_fraction": 0.2, "remove_positives": 0.995}
    joint = {"train_with_val": True, "batch_size": 256}
    tox21 = {"file": "tox21.csv.gz", "target_column": "NR-AR", **joint}
    muv = {"file": "muv.csv.gz", "target_column": "MUV-548", **joint}
    # a network learns 1,188 volumes by heart within ten epochs, and then no loss is left to tell methods apart
    volumes = {"batch_size": 64, "augment": True, "max_shift": 3} if tuned else {"batch_size": 64}
    found = [
        _linear("ijcnn1", 22, tuned, train_file="ijcnn1.bz2", test_file="ijcnn1.t.bz2"),
        _linear("higgs", 28, tuned, train_file="HIGGS.xz", **one_file),
        _linear("susy", 18, tuned, train_file="SUSY.xz", **one_file),
        _deep("moltox21", "moltox21", ("SMILESDataModule", tox21), "GIN", tuned),
        _deep("molmuv", "molmuv", ("SMILESDataModule", muv), "GIN", tuned),
        _deep("moltox21-ogb", "moltox21", _ogb("ogbg-moltox21", 0), "GIN", tuned),
        _deep("molmuv-ogb", "molmuv", _ogb("ogbg-molmuv", 1), "GIN", tuned),
    ]
    for name in ("nodulemnist3d", "adrenalmnist3d"):
        found.append(_deep(name, name, ("MedMNISTDataModule", {"name": name, **volumes}), "ResNet3D", tuned))  # noqa: PERF401
    return {experiment.name: experiment for experiment in found}


def _ogb(name: str, task: int) -> tuple[str, Mapping[str, Any]]:
    return "OGBMoleculesDataModule", {"name": name, "task": task, "train_with_val": True, "batch_size": 256}


def _surrogates(base: Experiment) -> Experiment:
    """STACO1, SONX and SOTAs with three surrogates; CE, AUCM and PAUCI have no pairwise surrogate to exchange."""
    methods = []
    for method in base.methods:
        if method.name not in ("STACO1", "SONX", "SOTAs"):
            continue
        for surrogate in ("squared_hinge", "square", "hinge"):
            fixed = {**method.fixed, "surrogate": surrogate}
            if method.algorithm == "STACO" and surrogate == "square":
                fixed.setdefault("dual_init", "zeros")  # the exact start needs a monotone surrogate
            name = f"{method.name}, {surrogate}"
            methods.append(replace(method, name=name, fixed=fixed, reported_as=f"{method.reported_as}:{surrogate}"))
    name = "surrogates" if base.name == "ijcnn1" else f"{base.name}-surrogates"
    return replace(base, name=name, methods=tuple(methods), rectangles=_RECTANGLES[1:])


def _batch_sizes(base: Experiment) -> Experiment:
    """STACO and SONX with 16, 64 and 256 negatives a step."""
    chosen = [m for m in base.methods if m.name in ("STACO1", "STACO2", "SONX")]
    methods = []
    for method in chosen:
        for size in (16, 64, 256):
            dual = size if method.sizes[2] else 0
            methods.append(replace(method, name=f"{method.name}, B = {size}", sizes=(32, size, dual), reported_as=None))
    return replace(base, name=f"{base.name}-batch-size", methods=tuple(methods), rectangles=_RECTANGLES[:1])


def _gammas(base: Experiment) -> Experiment:
    """STACO2 with four proximal parameters; 1e7 is STACO1 but for the stages."""
    method = next(m for m in reversed(base.methods) if m.name in ("STACO1", "STACO2"))
    fixed = {name: value for name, value in method.fixed.items() if name != "gamma"}
    method = replace(method, fixed=fixed, reported_as=None)
    methods = []
    for gamma in (300.0, 500.0, 1000.0, 1e7):
        grid = tuple({**part, "gamma": (gamma,)} for part in parts_of(method.grid))
        methods.append(replace(method, name=f"STACO2, gamma = {gamma:g}", grid=grid))
    return replace(base, name=f"{base.name}-gamma", methods=tuple(methods), rectangles=_RECTANGLES[:1])


def experiments(grid: Literal["paper", "tuned"] = "tuned") -> dict[str, Experiment]:
    """All experiments by name, with the paper's grids or ours.

    Example:
        >>> {"ijcnn1", "surrogates", "molmuv-batch-size", "nodulemnist3d-gamma"} <= set(experiments())
        True
    """
    base = _catalog(tuned=grid == "tuned")
    found = dict(base)
    for experiment in base.values():
        studies = [_batch_sizes(experiment), _gammas(experiment)]
        if experiment.activation == "identity":
            studies.append(_surrogates(experiment))
        found.update({study.name: study for study in studies})
    return found
