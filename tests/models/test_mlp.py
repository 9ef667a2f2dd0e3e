import pytest
import torch

from lightning_tpauc.models import MLP
from tests.helpers.fitting import count_parameters
from tests.helpers.tolerances import assert_close


def test_equals_its_layers_by_hand():
    torch.manual_seed(0)
    model = MLP(3, hidden_features=(5,))
    inputs = torch.randn(4, 3)
    first, second = model.layers[0], model.layers[2]
    hidden = (inputs @ first.weight.T + first.bias).clamp(min=0)
    assert_close(model(inputs), (hidden @ second.weight.T + second.bias)[:, 0], "float32")


@pytest.mark.parametrize(
    ("hidden", "batch_norm", "count"),
    [((), False, 11), ((7,), False, 10 * 7 + 7 + 8), ((7, 4), True, 10 * 7 + 7 + 14 + 7 * 4 + 4 + 8 + 5)],
)
def test_number_of_parameters(hidden, batch_norm, count):
    assert count_parameters(MLP(10, hidden_features=hidden, batch_norm=batch_norm)) == count


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model, inputs = MLP(4, hidden_features=(64,), dropout=0.5), torch.randn(8, 4)
    assert not torch.equal(model(inputs), model(inputs))
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
