"""Grids of settings: all of a small one, a fixed random part of a large one, and what lies at their edge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_tpauc.errors import ArgumentError

__all__ = ("Grid", "Settings", "at_edge", "settings_of", "spread")

#: Values to try for each argument; ``"alpha+beta"`` gives one value to both.
Grid = Mapping[str, Sequence[Any]]
Settings = dict[str, Any]

#: The rectangle that is trained on is no step size: a value at the end of its list says nothing about the list.
_NO_EDGE = {"min_tpr", "max_fpr"}


def settings_of(grid: Grid, budget: int | None = None, seed: int = 0) -> list[Settings]:
    """All combinations of the grid's values, or ``budget`` of them, drawn without repetition.

    Args:
        grid: values to try for each argument.
        budget: most settings to return; ``None`` returns all.
        seed: of the draw; it depends on nothing else, so that a continued run tries the same settings.

    Returns:
        The settings in the grid's order.

    Raises:
        ArgumentError: if ``budget`` is below 1, or an argument has no values.

    Example:
        >>> settings_of({"lr": (0.1, 1.0), "gamma": (300,)})
        [{'lr': 0.1, 'gamma': 300}, {'lr': 1.0, 'gamma': 300}]
        >>> len(settings_of({"lr": range(1000), "gamma": range(1000)}, budget=5))
        5
    """
    if budget is not None and budget < 1:
        msg = f"Expected `budget` to be at least 1, but got {budget}."
        raise ArgumentError(msg)
    empty = [name for name, values in grid.items() if len(values) == 0]
    if empty:
        msg = f"Expected at least one value for each argument of the grid, but got none for {', '.join(empty)}."
        raise ArgumentError(msg)
    sizes = [len(values) for values in grid.values()]
    total = math.prod(sizes)
    if budget is None or budget >= total:
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    chosen: set[int] = set()
    generator = np.random.default_rng(seed)
    while len(chosen) < budget:  # without a permutation of the product, which may have billions of entries
        chosen.add(int(generator.integers(total)))
    positions = (map(int, np.unravel_index(flat, sizes)) for flat in sorted(chosen))
    return [{name: grid[name][k] for name, k in zip(grid, place, strict=True)} for place in positions]


def at_edge(grid: Grid, settings: Settings) -> list[str]:
    """Arguments whose chosen value is the smallest or the largest number of its list: the list may be too short.

    Example:
        >>> at_edge({"lr": (0.01, 0.1, 1.0), "gamma": (300, 500)}, {"lr": 0.1, "gamma": 300})
        ['gamma']
    """
    return [
        name
        for name, values in grid.items()
        if name not in _NO_EDGE
        and len(values) > 1
        and all(isinstance(value, (int, float)) for value in values)
        and settings[name] in (min(values), max(values))
    ]


def spread(settings: Settings) -> Settings:
    """Give each of the arguments that a joint name holds its value.

    Example:
        >>> spread({"lr+eta": 0.1, "gamma": 500})
        {'lr': 0.1, 'eta': 0.1, 'gamma': 500}
    """
    return {name: value for joint, value in settings.items() for name in joint.split("+")}
