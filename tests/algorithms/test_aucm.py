"""AUCM against loops, and what its variables converge to."""

import math

import pytest
import torch

from lightning_tpauc.algorithms import AUCM
from tests.helpers.loop import Loop, finite_difference, random_scores
from tests.helpers.tolerances import assert_close
from tests.reference.aucm import Reference

SETTINGS = [
    pytest.param({"gamma": math.inf, "momentum": 0.0}, id="plain"),
    pytest.param({"gamma": 5.0, "momentum": 0.9, "weight_decay": 0.01}, id="paper"),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_trajectory_is_that_of_loops(settings):
    algorithm = AUCM(eta=0.05, **settings)
    decay = settings.get("weight_decay", 0.0)
    loop = Loop(algorithm, lr=0.05, momentum=settings["momentum"], weight_decay=decay)
    expected = Reference(loop.start, 0.05, 0.5, 1.0 / settings["gamma"], settings["momentum"], decay)
    for t, (index, neg, dual) in enumerate(loop.batches):
        if t in (40, 70):
            loop.finish_stage()
            expected.finish_stage()
        loss = expected.step([loop.positives[i] for i in index], neg)
        assert_close(loop.step((index, neg, dual)), loss, "trajectory64")
        assert_close(loop.w.detach(), expected.v[:-2], "trajectory64")
        assert_close(torch.stack([algorithm.a, algorithm.b]), expected.v[-2:], "trajectory64")
        assert_close(algorithm.c, expected.c, "trajectory64")


def test_gradient_is_that_of_the_saddle_function():
    pos, neg = random_scores()
    algorithm = AUCM()
    algorithm.setup(6, dtype=torch.float64)
    algorithm.centres.copy_(torch.tensor([0.4, -0.2], dtype=torch.float64))
    algorithm.c.fill_(0.3)

    def saddle(scores):
        p, n = scores[:6], scores[6:]
        gap = 0.5 + n.mean() - p.mean()
        return ((p - 0.4) ** 2).mean() + ((n + 0.2) ** 2).mean() + 2 * 0.3 * gap - 0.09

    loss = algorithm(pos, neg, index=torch.arange(6))
    loss.backward()
    assert_close(loss.detach(), saddle(torch.cat([pos, neg]).detach()))
    expected = finite_difference(saddle, torch.cat([pos, neg]).detach())
    assert_close(torch.cat([pos.grad, neg.grad]), expected, "finite_difference")


def test_centres_reach_the_means_and_c_its_maximum():
    pos, neg = random_scores()
    algorithm = AUCM(momentum=0.0, gamma=math.inf, eta=0.2)
    algorithm.setup(6, dtype=torch.float64)
    for _ in range(200):
        algorithm(pos.detach(), neg.detach(), index=torch.arange(6))
    assert_close(algorithm.a, pos.mean().detach())
    assert_close(algorithm.b, neg.mean().detach())
    assert_close(algorithm.c, (0.5 + neg.mean() - pos.mean()).clamp_min(0.0).detach())
    algorithm(torch.full((6,), 9.0), torch.zeros(8), index=torch.arange(6))  # far above the margin
    for _ in range(20):
        algorithm(torch.full((6,), 9.0), torch.zeros(8), index=torch.arange(6))
    assert algorithm.c.item() == 0.0


def test_end_of_a_stage_moves_the_reference_and_nothing_else():
    algorithm = AUCM()
    algorithm.setup(6, dtype=torch.float64)
    pos, neg = random_scores()
    seen = []
    for _ in range(7):
        algorithm(pos, neg, index=torch.arange(6))
        seen.append(algorithm.centres.clone())
    centres, c = algorithm.centres.clone(), algorithm.c.clone()
    algorithm.finish_stage()
    assert torch.equal(algorithm.centres, centres)
    assert torch.equal(algorithm.c, c)
    assert_close(algorithm.anchor, torch.stack(seen).mean(0))
    algorithm.finish_stage()  # a stage without steps
    assert torch.equal(algorithm.anchor, centres)
