import pytest
import torch

from lightning_tpauc.models import Linear
from tests.helpers.fitting import count_parameters
from tests.helpers.tolerances import assert_close


def test_scores_are_inner_products():
    model = Linear(num_features=3)
    with torch.no_grad():
        model.linear.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))
        model.linear.bias.fill_(0.25)
    scores = model(torch.tensor([[1.0, 1.0, 1.0], [0.0, 3.0, 2.0]]))
    assert_close(scores, [1.0 - 2.0 + 0.5 + 0.25, -6.0 + 1.0 + 0.25], "float32")


def test_starts_at_zero_whatever_the_seed():
    torch.manual_seed(1)
    model = Linear(num_features=22)
    assert all(torch.equal(p, torch.zeros_like(p)) for p in model.parameters())


@pytest.mark.parametrize(("bias", "count"), [(True, 23), (False, 22)])
def test_number_of_parameters(bias, count):
    assert count_parameters(Linear(num_features=22, bias=bias)) == count
