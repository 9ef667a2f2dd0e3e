import math

import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import (
    PowerForm,
    Surrogate,
    get_surrogate,
    register_surrogate,
    surrogate_names,
    surrogates,
)
from tests.helpers.tolerances import assert_close
from tests.reference.pairwise import LOSSES

NAMES = sorted(LOSSES)
BOUNDED = ("ramp", "smooth_ramp")
GRID = torch.linspace(-3.0, 3.0, 101, dtype=torch.float64) + 0.0123  # misses the kink at -margin


@pytest.fixture
def table(monkeypatch):
    """A table of surrogates to write into."""
    monkeypatch.setattr(surrogates, "_FACTORIES", dict(surrogates._FACTORIES))


def exponential(margin, scale):
    return Surrogate("exponential", torch.exp, torch.exp, monotone=True)


def hinge_of(power, monotone=True):
    inverse = get_surrogate("hinge").inverse
    return Surrogate("mine", lambda t: (t + 0.5).relu(), lambda t: (t > -0.5).to(t), inverse, monotone, power)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("margin", "scale"), [(0.5, 1.0), (1.0, 2.5), (0.0, 0.3)])
def test_value_and_derivative_follow_the_formulas(name, margin, scale):
    margin = margin or (0.1 if name in BOUNDED else 0.0)
    loss = get_surrogate(name, margin=margin, scale=scale)
    expected = [LOSSES[name](t, margin, scale) for t in GRID.tolist()]
    assert_close(loss.value(GRID), [value for value, _ in expected])
    assert_close(loss.derivative(GRID), [slope for _, slope in expected])


@pytest.mark.parametrize("name", NAMES)
def test_inverse_is_the_largest_argument_below_a_value(name):
    loss = get_surrogate(name, margin=0.5, scale=2.0)
    v = torch.tensor([1e-3, 0.1, 0.25, 0.5, 0.6, 0.999, 1.0, 3.0, 30.0], dtype=torch.float64)
    if name in BOUNDED:
        assert torch.equal(loss.inverse(v[v >= 1.0]), torch.full((3,), torch.inf, dtype=torch.float64))
        v = v[v < 1.0]
    t = loss.inverse(v)
    assert_close(loss.value(t), v)
    assert torch.all(loss.value(t + 1e-6) > v)
    assert torch.equal(loss.inverse(torch.tensor([-0.5, -1e-12])), torch.full((2,), -torch.inf))
    assert loss.inverse(torch.zeros(1)).item() == (-math.inf if name == "logistic" else -0.5)


@pytest.mark.parametrize("x", [-700.0, -50.0, -1.0, 0.0, 19.0, 21.0, 25.0, 39.0, 41.0, 100.0, 1e6])
def test_logistic_keeps_all_digits_in_both_tails(x):
    loss = get_surrogate("logistic", scale=0.5)
    t = torch.tensor([2 * x], dtype=torch.float64)
    value, slope = LOSSES["logistic"](2 * x, 0.0, 0.5)
    torch.testing.assert_close(loss.value(t).item(), value, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(loss.derivative(t).item(), slope, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("margin", [0.1, 0.3, 0.5, 7.0])
def test_ramps_rise_from_0_to_1_without_a_step_down(name, margin, dtype):
    loss, top = get_surrogate(name, margin=margin), {"ramp": 0.0, "smooth_ramp": margin}[name]
    t = torch.linspace(-1.5, 1.5, 30_001, dtype=dtype) * margin
    value = loss.value(t)
    assert torch.all(value.diff() >= 0)
    assert torch.all(value[t <= -margin] == 0)
    assert torch.all(value[t >= top] == 1)
    assert torch.equal(
        loss.value(torch.tensor([-torch.inf, torch.inf], dtype=dtype)), torch.tensor([0.0, 1.0]).to(dtype)
    )
    assert loss.value(torch.zeros(1, dtype=dtype)).item() == {"ramp": 1.0, "smooth_ramp": 0.5}[name]
    assert loss.value(torch.tensor([torch.nan], dtype=dtype)).isnan()


def test_a_surrogate_is_built_once_and_comes_back_unchanged():
    assert get_surrogate("hinge") is get_surrogate("hinge", margin=1)
    assert get_surrogate("hinge") is not get_surrogate("hinge", margin=0.5)
    loss = get_surrogate("hinge", margin=2.0)
    assert get_surrogate(loss, margin=0.5) is loss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((name,), "hinge, logistic, .*square, squared_hinge") for name in ("squared-hinge", "", None, 3, ["hinge"])),
        *(
            (("squared_hinge", margin), r"`margin` to be a number in \[0, inf\), but got")
            for margin in (-0.1, float("nan"), float("inf"), True, "0.5", None)
        ),
        *(
            (("logistic", 0.5, scale), r"`scale` to be a number in \(0, inf\), but got")
            for scale in (0.0, -1.0, float("nan"), True, "1")
        ),
        *(((name, 0.0), f"`margin` to be above 0 for '{name}', .* but got 0.0") for name in BOUNDED),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        get_surrogate(*arguments)


def test_registered_surrogates_are_found_by_name(table):
    register_surrogate("exp", exponential)
    assert "exp" in surrogate_names()
    assert get_surrogate("exp").value(torch.zeros(1)).item() == 1.0


@pytest.mark.parametrize(
    ("name", "factory", "message"),
    [
        ("hinge", exponential, "'hinge' is taken"),
        ("", exponential, "`name` to be a non-empty string"),
        ("mine", None, "`factory` to be a function of"),
        (
            "line",
            lambda margin, scale: Surrogate("line", lambda t: t, torch.ones_like),
            "'line' to be non-negative, but it falls to -4",
        ),
        (
            "parabola",
            lambda margin, scale: Surrogate("parabola", torch.square, lambda t: 2 * t, monotone=True),
            "'parabola' to be non-decreasing",
        ),
        *(
            ("wrong", lambda margin, scale, power=power: hinge_of(power), "the `power` form of the surrogate 'mine'")
            for power in (PowerForm(0.25, 1), PowerForm(0.5, 2), (PowerForm(0.5, 1), PowerForm(0.0, 1, False, 0.5)))
        ),
    ],
)
def test_what_can_not_be_registered(table, name, factory, message):
    with pytest.raises(ArgumentError, match=message):
        register_surrogate(name, factory)
    assert name in ("hinge", "") or name not in surrogate_names()


def test_power_forms_that_sorting_can_not_sum(table):
    register_surrogate("right", lambda margin, scale: hinge_of(PowerForm(0.5, 1)))
    with pytest.raises(ArgumentError, match="'mine' with `inverse`"):
        Surrogate("mine", torch.relu, torch.sign, power=PowerForm(0.0, 1))
