"""Surrogate losses l(t) of t = h_j - h_i, the score of a negative minus the score of a positive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import is_real

__all__ = ("PowerForm", "Surrogate", "SurrogateFactory", "get_surrogate", "register_surrogate", "surrogate_names")


@dataclass(frozen=True)
class PowerForm:
    r"""Says that l(t) is :math:`(m + t)_+^p` or, two-sided, :math:`(m + t)^p`, so that sorting can replace the pairs.

    Attributes:
        margin: m.
        degree: p, 1 or 2.
        two_sided: whether the part left of -m counts as well; needs p = 2.
    """

    margin: float
    degree: int
    two_sided: bool = False

    def __post_init__(self) -> None:
        if self.degree not in (1, 2) or (self.two_sided and self.degree != 2):
            msg = (
                f"Expected `degree` to be 1 or 2, and 2 if `two_sided`, but got degree={self.degree!r} and "
                f"two_sided={self.two_sided!r}. Leave `power` out: the dense evaluation takes any surrogate."
            )
            raise ArgumentError(msg)


@dataclass(frozen=True)
class Surrogate:
    r"""A convex surrogate loss of score differences, never negative.

    Attributes:
        name: how it is called in arguments and configs.
        value: l, elementwise on a float tensor.
        derivative: l', elementwise on a float tensor.
        inverse: the largest t with l(t) <= v, elementwise; -inf where no t is. ``None`` if unknown; needed with
            ``power``, where pair (i, j) is active iff :math:`h_j > h_i + l^{-1}(s_i)`.
        monotone: whether l is non-decreasing. If it is, the highest negatives cost every positive most, which the
            exact dual solution relies on.
        power: set if sorting can evaluate all pairs; ``None`` evaluates them densely.

    Raises:
        ArgumentError: if ``power`` comes without ``inverse``.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None = None
    monotone: bool = False
    power: PowerForm | None = None

    def __post_init__(self) -> None:
        if self.power is not None and self.inverse is None:
            msg = f"Expected `inverse` of the surrogate {self.name!r}, because it has a `power` form, but got None."
            raise ArgumentError(msg)


SurrogateFactory = Callable[[float, float], Surrogate]


# Module-level functions with bound arguments instead of closures: algorithms that hold a surrogate stay picklable.


def _squared_hinge_value(t: Tensor, margin: float) -> Tensor:
    return (t + margin).clamp_min(0.0).square()


def _squared_hinge_derivative(t: Tensor, margin: float) -> Tensor:
    return (t + margin).clamp_min(0.0) * 2.0


def _root_inverse(v: Tensor, margin: float) -> Tensor:
    return torch.where(v < 0, -torch.inf, v.clamp_min(0.0).sqrt() - margin)


def _hinge_value(t: Tensor, margin: float) -> Tensor:
    return (t + margin).clamp_min(0.0)


def _hinge_derivative(t: Tensor, margin: float) -> Tensor:
    return (t > -margin).to(t.dtype)


def _hinge_inverse(v: Tensor, margin: float) -> Tensor:
    return torch.where(v < 0, -torch.inf, v - margin)


def _square_value(t: Tensor, margin: float) -> Tensor:
    return (t + margin).square()


def _square_derivative(t: Tensor, margin: float) -> Tensor:
    return (t + margin) * 2.0


def _logistic_value(t: Tensor, scale: float) -> Tensor:
    # Past 40, log(1 + e^x) - x < 1e-17: torch's default of 20 leaves an error of 2e-9 there.
    return torch.nn.functional.softplus(t * scale, threshold=40.0)


def _logistic_derivative(t: Tensor, scale: float) -> Tensor:
    return (t * scale).sigmoid() * scale


def _logistic_inverse(v: Tensor, scale: float) -> Tensor:
    # log(e^v - 1) = v + log(1 - e^-v), which overflows for no v; log(0) = -inf at v = 0.
    positive = v.clamp_min(0.0)
    return (positive + (-torch.expm1(-positive)).log()) / scale


def _squared_hinge(margin: float, scale: float) -> Surrogate:  # noqa: ARG001
    return Surrogate(
        "squared_hinge",
        partial(_squared_hinge_value, margin=margin),
        partial(_squared_hinge_derivative, margin=margin),
        partial(_root_inverse, margin=margin),
        monotone=True,
        power=PowerForm(margin, 2),
    )


def _hinge(margin: float, scale: float) -> Surrogate:  # noqa: ARG001
    return Surrogate(
        "hinge",
        partial(_hinge_value, margin=margin),
        partial(_hinge_derivative, margin=margin),
        partial(_hinge_inverse, margin=margin),
        monotone=True,
        power=PowerForm(margin, 1),
    )


def _square(margin: float, scale: float) -> Surrogate:  # noqa: ARG001
    return Surrogate(
        "square",
        partial(_square_value, margin=margin),
        partial(_square_derivative, margin=margin),
        partial(_root_inverse, margin=margin),
        monotone=False,
        power=PowerForm(margin, 2, two_sided=True),
    )


def _logistic(margin: float, scale: float) -> Surrogate:  # noqa: ARG001
    return Surrogate(
        "logistic",
        partial(_logistic_value, scale=scale),
        partial(_logistic_derivative, scale=scale),
        partial(_logistic_inverse, scale=scale),
        monotone=True,
    )


# Each remembers what it built: a training step looks its surrogate up by name.
_FACTORIES: dict[str, SurrogateFactory] = {
    "squared_hinge": lru_cache(_squared_hinge),
    "hinge": lru_cache(_hinge),
    "square": lru_cache(_square),
    "logistic": lru_cache(_logistic),
}


def surrogate_names() -> tuple[str, ...]:
    """Names that :func:`get_surrogate` accepts, in alphabetical order.

    Example:
        >>> {"hinge", "logistic", "square", "squared_hinge"} <= set(surrogate_names())
        True
    """
    return tuple(sorted(_FACTORIES))


def get_surrogate(surrogate: str | Surrogate, margin: float = 0.5, scale: float = 1.0) -> Surrogate:
    r"""Look a surrogate loss up by its name.

    ============== ===================================== ======== =========
    name           l(t)                                  monotone evaluated
    ============== ===================================== ======== =========
    squared_hinge  :math:`(m + t)_+^2`                   yes      sorted
    hinge          :math:`(m + t)_+`                     yes      sorted
    square         :math:`(m + t)^2`                     no       sorted
    logistic       :math:`\log(1 + e^{\mathrm{scale}\,t})` yes    densely
    ============== ===================================== ======== =========

    Args:
        surrogate: a name, or a :class:`Surrogate`, which comes back unchanged and keeps its own margin and scale.
        margin: m, at least 0.
        scale: factor of t in the logistic loss, above 0.

    Returns:
        The surrogate; equal arguments give the same object.

    Raises:
        ArgumentError: if the name is unknown, ``margin`` is negative or ``scale`` is not positive.

    Example:
        >>> get_surrogate("squared_hinge", margin=0.5).value(torch.tensor([-1.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 1.0000])
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    if surrogate not in surrogate_names():
        msg = f"Expected `surrogate` to be one of {', '.join(surrogate_names())} or a Surrogate, but got {surrogate!r}."
        raise ArgumentError(msg)
    if not is_real(margin) or margin < 0.0:
        msg = f"Expected `margin` to be a number of at least 0, but got {margin!r}."
        raise ArgumentError(msg)
    if not is_real(scale) or scale <= 0.0:
        msg = f"Expected `scale` to be a number above 0, but got {scale!r}."
        raise ArgumentError(msg)
    return _call(_FACTORIES[surrogate], float(margin), float(scale))


def register_surrogate(name: str, factory: SurrogateFactory) -> None:
    """Make a surrogate loss of one's own available by name, in arguments and configs.

    Args:
        name: a new name.
        factory: called as ``factory(margin, scale)``, returns a :class:`Surrogate` whose ``value`` is convex and never
            negative. It is called once here, with margin 0.5 and scale 1, to find mistakes early.

    Raises:
        ArgumentError: if the name is taken or empty, if ``factory`` returns no :class:`Surrogate`, or if its loss is
            negative or claims wrongly to be monotone on a grid of score differences.

    Example:
        >>> def exponential(margin, scale):
        ...     grow = lambda t: torch.exp(scale * t)
        ...     return Surrogate("exponential", grow, lambda t: scale * grow(t), monotone=True)
        >>> register_surrogate("exponential", exponential)
        >>> get_surrogate("exponential", scale=2.0).value(torch.zeros(1))
        tensor([1.])
    """
    _check_name(name)
    _check_loss(_call(factory, 0.5, 1.0))
    _FACTORIES[name] = lru_cache(factory)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        msg = f"Expected `name` to be a non-empty string, but got {name!r}."
        raise ArgumentError(msg)
    if name in _FACTORIES:
        msg = f"Expected `name` to be a new surrogate, but {name!r} is taken. Choose another name."
        raise ArgumentError(msg)


def _call(factory: Any, margin: float, scale: float) -> Surrogate:
    built = factory(margin, scale) if callable(factory) else factory
    if not callable(factory) or not isinstance(built, Surrogate):
        msg = f"Expected `factory` to be a function of (margin, scale) that returns a Surrogate, but got {built!r}."
        raise ArgumentError(msg)
    return built


def _check_loss(loss: Surrogate) -> None:
    values = loss.value(torch.linspace(-4.0, 4.0, 65, dtype=torch.float64))
    if not bool((values >= 0).all()):
        msg = f"Expected the surrogate {loss.name!r} to be non-negative, but it falls to {values.min()} on [-4, 4]."
        raise ArgumentError(msg)
    if loss.monotone and not bool((values.diff() >= 0).all()):
        msg = f"Expected the surrogate {loss.name!r} to be non-decreasing, as it says, but it falls on [-4, 4]."
        raise ArgumentError(msg)
