"""PAUCI against its formula in automatic differentiation."""

from itertools import pairwise

import pytest
import torch

from lightning_tpauc.algorithms import PAUCI, PreviousScores
from tests.helpers.loop import Loop, finite_difference, random_scores
from tests.helpers.tolerances import assert_close
from tests.reference.pauci import Reference

NAMES = ("a", "b", "s_p", "s_n", "la", "lb", "g")


def saddle(pos, neg, x, theta0, theta1, kappa):
    a, b, s_pos, s_neg, lambda_a, lambda_b, gamma = x

    def smooth(z):
        return torch.log1p(torch.exp(kappa * z)).mean() / kappa

    return (
        s_pos + smooth((pos - a) ** 2 - 2 * (1 + gamma) * pos - s_pos) / theta0
        + s_neg + smooth((neg - b) ** 2 + 2 * (1 + gamma) * neg - s_neg) / theta1
        - gamma**2 - lambda_b * (b - 1 - gamma) + lambda_a * (a + gamma)
    )  # fmt: skip


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


def test_gradient_is_that_of_the_saddle_function():
    pos, neg = random_scores()
    algorithm = PAUCI(0.4, 0.7)
    algorithm.setup(6, dtype=torch.float64)
    x = algorithm.variables.clone()
    algorithm(pos, neg, index=torch.arange(6)).backward()
    expected = finite_difference(lambda h: saddle(h[:6], h[6:], x, 0.6, 0.7, 2.0), torch.cat([pos, neg]).detach())
    assert_close(torch.cat([pos.grad, neg.grad]), expected, "finite_difference")


@pytest.mark.parametrize("start", [1.0, -0.4, 0.2])
def test_ascends_on_gamma_to_its_maximum(start):
    pos, neg = (torch.sigmoid(x.detach()) for x in random_scores())
    # No step for the other variables, so that the saddle function is a concave function of gamma alone.
    algorithm = PAUCI(nu=0.0, rho=0.2, c2=10.0)
    algorithm.setup(6, dtype=torch.float64)
    algorithm.variables[6] = start

    def value(gamma):
        x = algorithm.variables.clone()
        x[6] = gamma
        return saddle(pos, neg, x, 0.5, 0.5, 2.0).item()

    grid = torch.linspace(-0.5, 1.0, 3001, dtype=torch.float64).tolist()
    best = max(grid, key=value)
    values = [value(start)]
    for _ in range(300):
        algorithm(pos, neg, index=torch.arange(6))
        values.append(value(algorithm.gamma.item()))
    assert all(b >= a - 1e-12 for a, b in pairwise(values))
    assert values[-1] > values[0] + 0.01
    assert algorithm.gamma.item() == pytest.approx(best, abs=1e-3)


def test_variables_stay_inside_their_set():
    algorithm = PAUCI(nu=5.0, rho=5.0, k=10.0, m=10.0, c1=0.0, c2=0.0)
    loop = PauciLoop(algorithm, lr=5.0)
    low = torch.tensor([0.0, 0.0, -4.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    high = torch.tensor([1.0, 1.0, 1.0, 5.0, torch.inf, torch.inf], dtype=torch.float64)
    for batch in loop.batches:
        a, b = algorithm.variables[:2].tolist()  # which bound gamma during the step
        loop.step(batch)
        *others, gamma = algorithm.variables
        assert bool(((low <= torch.stack(others)) & (torch.stack(others) <= high)).all())
        assert max(-a, b - 1.0) <= gamma <= 1.0


def test_recursion_without_noise_is_the_exact_gradient():
    algorithm = PAUCI(c1=0.1, c2=0.1)
    loop = PauciLoop(algorithm, lr=0.1)
    batch = loop.batches[0]
    for _ in range(5):
        x, w = algorithm.variables.clone(), loop.w.detach().clone().requires_grad_()
        pos, neg, _, _ = loop.tensors(batch)
        loss = saddle(loop.scores(pos, w), loop.scores(neg, w), x, 0.5, 0.5, 2.0)
        (gradient,) = torch.autograd.grad(loss, w)
        loop.step(batch)  # the same batch every time
        assert_close(loop.estimates[0], gradient)


def test_previous_loss_changes_no_state():
    algorithm = PAUCI()
    loop = PauciLoop(algorithm)
    loop.step(loop.batches[0])
    before = {name: value.clone() for name, value in algorithm.state_dict().items() if name != "num_positives"}
    pos, neg = random_scores()
    algorithm.previous_loss(pos, neg).backward()
    for name, value in before.items():
        assert torch.equal(getattr(algorithm, name), value)
