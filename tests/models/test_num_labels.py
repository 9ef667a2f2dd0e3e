"""Backbones with a score for each of several tasks."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch

from lightning_tpauc import TPAUCModule
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.models import CNN3D, GIN, MLP, Linear, ResNet3D
from tests.helpers.fitting import assert_all_gradients_flow
from tests.helpers.tolerances import assert_close
from tests.models.test_gin import batch_of, needs_graph, random_graphs

needs_medical = pytest.mark.skipif(find_spec("torchvision") is None, reason="the extra `medical` is not installed")

BONDS = partial(GIN, 8, 2, edge_features=True)
MODELS = [
    pytest.param(lambda **kw: Linear(5, **kw), lambda _: torch.randn(6, 5), id="Linear"),
    pytest.param(lambda **kw: MLP(5, (7,), batch_norm=True, **kw), lambda _: torch.randn(6, 5), id="MLP"),
    pytest.param(lambda **kw: CNN3D(2, (3, 4), **kw), lambda _: torch.randn(4, 2, 8, 8, 8), id="CNN3D"),
    pytest.param(BONDS, lambda g: batch_of(random_graphs(5, g)), id="GIN", marks=needs_graph),
]
LARGE = pytest.param(ResNet3D, lambda _: torch.randn(4, 1, 8, 8, 8), id="ResNet3D", marks=needs_medical)


@pytest.mark.parametrize(("make", "draw"), [*MODELS, LARGE])
def test_every_weight_gets_a_gradient(make, draw):
    torch.manual_seed(0)
    assert_all_gradients_flow(make(), draw(torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("model", [Linear(5), MLP(5), torch.nn.Sequential(torch.nn.Linear(5, 1))])
def test_a_width_that_is_not_that_of_the_data_is_named(model):
    with pytest.raises(ArgumentError, match=r"takes 5 inputs \(`num_features`\), but the data have 7"):
        TPAUCModule(model)(torch.ones(4, 7))


@pytest.mark.parametrize(("make", "draw"), MODELS)
def test_each_task_has_the_scores_of_a_model_of_its_own(make, draw):
    torch.manual_seed(0)
    inputs = draw(torch.Generator().manual_seed(0))
    several, one = make(num_labels=3).eval(), make().eval()
    for parameter in several.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        scores = several(inputs)
        for task in range(3):
            weights = {
                name: value[task : task + 1] if value.shape != one.state_dict()[name].shape else value
                for name, value in several.state_dict().items()
            }
            one.load_state_dict(weights)
            assert one(inputs).ndim == 1
            assert_close(scores[:, task], one(inputs), "float32")
