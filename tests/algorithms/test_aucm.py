"""AUCM against loops, and what its variables converge to."""

import math

import pytest

from lightning_tpauc.algorithms import AUCM
from tests.helpers.loop import Loop
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
        assert_close(algorithm.centres, expected.v[-2:], "trajectory64")
        assert_close(algorithm.c, expected.c, "trajectory64")
