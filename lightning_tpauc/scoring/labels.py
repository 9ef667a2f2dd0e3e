"""Several labels that one model is trained for: what they are called, and what is asked of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lightning_tpauc.algorithms import Algorithm, Task
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle, require_range

#: Rectangle and weight of labels by their names or positions.
LabelSettings = Mapping[str | int, Mapping[str, float]]
_OPTIONS = ("min_tpr", "max_fpr", "weight")


class Labels(NamedTuple):
    """The K labels of a model with K outputs.

    Attributes:
        names: what the data call them.
        settings: ``min_tpr``, ``max_fpr`` and ``weight`` of labels by position, where not the algorithm's and 1.

    Example:
        >>> labels = Labels(("liver", "x/y"), {0: {"max_fpr": 0.1}})
        >>> labels.keys
        ('liver', 'x_y')
        >>> labels.tasks([3, 5])
        [Task(num_positives=3, min_tpr=None, max_fpr=0.1, weight=1.0), Task(num_positives=5, min_tpr=None, max_fpr=None, weight=1.0)]
    """  # noqa: E501  # a line of output

    names: tuple[str, ...]
    settings: Mapping[int, Mapping[str, float]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names in metrics and in columns of files: letters, digits, ``-`` and ``_`` only, and no two alike."""
        plain = [re.sub(r"[^\w-]+", "_", name).strip("_") for name in self.names]
        plain = [f"label_{name}" if not name or name.startswith("dataloader_idx") else name for name in plain]
        return tuple(plain if len(set(plain)) == len(plain) else (f"{name}_{k}" for k, name in enumerate(plain)))

    def tasks(self, num_positives: Sequence[int]) -> list[Task]:
        """What :meth:`~lightning_tpauc.algorithms.Algorithm.setup` takes."""
        return [Task(count, **self.settings.get(k, {})) for k, count in enumerate(num_positives)]

    def rectangles(self, algorithm: Algorithm) -> list[tuple[float, float]]:
        """``(min_tpr, max_fpr)`` of each: its own, or the algorithm's."""
        own = [self.settings.get(k, {}) for k in range(len(self.names))]
        return [(o.get("min_tpr", algorithm.min_tpr), o.get("max_fpr", algorithm.max_fpr)) for o in own]

    def state_dict(self) -> dict[str, Any]:
        """Primitives, for checkpoints."""
        return {"names": list(self.names), "settings": {str(k): dict(own) for k, own in self.settings.items()}}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Labels:
        """What :meth:`state_dict` was made of."""
        return cls(tuple(state["names"]), {int(k): dict(own) for k, own in state["settings"].items()})


def check_label_settings(given: Any) -> LabelSettings:
    """Check the argument ``tasks``; the names are compared with the data's when these are known.

    Example:
        >>> check_label_settings({"liver": {"max_fpr": 0.1, "weight": 2}})
        {'liver': {'max_fpr': 0.1, 'weight': 2.0}}
    """
    if given is None:
        return {}
    example = "{'liver': {'min_tpr': 0.8, 'max_fpr': 0.2, 'weight': 2.0}}"
    if not isinstance(given, Mapping) or not all(isinstance(own, Mapping) for own in given.values()):
        msg = f"Expected `tasks` to hold options of labels by name or position, such as {example}, but got {given!r}."
        raise ArgumentError(msg)
    for label, own in given.items():
        unknown = [name for name in own if name not in _OPTIONS]
        if unknown:
            msg = f"`tasks` has {unknown[0]!r} for {label!r}, but knows {', '.join(_OPTIONS)}: {example}."
            raise ArgumentError(msg)
        try:
            check_rectangle(own.get("min_tpr", 0.0), own.get("max_fpr", 1.0))
            require_range("weight", own.get("weight", 1.0), 0.0)
        except ArgumentError as error:
            msg = f"`tasks` of {label!r}: {error}"
            raise ArgumentError(msg) from None
    return {label: {name: float(value) for name, value in own.items()} for label, own in given.items()}


def by_position(given: LabelSettings, names: tuple[str, ...]) -> dict[int, Mapping[str, float]]:
    """Settings by the positions of their labels.

    Example:
        >>> by_position({"lung": {"weight": 2.0}}, ("liver", "lung"))
        {1: {'weight': 2.0}}
    """
    settings: dict[int, Mapping[str, float]] = {}
    for label, own in given.items():
        # a command line's keys are text; the names win over positions
        number = int(label) if label not in names and str(label).isdecimal() else None
        if number is not None and str(label) in names and names.index(str(label)) != number:
            msg = (
                f"`tasks` has options of the number {number}, which stands for a position, but {str(number)!r} is also "
                f"the name of a label: pass the name as text, {str(number)!r}, or another position."
            )
            raise ArgumentError(msg)
        position = names.index(str(label)) if str(label) in names and number is None else number
        if position is None or position >= len(names):
            msg = f"`tasks` has options of {label!r}, but the data's labels are {listed(names)}."
            raise ArgumentError(msg)
        if position in settings:
            msg = f"`tasks` has options of {names[position]!r} twice, by its name and by its position {position}."
            raise ArgumentError(msg)
        settings[position] = own
    return settings


def listed(names: Iterable[Any]) -> str:
    """Up to twenty names for a sentence."""
    names = list(map(str, names))
    return ", ".join(names) if len(names) <= 20 else f"{', '.join(names[:20])} and {len(names) - 20} more"
