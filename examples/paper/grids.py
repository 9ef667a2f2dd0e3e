"""Grids of settings: all of a small one, a fixed random part of a large one, and what lies at their edge."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_tpauc.errors import ArgumentError

__all__ = ("Grid", "Settings", "Values", "at_edge", "grid_values", "settings_of", "spread", "with_values")

#: Values to try for each argument; ``"alpha+beta"`` gives one value to both.
Values = Mapping[str, Sequence[Any]]
#: All combinations of the values; or several such products, for values that go together (step sizes and score scales).
Grid = Values | tuple[Values, ...]
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
    parts = _parts(grid)
    empty = [name for part in parts for name, values in part.items() if len(values) == 0]
    if empty:
        msg = f"Expected at least one value for each argument of the grid, but got none for {', '.join(empty)}."
        raise ArgumentError(msg)
    ends = list(itertools.accumulate(math.prod(map(len, part.values())) for part in parts))
    if budget is None or budget >= ends[-1]:
        return [dict(zip(p, values, strict=True)) for p in parts for values in itertools.product(*p.values())]
    chosen: set[int] = set()
    generator = np.random.default_rng(seed)
    while len(chosen) < budget:  # without a permutation of the product, which may have billions of entries
        chosen.add(int(generator.integers(ends[-1])))
    found = []
    for flat in sorted(chosen):
        k = bisect.bisect_right(ends, flat)
        found.append(_entry(parts[k], flat - (ends[k - 1] if k else 0)))
    return found


def _parts(grid: Grid) -> tuple[Values, ...]:
    return grid if isinstance(grid, tuple) else (grid,)


def _entry(part: Values, flat: int) -> Settings:
    place = np.unravel_index(flat, [len(values) for values in part.values()])
    return {name: values[int(k)] for (name, values), k in zip(part.items(), place, strict=True)}


def grid_values(grid: Grid, name: str) -> tuple[Any, ...]:
    """All values that a grid has for an argument, in order, without repetition.

    Example:
        >>> grid_values(({"lr": (1, 2)}, {"lr": (2, 3), "gamma": (1,)}), "lr")
        (1, 2, 3)
    """
    return tuple(dict.fromkeys(value for part in _parts(grid) for value in part.get(name, ())))


def at_edge(grid: Grid, settings: Settings, tried: Sequence[Settings] | None = None) -> list[str]:
    """Arguments whose chosen value is the smallest or the largest number of its list: the list may be too short.

    Args:
        grid: values to try for each argument.
        settings: the chosen ones.
        tried: the settings of the grid that were tried; all of them if ``None``.

    Example:
        >>> at_edge({"lr": (0.01, 0.1, 1.0), "gamma": (300, 500)}, {"lr": 0.1, "gamma": 300})
        ['gamma']
        >>> at_edge({"lr": (0.01, 0.1, 1.0)}, {"lr": 0.1}, tried=[{"lr": 0.01}, {"lr": 0.1}])
        ['lr']
    """
    own = next(p for p in _parts(grid) if p.keys() == settings.keys() and all(settings[n] in v for n, v in p.items()))
    rows = [s for s in tried or () if s.keys() == own.keys() and all(s[n] in v for n, v in own.items())]
    seen: Values = own if tried is None else {name: [s[name] for s in rows] for name in own}
    return [
        name
        for name, values in own.items()
        if name not in _NO_EDGE
        and len(values) > 1
        and all(isinstance(value, (int, float)) for value in values)
        and settings[name] in (min(seen[name]), max(seen[name]))
    ]


def spread(settings: Settings) -> Settings:
    """Give each of the arguments that a joint name holds its value.

    Example:
        >>> spread({"lr+eta": 0.1, "gamma": 500})
        {'lr': 0.1, 'eta': 0.1, 'gamma': 500}
    """
    return {name: value for joint, value in settings.items() for name in joint.split("+")}


def with_values(grid: Grid, **values: Sequence[Any]) -> Grid:
    """The grid with other values for some arguments.

    Example:
        >>> with_values({"lr": (0.1, 1.0)}, gamma=(300,))
        {'lr': (0.1, 1.0), 'gamma': (300,)}
    """
    parts = tuple({**part, **values} for part in _parts(grid))
    return parts if isinstance(grid, tuple) else parts[0]
