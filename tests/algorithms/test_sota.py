import math

import pytest
import torch

from lightning_tpauc.algorithms.sota import SOTA
from lightning_tpauc.errors import ArgumentError
from tests.helpers.loop import Loop
from tests.helpers.problems import paper_sota
from tests.helpers.tolerances import assert_close
from tests.reference.sota import Reference
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


def test_every_threshold_moves_to_the_anchor_and_rollback_restores_all():
    algorithm = paper_start()
    loop = Loop(algorithm)
    algorithm.start()
    for batch in loop.batches[:5]:
        loop.step(batch)
    before = {name: value.clone() for name, value in algorithm.state_dict().items() if torch.is_tensor(value)}
    index = torch.tensor(loop.batches[5][0])
    snapshot = algorithm.snapshot(index)
    loop.step(loop.batches[5])
    others = torch.ones(12, dtype=torch.bool).index_fill(0, index, False) & (before["s"] != 0)
    assert others.any()
    assert bool((algorithm.s[others].abs() < before["s"][others].abs()).all())
    algorithm.rollback(index, snapshot)
    for name, value in before.items():
        assert torch.equal(getattr(algorithm, name), value), name


@pytest.mark.parametrize("gamma", [0.0, math.inf])
def test_gamma_must_be_finite(gamma):
    with pytest.raises(ArgumentError, match="Expected `gamma` to be"):
        SOTA(gamma=gamma)


def test_square_surrogate_has_no_exact_start():
    with pytest.raises(ArgumentError, match="needs a non-decreasing surrogate"):
        SOTA(surrogate="square")
