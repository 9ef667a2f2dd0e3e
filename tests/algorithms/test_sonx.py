"""SONX against loops."""

import math

import pytest
import torch

from lightning_tpauc.algorithms import SONX, PreviousScores, TrainingScores
from lightning_tpauc.functional import exact_duals
from tests.helpers.loop import Loop, random_scores
from tests.helpers.problems import paper_sonx
from tests.helpers.tolerances import assert_close
from tests.reference.sonx import Reference
from tests.reference.units import Unit

#: Loss of a constant model.
FLOOR = {"squared_hinge": 0.25, "logistic": math.log(2.0)}
STEP_SIZES = {"tau": 0.6, "beta": 0.8, "beta_prime": 0.05}


def step_with_previous(loop, batch, previous_w):
    """What a module does for SONX: a second forward pass without gradients under the previous weights."""
    pos, neg, dual, index = loop.tensors(batch)
    previous = None
    if previous_w is not None:
        previous = PreviousScores(loop.scores(pos, previous_w), loop.scores(neg, previous_w))
    loop.optimizer.zero_grad()
    loss = loop.algorithm(loop.scores(pos), loop.scores(neg), loop.scores(dual), index, previous=previous)
    loss.backward()
    before = loop.w.detach().clone()
    loop.finish(loss)
    return before


@pytest.mark.parametrize("surrogate", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
@pytest.mark.parametrize(("dual_init", "start"), [("zeros", 0.0), ("ones", 1.0)])
@pytest.mark.parametrize("step_units", ["absolute", "loss"])
def test_trajectory_is_that_of_loops(step_units, dual_init, start, gamma, surrogate):
    algorithm = paper_sonx(
        0.4, 0.7, surrogate=surrogate, gamma=gamma, dual_init=dual_init, step_units=step_units, **STEP_SIZES
    )
    loop = Loop(algorithm, lr=0.2)
    n = len(loop.positives)
    expected = Reference(
        loop.start, n, 0.2, gamma=gamma, **STEP_SIZES, theta0=0.6, theta1=0.7, start=start, name=surrogate,
        unit=Unit(0.7, bounded=True, floor=FLOOR[surrogate]) if step_units == "loss" else None,
    )  # fmt: skip
    previous_w = None
    for index, neg, dual in loop.batches:
        previous_w = step_with_previous(loop, (index, neg, dual), previous_w if algorithm.needs_previous else None)
        expected.step([loop.positives[i] for i in index], neg, index)
        assert_close(loop.w.detach(), expected.w, "trajectory64")
        assert_close(algorithm.s, expected.s, "trajectory64")
        assert_close(algorithm.s_prime, expected.s_prime, "trajectory64")
        assert_close(algorithm.u[index], [expected.u[i] for i in index], "trajectory64")
    assert 0.0 < algorithm.diagnostics()["selected"] < 1.0


def test_exact_start_needs_scores_and_takes_their_duals():
    algorithm = SONX(dual_init="exact")
    assert algorithm.needs_scores("start")
    assert not algorithm.needs_scores("restart")
    assert not SONX().needs_scores("start")
    algorithm.setup(6, dtype=torch.float64)
    pos, neg = (x.detach() for x in random_scores())
    algorithm.start(TrainingScores(pos, neg))
    duals = exact_duals(pos, neg)
    assert_close(algorithm.s, duals.s)
    assert_close(algorithm.s_prime, duals.s_prime)
