"""PAUCI against its formula in automatic differentiation."""

import pytest
import torch

from lightning_tpauc.algorithms import PAUCI, PreviousScores
from tests.helpers.loop import Loop, random_scores
from tests.helpers.tolerances import assert_close
from tests.reference.pauci import Reference

NAMES = ("a", "b", "s_p", "s_n", "la", "lb", "g")


class PauciLoop(Loop):
    """Adds the module's part of the recursion over the weights' gradients."""

    def __init__(self, algorithm, **kwargs):
        super().__init__(algorithm, activation=torch.sigmoid, **kwargs)
        self.previous_w = None
        self.estimates = [torch.zeros_like(self.w)]

    def step(self, batch):
        pos, neg, _, index = self.tensors(batch)
        self.optimizer.zero_grad()
        previous = None
        current = self.w.detach().clone()
        if self.previous_w is not None:
            with torch.no_grad():
                self.w.copy_(self.previous_w)
            previous = PreviousScores(self.scores(pos), self.scores(neg))
            self.algorithm.previous_loss(*previous).backward()
            with torch.no_grad():
                self.w.copy_(current)
        loss = self.algorithm(self.scores(pos), self.scores(neg), index=index, previous=previous)
        loss.backward()
        self.estimates = self.algorithm.estimate_([self.w.grad], self.estimates)
        self.previous_w = current
        return self.finish(loss)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"k": 1.0, "m": 10.0, "c1": 1.0, "c2": 0.5, "kappa": 2.0}, id="decaying"),
        pytest.param({"k": 5.0, "m": 10.0, "c1": 0.01, "c2": 0.02, "kappa": 6.0}, id="capped-fraction"),
        pytest.param({"k": 3.0, "m": 50.0, "c1": 9.0, "c2": 9.0, "kappa": 4.0}, id="capped-decay"),
        pytest.param({"k": 1.0, "m": 1.0, "c1": 0.0, "c2": 1.0, "kappa": 2.0}, id="smallest-offset"),
        pytest.param({"k": 1.0, "m": 10.0, "c1": 1.0, "c2": 0.5, "width": 0.3}, id="unbiased"),
    ],
)
def test_trajectory_is_that_of_the_formula(settings):
    algorithm = PAUCI(0.4, 0.7, nu=0.3, rho=0.2, **settings)
    loop = PauciLoop(algorithm, lr=0.3)
    expected = Reference(loop.start, 0.6, 0.7, nu=0.3, rho=0.2, **settings)
    for batch in loop.batches:
        pos, neg, _, _ = loop.tensors(batch)
        loop.step(batch)
        expected.step(pos, neg)
        assert_close(loop.w.detach(), expected.x["w"], "trajectory64")
        assert_close(loop.estimates[0], expected.v["w"], "trajectory64")
        assert_close(algorithm.variables, torch.stack([expected.x[name] for name in NAMES]), "trajectory64")
        assert_close(algorithm.estimate, torch.stack([expected.v[name] for name in NAMES]), "trajectory64")


def test_previous_loss_changes_no_state():
    algorithm = PAUCI()
    loop = PauciLoop(algorithm)
    loop.step(loop.batches[0])
    before = {name: value.clone() for name, value in algorithm.state_dict().items() if name != "num_positives"}
    pos, neg = random_scores()
    algorithm.previous_loss(pos, neg).backward()
    for name, value in before.items():
        assert torch.equal(getattr(algorithm, name), value)
