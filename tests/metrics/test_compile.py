"""Compiled code that calls a metric: the graph breaks there, and the value is that of uncompiled code."""

import pytest
import torch

from lightning_tpauc.metrics import ExactObjective, TwoWayPartialAUROC

pytestmark = pytest.mark.slow


THRESHOLDS = [-1.0, 0.0, 0.5, 1.0]


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def scored(size=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(2, (size,), generator=generator)
    return torch.randn(size, generator=generator) + target, target


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [TwoWayPartialAUROC, lambda: TwoWayPartialAUROC(thresholds=THRESHOLDS), ExactObjective],
    ids=["exact", "binned", "objective"],
)
def test_metrics_inside_of_a_step(make):
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 1)
    forwarded, updated = make(), make()

    def step(inputs, target):
        scores = layer(inputs).squeeze(-1)
        value = forwarded(scores, target)
        updated.update(scores, target)
        return scores * 2, value, updated.compute()

    compiled = torch.compile(step, backend="aot_eager")
    alone, seen = make(), make()
    for batch in range(3):
        inputs, (_, target) = torch.randn(20, 3), scored(20, batch)
        doubled, value, so_far = compiled(inputs, target)
        scores = layer(inputs).squeeze(-1)
        assert torch.equal(doubled, scores * 2)
        assert torch.equal(value, alone(scores, target))
        seen.update(scores, target)
        assert torch.equal(so_far, seen.compute())
    assert torch.equal(forwarded.compute(), alone.compute())
