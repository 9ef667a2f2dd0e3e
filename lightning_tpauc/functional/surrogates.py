"""Surrogate losses l(t) of t = h_j - h_i, the score of a negative minus the score of a positive."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import require_range


@dataclass(frozen=True)
class PowerForm:
    r"""A loss, or one piece of it, that sorting can sum: :math:`c (m + t)_+^p` or, two-sided, :math:`c (m + t)^p`.

    Attributes:
        margin: m.
        degree: p, 1 or 2.
        two_sided: whether the part left of -m counts as well; needs p = 2.
        coefficient: c.
    """

    margin: float
    degree: int
    two_sided: bool = False
    coefficient: float = 1.0

    def value(self, t: Tensor) -> Tensor:
        """The loss of score differences."""
        return self._times_coefficient(self._base(t) if self.degree == 1 else self._base(t).square_())

    def derivative(self, t: Tensor) -> Tensor:
        """The derivative of :meth:`value`, 0 where the loss begins."""
        if self.degree == 1:
            return self._times_coefficient((t > -self.margin).to(t.dtype))
        return self._times_coefficient(self._base(t).mul_(2.0))

    def inverse(self, v: Tensor) -> Tensor:
        """The largest difference whose loss is at most ``v``; -inf where none is. The coefficient has to be above 0."""
        base = v if self.coefficient == 1.0 else v / self.coefficient
        root = base if self.degree == 1 else base.clamp_min(0.0).sqrt()
        return torch.where(v < 0, -torch.inf, root - self.margin)

    def _base(self, t: Tensor) -> Tensor:
        base = t + self.margin  # changed in place from here on: small batches cost what new tensors cost
        return base if self.two_sided else base.clamp_min_(0.0)

    def _times_coefficient(self, x: Tensor) -> Tensor:
        return x if self.coefficient == 1.0 else self.coefficient * x


@dataclass(frozen=True)
class Surrogate:
    r"""A surrogate loss of score differences, never negative.

    The paper's proofs need a convex one. The exact dual solution needs a non-decreasing one only, so it is exact for
    the bounded ``ramp`` and ``smooth_ramp``, too.

    Attributes:
        name: how it is called in arguments and configs.
        value: l, elementwise on a float tensor.
        derivative: l', elementwise on a float tensor.
        inverse: the largest t with l(t) <= v, elementwise; -inf where no t is, inf where all are. ``None`` if unknown;
            needed with ``power``, where pair (i, j) is active iff :math:`h_j > h_i + l^{-1}(s_i)`.
        monotone: whether l is non-decreasing. If so, the highest negatives cost every positive most, as the exact dual
            solution needs.
        power: set if sorting can evaluate all pairs; ``None`` evaluates them densely. A tuple of several pieces, with
            falling margins and none of them two-sided, stands for their sum, which must be ``monotone``.

    Raises:
        ArgumentError: if ``power`` comes without ``inverse``, or if its pieces have no sum that sorting can take.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None = None
    monotone: bool = False
    power: PowerForm | tuple[PowerForm, ...] | None = None

    def __post_init__(self) -> None:
        margins = [piece.margin for piece in self.pieces]
        falling = self.monotone and margins and margins == sorted(set(margins), reverse=True)
        wrong = isinstance(self.power, tuple) and (not falling or any(piece.two_sided for piece in self.power))
        if wrong or (self.power is not None and self.inverse is None):
            raise ArgumentError(
                f"Expected `power` of the surrogate {self.name!r} with `inverse`, and several pieces to be one-sided, "
                f"with falling margins and a sum that is `monotone`, but got {self!r}."
            )

    @property
    def pieces(self) -> tuple[PowerForm, ...]:
        """What ``power`` adds up; empty if sorting can't evaluate the pairs."""
        if self.power is None:
            return ()
        return self.power if isinstance(self.power, tuple) else (self.power,)


SurrogateFactory = Callable[[float, float], Surrogate]


# Methods, and functions with bound arguments, instead of closures: algorithms that hold a surrogate stay picklable.


def _logistic_value(t: Tensor, scale: float) -> Tensor:
    # Past 40, log(1 + e^x) - x < 1e-17: torch's default of 20 leaves an error of 2e-9 there.
    return torch.nn.functional.softplus(t * scale, threshold=40.0)


def _logistic_derivative(t: Tensor, scale: float) -> Tensor:
    return (t * scale).sigmoid() * scale


def _logistic_inverse(v: Tensor, scale: float) -> Tensor:
    # log(e^v - 1) = v + log(1 - e^-v), which overflows for no v; log(0) = -inf at v = 0.
    positive = v.clamp_min(0.0)
    return (positive + (-torch.expm1(-positive)).log()) / scale


def _ramp_value(t: Tensor, margin: float) -> Tensor:
    return (t / margin + 1.0).clamp(0.0, 1.0)


def _ramp_derivative(t: Tensor, margin: float) -> Tensor:
    # At 0 from the left: equal scores, those of a model that starts at zero, must move.
    return ((t > -margin) & (t <= 0.0)).to(t.dtype) / margin


def _ramp_inverse(v: Tensor, margin: float) -> Tensor:
    return torch.where(v < 1.0, torch.where(v < 0, -torch.inf, (v - 1.0) * margin), torch.inf)


def _smooth_ramp_value(t: Tensor, margin: float) -> Tensor:
    # Of u = t / m: (1 + u)^2 / 2 on [-1, 0], 1 - (1 - u)^2 / 2 on [0, 1]. No term cancels another near l = 0.
    u = t / margin
    return ((u + 1.0).clamp(0.0, 1.0).square() + (1.0 - (1.0 - u).clamp(0.0, 1.0).square())) * 0.5


def _smooth_ramp_derivative(t: Tensor, margin: float) -> Tensor:
    return (1.0 - (t / margin).abs()).clamp_min(0.0) / margin


def _smooth_ramp_inverse(v: Tensor, margin: float) -> Tensor:
    low, high = (2.0 * v).clamp_min(0.0).sqrt() - 1.0, 1.0 - (2.0 * (1.0 - v)).clamp_min(0.0).sqrt()
    u = torch.where(v < 0.5, low, high)
    return torch.where(v < 1.0, torch.where(v < 0, -torch.inf, u * margin), torch.inf)


#: Value, derivative and inverse of losses that are no power.
_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = {
    "logistic": (_logistic_value, _logistic_derivative, _logistic_inverse),
    "ramp": (_ramp_value, _ramp_derivative, _ramp_inverse),
    "smooth_ramp": (_smooth_ramp_value, _smooth_ramp_derivative, _smooth_ramp_inverse),
}
_NAMES = ("hinge", "square", "squared_hinge", *_FUNCTIONS)


def _built_in(name: str, margin: float, scale: float) -> Surrogate:
    if name not in _FUNCTIONS:
        form = PowerForm(margin, 1 if name == "hinge" else 2, two_sided=name == "square")
        return Surrogate(name, form.value, form.derivative, form.inverse, name != "square", form)
    power: tuple[PowerForm, ...] | None = None
    if name != "logistic":
        if margin == 0.0:
            raise ArgumentError(
                f"Expected `margin` to be above 0 for {name!r}, which rises over that width, but got {margin!r}."
            )
        if name == "ramp":
            power = PowerForm(margin, 1, coefficient=1.0 / margin), PowerForm(0.0, 1, coefficient=-1.0 / margin)
        else:
            starts = ((margin, 1.0), (0.0, -2.0), (-margin, 1.0))
            power = tuple(PowerForm(start, 2, coefficient=k * (0.5 / margin**2)) for start, k in starts)
    constant = {"scale": scale} if power is None else {"margin": margin}
    value, derivative, inverse = (partial(function, **constant) for function in _FUNCTIONS[name])
    return Surrogate(name, value, derivative, inverse, True, power)


# Each remembers what it built, so that equal arguments give one object.
_FACTORIES: dict[str, SurrogateFactory] = {name: lru_cache(partial(_built_in, name)) for name in _NAMES}


def surrogate_names() -> tuple[str, ...]:
    """Names that :func:`get_surrogate` accepts, in alphabetical order.

    Example:
        >>> {"hinge", "logistic", "square", "squared_hinge"} <= set(surrogate_names())
        True
    """
    return tuple(sorted(_FACTORIES))


def get_surrogate(surrogate: str | Surrogate, margin: float = 1.0, scale: float = 1.0) -> Surrogate:
    r"""Look a surrogate loss up by its name.

    | name | l(t) | monotone | convex | evaluated |
    |---|---|---|---|---|
    | `squared_hinge` | :math:`(m + t)_+^2` | yes | yes | sorted |
    | `hinge` | :math:`(m + t)_+` | yes | yes | sorted |
    | `square` | :math:`(m + t)^2` | no | yes | sorted |
    | `logistic` | :math:`\log(1 + e^{\mathrm{scale}\,t})` | yes | yes | densely |
    | `ramp` | :math:`((m + t)_+ - t_+) / m` | yes | no | sorted |
    | `smooth_ramp` | :math:`((t + m)_+^2 - 2t_+^2 + (t - m)_+^2) / 2m^2` | yes | no | sorted |

    The ramps rise from 0 to 1, on [-m, 0] and on [-m, m], so a hopeless pair costs no more than a wrong one. A pair
    beyond that has no gradient. With the ramp all wrong pairs are beyond, so networks train better with the smooth one.

    Args:
        surrogate: a name, or a :class:`Surrogate`, which comes back unchanged and keeps its own margin and scale.
        margin: m, at least 0; above 0 for the ramps.
        scale: factor of t in the logistic loss, above 0.

    Returns:
        The surrogate; equal arguments give the same object.

    Raises:
        ArgumentError: if the name is unknown, ``margin`` is negative, or 0 for a ramp, or ``scale`` is not positive.

    Example:
        >>> get_surrogate("squared_hinge", margin=0.5).value(torch.tensor([-1.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 1.0000])
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    if surrogate not in surrogate_names():
        raise ArgumentError(
            f"Expected `surrogate` to be one of {', '.join(surrogate_names())} or a Surrogate, but got {surrogate!r}."
        )
    margin, scale = require_range("margin", margin, 0.0), require_range("scale", scale, 0.0, open_low=True)
    return _FACTORIES[surrogate](margin, scale)


def register_surrogate(name: str, factory: SurrogateFactory) -> None:
    """Give a surrogate loss of yours a name for arguments and configs.

    Args:
        name: a new name.
        factory: called as ``factory(margin, scale)``, returns a :class:`Surrogate` whose ``value`` is never negative,
            and convex, as the paper's theory assumes. It is called once here, with margin 0.5 and scale 1, to find
            mistakes early.

    Raises:
        ArgumentError: if the name is taken or empty, if ``factory`` returns no :class:`Surrogate`, or if its loss is
            negative, or wrongly claims to be monotone or to equal its power form, on a grid of score differences.

    Example:
        >>> def exponential(margin, scale):
        ...     grow = lambda t: torch.exp(scale * t)
        ...     return Surrogate("exponential", grow, lambda t: scale * grow(t), monotone=True)
        >>> register_surrogate("exponential", exponential)
        >>> get_surrogate("exponential", scale=2.0).value(torch.zeros(1))
        tensor([1.])
    """
    if not name or name in _FACTORIES:
        raise ArgumentError(f"Expected `name` to be a non-empty string of your own, but {name!r} is taken or empty.")
    given: Any = factory
    built = given(0.5, 1.0) if callable(given) else given
    if not isinstance(built, Surrogate):
        raise ArgumentError(
            f"Expected `factory` to be a function of (margin, scale) that returns a Surrogate, but got {built!r}."
        )
    _check_loss(built)
    _FACTORIES[name] = lru_cache(factory)


def _check_loss(loss: Surrogate) -> None:
    t = torch.linspace(-4.0, 4.0, 65, dtype=torch.float64)
    values = loss.value(t)
    summed = sum((piece.value(t) for piece in loss.pieces), torch.zeros_like(t))
    msg = None
    if not bool((values >= 0).all()):
        msg = f"Expected the surrogate {loss.name!r} to be non-negative, but it falls to {values.min()} on [-4, 4]."
    elif loss.monotone and not bool((values.diff() >= 0).all()):
        msg = f"Expected the surrogate {loss.name!r} to be non-decreasing, as it says, but it falls on [-4, 4]."
    elif loss.pieces and not torch.allclose(summed, values):
        msg = f"Expected the `power` form of the surrogate {loss.name!r} to equal its value, but it differs on [-4, 4]."
    if msg is not None:
        raise ArgumentError(msg)
