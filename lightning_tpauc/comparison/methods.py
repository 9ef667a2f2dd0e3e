"""The methods that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.errors import ArgumentError

#: What the others are compared with.
BASELINE = "cross-entropy"
_DEFAULT = (BASELINE, "balanced cross-entropy", "STACO", "PAUCI")
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


def chosen_methods(given: Sequence[str | Method] | None) -> list[Method]:
    """The methods that were asked for, in their order."""
    found = []
    for entry in given or _DEFAULT:
        if not isinstance(entry, Method) and entry not in _KNOWN:
            msg = f"Expected `methods` to be Method objects or names out of {', '.join(_KNOWN)}, but got {entry!r}."
            raise ArgumentError(msg)
        found.append(entry if isinstance(entry, Method) else _KNOWN[entry])
    names = [method.name for method in found]
    if len(set(names)) < len(names) or len(names) < 2:
        msg = f"Expected `methods` to be at least two methods of different names, but got {names}."
        raise ArgumentError(msg)
    return found
