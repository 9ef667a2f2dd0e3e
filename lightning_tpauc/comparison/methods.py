"""The methods that can be compared, and the settings that are tried of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, STACO, Algorithm, CrossEntropy, SOTAs
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_count

__all__ = ("BASELINE", "DEFAULT_METHODS", "Method", "chosen_methods", "method_names", "rate_factors")


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


#: What the others are compared with.
BASELINE = "cross-entropy"
DEFAULT_METHODS = (BASELINE, "balanced cross-entropy", "STACO", "PAUCI")

_SIGMOID = {"score_activation": "sigmoid"}
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
    """The methods that were asked for, in their order.

    Args:
        given: names of :func:`method_names`, or methods; ``None``: cross-entropy, its balanced variant, STACO, PAUCI.

    Raises:
        ArgumentError: if a name is unknown, two methods have one name, or there are fewer than two.

    Example:
        >>> [method.name for method in chosen_methods(["STACO", "cross-entropy"])]
        ['STACO', 'cross-entropy']
    """
    found = [entry if isinstance(entry, Method) else _known(entry) for entry in given or DEFAULT_METHODS]
    names = [method.name for method in found]
    if len(set(names)) < len(names) or len(names) < 2:
        msg = f"Expected `methods` to be at least two methods of different names, but got {names}."
        raise ArgumentError(msg)
    return tuple(found)


def _known(name: Any) -> Method:
    if name not in _KNOWN:
        msg = f"Expected `methods` to be Method objects or names out of {', '.join(_KNOWN)}, but got {name!r}."
        raise ArgumentError(msg)
    return _KNOWN[name]


def rate_factors(trials: int) -> tuple[float, ...]:
    """Factors of the default learning rate to try, half a power of ten apart, the default itself first.

    Args:
        trials: how many, at least 1.

    Raises:
        ArgumentError: if ``trials`` is below 1.

    Example:
        >>> [round(factor, 3) for factor in rate_factors(5)]
        [1.0, 3.162, 0.316, 10.0, 0.1]
    """
    check_count(trials, "trials", 1)
    return tuple(10.0 ** ((k + 1) // 2 / (2 if k % 2 else -2)) for k in range(trials))
