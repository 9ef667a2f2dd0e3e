import math

import pytest
import torch

from lightning_tpauc.algorithms.aucm import AUCM
from lightning_tpauc.errors import ArgumentError
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


def test_c_stays_at_zero_where_the_margin_is_met():
    algorithm = AUCM()
    algorithm.setup(1)
    algorithm.centres.copy_(torch.tensor([1.0, 0.0]))
    algorithm(torch.tensor([1.0]), torch.tensor([0.0]), index=torch.tensor([0]))
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


def test_step_scale_multiplies_all_steps():
    pos, neg = random_scores()
    algorithm = AUCM(momentum=0.0)
    algorithm.setup(6, dtype=torch.float64)
    algorithm.step_scale = 0.1
    algorithm(pos, neg, index=torch.arange(6))
    smaller = AUCM(momentum=0.0, eta=0.01)
    smaller.setup(6, dtype=torch.float64)
    smaller(pos, neg, index=torch.arange(6))
    assert_close(algorithm.centres, smaller.centres)
    assert_close(algorithm.c, smaller.c)


def test_capabilities():
    algorithm = AUCM(gamma=100.0)
    assert algorithm.has_stages
    assert algorithm.proximal_coefficient == 0.01
    assert algorithm.stage_iterate == "last"
    assert not algorithm.averages_iterates
    assert not AUCM(gamma=math.inf).has_stages
    assert AUCM(gamma=math.inf).proximal_coefficient == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin": -1.0}, r"Expected `margin` to be a number in \[0, inf\), but got -1.0"),
        ({"eta": math.inf}, r"Expected `eta` to be a number in \[0, inf\), but got inf"),
        ({"gamma": 0.0}, r"Expected `gamma` to be above 0 \(infinity: no proximal term\), but got 0.0"),
        ({"momentum": 1.0}, r"Expected `momentum` to be a number in \[0, 1\), but got 1.0"),
        ({"weight_decay": -1e-4}, r"Expected `weight_decay` to be a number in \[0, inf\), but got -0.0001"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ArgumentError, match=message):
        AUCM(**settings)
