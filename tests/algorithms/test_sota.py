"""SOTA and SOTAs against loops."""

import math
from decimal import Decimal

import pytest
import torch

from tests.helpers.loop import Loop
from tests.helpers.problems import paper_sota, paper_sotas
from tests.helpers.tolerances import assert_close
from tests.reference.sota import Reference
from tests.reference.sotas import Reference as SoftReference
from tests.reference.units import Unit

STEP_SIZES = {"alpha": 0.3, "beta": 0.7, "beta_prime": 0.1, "gamma": 2.0}


def paper_start(dual_init="zeros", **settings):
    return paper_sota(0.4, 0.7, dual_init=dual_init, stage_restart="ones", **{**STEP_SIZES, **settings})


@pytest.mark.parametrize(("dual_init", "start"), [("zeros", 0.0), ("ones", 1.0)])
@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("step_units", ["absolute", "loss"])
def test_trajectory_over_stages_is_that_of_loops(step_units, dual_init, start, surrogate):
    algorithm = paper_start(dual_init, surrogate=surrogate, step_units=step_units)
    loop = Loop(algorithm, lr=0.2)
    n = len(loop.positives)
    unit = Unit(0.7) if step_units == "loss" else None
    expected = Reference(
        loop.start, n, 0.2, **STEP_SIZES, theta0=0.6, theta1=0.7, start=start, name=surrogate, unit=unit
    )
    algorithm.start()
    for t, (index, neg, dual) in enumerate(loop.batches):
        if t in (35, 60):
            loop.finish_stage()
            expected.finish_stage()
        loop.step((index, neg, dual))
        expected.step([loop.positives[i] for i in index], neg, dual, index)
        assert_close(loop.w.detach(), expected.w, "trajectory64")
        assert_close(algorithm.s, expected.s, "trajectory64")
        assert_close(algorithm.y, expected.y, "trajectory64")
        assert_close(algorithm.s_prime, expected.s_prime, "trajectory64")
    s_bar, s_prime_bar = algorithm.averages()
    expected.finish_stage()
    assert_close(s_bar, expected.s, "trajectory64")
    assert_close(s_prime_bar, expected.s_prime, "trajectory64")


#: Loss of a constant model.
FLOOR = {"squared_hinge": 0.25, "hinge": 0.5, "square": 0.25, "logistic": math.log(2.0)}


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "square", "logistic"])
@pytest.mark.parametrize(("lam", "lam_prime"), [(0.1, 1.0), (1.0, 0.1), (1.0, 1.0), (10.0, 1.0)])
@pytest.mark.parametrize("step_units", ["absolute", "loss"])
def test_trajectory_of_sotas_is_that_of_loops(step_units, surrogate, lam, lam_prime):
    algorithm = paper_sotas(
        surrogate=surrogate, lam=lam, lam_prime=lam_prime, gamma0=0.9, gamma1=0.7, step_units=step_units
    )
    loop = Loop(algorithm, lr=0.05)
    unit = Unit(0.5, bounded=True, floor=FLOOR[surrogate]) if step_units == "loss" else None
    expected = SoftReference(loop.start, len(loop.positives), 0.05, surrogate, lam, lam_prime, 0.9, 0.7, unit=unit)
    for index, neg, dual in loop.batches[:40]:  # small lambdas make rounding grow
        loss = expected.step([loop.positives[i] for i in index], neg, index)
        assert_close(loop.step((index, neg, dual)), loss, "trajectory64")
        assert_close(loop.w.detach(), expected.w, "trajectory64")
        assert_close(algorithm.log_v, math.log(expected.v), "trajectory64")
        assert_close(algorithm.log_u[index], [math.log(expected.u[i]) for i in index], "trajectory64")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_lambda_does_not_overflow_where_the_plain_formula_does(dtype):
    pos = torch.tensor([-4.0, 1.0], dtype=dtype, requires_grad=True)
    neg = torch.tensor([5.0, 4.0, -3.0], dtype=dtype, requires_grad=True)
    assert torch.exp((0.5 + neg[0] - pos[0]) ** 2 / 0.1).isinf()
    algorithm = paper_sotas(lam=0.1, lam_prime=0.1)
    algorithm.setup(2, dtype=dtype)
    for _ in range(30):  # until nothing is left of the averages' start
        pos.grad = neg.grad = None
        loss = algorithm(pos, neg, index=torch.tensor([0, 1]))
        loss.backward()
    assert bool(torch.isfinite(torch.stack([loss, pos.grad.sum(), neg.grad.sum()])).all())
    assert math.isfinite(algorithm.scalar_sum())
    if dtype == torch.float64:  # all weight is on the worst pair, whose gradient is 2 (m + t)
        assert_close(pos.grad, [-19.0, 0.0])
        assert_close(neg.grad, [19.0, 0.0, 0.0])


def test_scents_step_is_that_of_numbers_at_losses_of_fifty():
    algorithm = paper_sotas(surrogate="hinge", margin=1.0, lam=0.1, lam_prime=0.1, alpha=math.exp(-4.0))
    algorithm.setup(3)
    u, pos = {}, torch.zeros(3, requires_grad=True)
    for index, loss in (([0, 1], 50), ([1], 1), ([0, 2], 0), ([1, 2], 50), ([0, 1, 2], 3)):
        mean = (Decimal(10 * loss).exp() + 1) / 2  # of the losses `loss` and 0, divided by 0.1
        for i in index:
            odds = u[i] * Decimal(-4).exp() if i in u else None  # of the rate, a sigmoid
            u[i] = mean if odds is None else (u[i] + odds * mean) / (1 + odds)
        algorithm(pos[index], torch.tensor([loss - 1.0, -9.0]), index=torch.tensor(index)).backward()
        assert_close(algorithm.log_u[index], [float(u[i].ln()) for i in index], "float32")
    assert bool(pos.grad.isfinite().all())
