"""The compared methods, and grids of the settings that are tried for each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

#: Values to try for each argument; ``"alpha+beta"`` gives one value to both.
Values = Mapping[str, Sequence[Any]]
#: All combinations of the values; or several such products, for values that go together (step sizes and score scales).
Grid = Values | tuple[Values, ...]
Settings = dict[str, Any]

#: The paper's, for all methods.
WEIGHT_DECAY = 2e-4
_THETAS: dict[str, tuple[float, ...]] = {"min_tpr": (0.6, 0.5, 0.25), "max_fpr": (0.4, 0.5, 0.75)}
_PAPER_START = {"dual_init": "ones", "stage_restart": "ones"}
_DUAL_STEPS = "alpha+beta+beta_prime"


@dataclass(frozen=True)
class Method:
    """A training method as an experiment compares it.

    Attributes:
        name: as tables call it.
        algorithm: class in :mod:`lightning_tpauc.algorithms`.
        grid: values to try; ``lr`` and ``momentum`` are the optimizer's, ``score_activation`` the module's, everything
            else the algorithm's.
        fixed: arguments of the algorithm that are not searched.
        by_rectangle: whether it trains on the rectangle that is reported. Otherwise one run serves all rectangles:
            the loss ignores the rectangle, or the grid has it.
        sizes: positives, negatives and dual negatives per step.
        activation: overrides the experiment's ``score_activation``.
        stage_steps: length of a stage in steps; ``None`` and no ``stage_epochs``: an epoch.
        stage_epochs: length of a stage in epochs.
        epoch_sizes: positives and negatives a step of the methods whose epochs this one's are as long as; ``None``: its
            own, a pass over the class that takes more steps, or over everything for cross-entropy.
        reported_as: the name of its column in the paper's table; ``None`` if it is not there.
    """

    name: str
    algorithm: str
    grid: Grid
    fixed: Mapping[str, Any] = field(default_factory=dict)
    by_rectangle: bool = False
    sizes: tuple[int, int, int] = (32, 32, 0)
    activation: Literal["identity", "sigmoid"] | None = None
    stage_steps: int | None = None
    stage_epochs: int = 1
    epoch_sizes: tuple[int, int] | None = None
    reported_as: str | None = None


def _baselines(stage: dict[str, int]) -> tuple[Method, ...]:
    """The paper's grids of the methods that it compares with, to the letter where it gives values."""
    decay = {"weight_decay": WEIGHT_DECAY}
    rates: Values = {"lr": (1e-3, 1e-2, 1e-1)}
    pauci: Grid = {
        "lr+nu": (1e-2, 1e-1, 5e-1),
        "rho": (0.1, 0.5, 1.0),
        "k": (1.0, 4.0, 7.0, 10.0),
        "c1": (0.0, 0.5, 1.0),
        "c2": (0.0, 0.5, 1.0),
        "m": (10.0, 40.0, 70.0, 100.0),
        "kappa": (2.0, 4.0, 6.0),
    }
    aucm: Grid = {"lr+eta": (1e-2, 1e-1, 5e-1), "gamma": (100.0, 500.0, 1000.0)}
    lambdas: Grid = {**rates, "lam": (0.1, 1.0, 10.0), "lam_prime": (0.1, 1.0, 10.0)}
    sonx: Grid = {**rates, "gamma": (0.0, 1e-3, 1e-2, 1e-1), **_THETAS}
    return (
        Method("CE", "CrossEntropy", rates, reported_as="CE"),
        Method("AUCM", "AUCM", aucm, decay, reported_as="AUCM", **stage),  # type: ignore[arg-type]
        Method("SOTAs", "SOTAs", lambdas, reported_as="SOTAs"),
        Method("PAUCI", "PAUCI", pauci, by_rectangle=True, activation="sigmoid", reported_as="PAUCI"),
        Method("SONX", "SONX", sonx, reported_as="SONX"),
    )


def linear_methods() -> tuple[Method, ...]:
    """The paper's methods and grids for linear models.

    Example:
        >>> [method.name for method in linear_methods()]
        ['CE', 'AUCM', 'SOTAs', 'PAUCI', 'SONX', 'STACO1']
    """
    grid: Grid = {"lr": (1e-2, 1e-1, 5e-1), _DUAL_STEPS: (1e-2, 1e-1, 5e-1), **_THETAS}
    # 64 examples a step in all, two independent batches of negatives among them
    staco = Method("STACO1", "STACO", grid, {"dual_init": "ones"}, sizes=(32, 16, 16), reported_as="STACO")
    return *_baselines({"stage_steps": 500}), staco


def deep_methods() -> tuple[Method, ...]:
    """The paper's methods and grids for deep models; SOTA is in its figures and its table of times only.

    Example:
        >>> [method.name for method in deep_methods()][-2:]
        ['SOTA', 'STACO2']
    """
    grid: Grid = {
        "lr": (1e-2, 1e-1, 5e-1),
        _DUAL_STEPS: (1e-2, 1e-1, 5e-1),
        "gamma": (300.0, 500.0, 1000.0),
        **_THETAS,
    }
    staco = Method("STACO2", "STACO", grid, _PAPER_START, sizes=(32, 16, 16), reported_as="STACO")
    sota = replace(staco, name="SOTA", algorithm="SOTA", reported_as=None)
    return *_baselines({"stage_epochs": 20}), sota, staco


def tuned_linear_methods() -> tuple[Method, ...]:
    """Eight settings for every method and rectangle, around values that work on standardised features.

    All but cross-entropy try raw scores and sigmoids, each with step sizes of its own scale; PAUCI needs sigmoids.

    Example:
        >>> {len(settings_of(method.grid)) for method in tuned_linear_methods()}
        {8}
    """
    sigmoid = {"score_activation": ("sigmoid",)}
    high = (0.1, 0.3, 1.0, 3.0, 10.0)
    ce: Grid = {"lr": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)}
    aucm: Grid = ({"lr+eta": (1e-4, 3e-4, 1e-3)}, {"lr+eta": (0.03, 0.1, 0.3, 1.0, 3.0), **sigmoid})
    sotas: Grid = (
        {"lr": (1e-3, 3e-3, 1e-2), "lam+lam_prime": (10.0,)},
        {"lr": (0.03, 0.1, 0.3, 1.0, 3.0), "lam+lam_prime": (1.0,), **sigmoid},
    )
    pauci: Grid = ({"lr": (0.1, 0.3, 1.0, 3.0), "kappa": (6.0,)}, {"lr": (0.3,), "kappa": (2.0, 10.0, 15.0, 25.0)})
    sonx: Grid = ({"lr": (0.03, 0.1)}, {"lr": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), **sigmoid})
    staco: Grid = ({"lr": (0.01, 0.03, 0.1)}, {"lr": high, **sigmoid})
    decay = {"weight_decay": WEIGHT_DECAY, "gamma": 500.0}
    steps = dict.fromkeys(("alpha", "beta", "beta_prime"), 0.1)
    exact = Method("STACO1", "STACO", staco, {"share_negatives": True, **steps}, by_rectangle=True)
    # the paper's start, and its two batches within the same 64 examples a step; small dual steps never leave its start
    steps = dict.fromkeys(steps, 0.5)
    ones = replace(exact, name="STACO1, paper's start", fixed={"dual_init": "ones", **steps}, sizes=(32, 16, 16))
    return (
        Method("CE", "CrossEntropy", ce, reported_as="CE"),
        Method("AUCM", "AUCM", aucm, decay, stage_steps=500, reported_as="AUCM"),
        Method("SOTAs", "SOTAs", sotas, reported_as="SOTAs"),
        Method("PAUCI", "PAUCI", pauci, by_rectangle=True, activation="sigmoid", reported_as="PAUCI"),
        Method("SONX", "SONX", sonx, {"beta": 3.0}, by_rectangle=True, reported_as="SONX"),
        replace(exact, name="SOTA", algorithm="SOTA"),
        replace(ones, reported_as="STACO"),
        replace(exact, reported_as="STACO"),
        replace(exact, name="STACO2", fixed={**exact.fixed, "gamma": 500.0}, stage_steps=500),
    )


def tuned_deep_methods() -> tuple[Method, ...]:
    """Six settings for every method and rectangle, for sigmoid scores.

    Two lists cross: learning rates at one value of the method's own parameter, and values of it at one learning rate,
    so that each list has a middle.

    Example:
        >>> {len(settings_of(method.grid)) for method in tuned_deep_methods()}
        {6}
    """
    decay = {"weight_decay": WEIGHT_DECAY}
    rates, high = (1e-2, 1e-1, 5e-1), (0.1, 0.5, 2.0)
    ce: Grid = {"lr": (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)}
    aucm = _cross("lr+eta", (0.1, 0.5, 1.0), 0.5, "gamma", (10.0, 100.0, 1000.0, 1e4), 100.0)
    sotas = _cross("lr", rates, 0.1, "lam+lam_prime", (0.1, 1.0, 3.0, 10.0), 1.0)
    pauci = _cross("lr", (0.01, 0.1, 1.0), 0.1, "kappa", (6.0, 15.0, 25.0, 40.0), 15.0)
    sonx = _cross("lr", high, 0.5, "beta", (0.3, 3.0, 10.0, 30.0), 3.0)
    staco = _cross("lr", high, 0.5, _DUAL_STEPS, (0.03, 0.1, 0.3, 1.0), 0.1)
    exact = Method("STACO2", "STACO", staco, {"share_negatives": True, "gamma": 500.0}, by_rectangle=True)
    # the paper's start and restart, and its two batches within the same 64 examples a step
    ones = replace(exact, name="STACO2, paper's start", fixed={**_PAPER_START, "gamma": 500.0}, sizes=(32, 16, 16))
    return (
        Method("CE", "CrossEntropy", ce, epoch_sizes=(32, 32), reported_as="CE"),  # as many steps as the others
        Method("AUCM", "AUCM", aucm, decay, stage_epochs=20, reported_as="AUCM"),
        Method("SOTAs", "SOTAs", sotas, reported_as="SOTAs"),
        Method("PAUCI", "PAUCI", pauci, by_rectangle=True, activation="sigmoid", reported_as="PAUCI"),
        Method("SONX", "SONX", sonx, by_rectangle=True, reported_as="SONX"),
        replace(exact, name="SOTA", algorithm="SOTA"),
        replace(ones, reported_as="STACO"),
        replace(exact, reported_as="STACO"),
    )


def _cross(rate: str, rates: tuple[float, ...], at: float, other: str, values: tuple[float, ...], base: float) -> Grid:
    """``rates`` with ``other=base``, and the further ``values`` with ``rate=at``."""
    return {rate: rates, other: (base,)}, {rate: (at,), other: tuple(value for value in values if value != base)}


# ---------------------------------------------------------------- grids


def parts_of(grid: Grid) -> tuple[Values, ...]:
    """The products that a grid consists of."""
    return grid if isinstance(grid, tuple) else (grid,)


def settings_of(grid: Grid, budget: int | None = None) -> list[Settings]:
    """All combinations of the grid's values in order, or ``budget`` of them, always the same.

    Example:
        >>> settings_of({"lr": (0.1, 1.0), "gamma": (300,)})
        [{'lr': 0.1, 'gamma': 300}, {'lr': 1.0, 'gamma': 300}]
    """
    found = [dict(zip(p, values, strict=True)) for p in parts_of(grid) for values in itertools.product(*p.values())]
    if budget is None or budget >= len(found):
        return found
    chosen: set[int] = set()
    generator = np.random.default_rng(0)
    while len(chosen) < budget:
        chosen.add(int(generator.integers(len(found))))
    return [found[k] for k in sorted(chosen)]


def at_edge(grid: Grid, settings: Settings, tried: Sequence[Settings]) -> list[str]:
    """Arguments whose chosen value is the smallest or the largest number that was tried: the list may be too short.

    Example:
        >>> at_edge({"lr": (0.01, 0.1, 1.0)}, {"lr": 0.1}, tried=[{"lr": 0.01}, {"lr": 0.1}])
        ['lr']
    """
    own = next(p for p in parts_of(grid) if p.keys() == settings.keys() and all(settings[n] in v for n, v in p.items()))
    rows = [s for s in tried if s.keys() == own.keys() and all(s[n] in v for n, v in own.items())]
    found = []
    for name, values in own.items():
        seen = [row[name] for row in rows]
        # the rectangle that is trained on is no step size: a value at the end of its list says nothing about the list
        numbers = name not in ("min_tpr", "max_fpr") and all(isinstance(value, (int, float)) for value in values)
        if numbers and len(values) > 1 and settings[name] in (min(seen), max(seen)):
            found.append(name)
    return found


def spread(settings: Settings) -> Settings:
    """Give each of the arguments that a joint name holds its value.

    Example:
        >>> spread({"lr+eta": 0.1, "gamma": 500})
        {'lr': 0.1, 'eta': 0.1, 'gamma': 500}
    """
    return {name: value for joint, value in settings.items() for name in joint.split("+")}
