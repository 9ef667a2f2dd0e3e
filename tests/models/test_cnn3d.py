import pytest
import torch

from lightning_tpauc.models import CNN3D
from tests.helpers.fitting import count_parameters


@pytest.mark.parametrize("shape", [(28, 28, 28), (64, 64, 64), (2, 3, 5)])
def test_one_score_per_volume_of_any_size(shape):
    torch.manual_seed(0)
    assert CNN3D().eval()(torch.rand(3, 1, *shape)).shape == (3,)


def test_number_of_parameters():
    expected = sum(27 * a * b + 2 * b for a, b in [(1, 8), (8, 16), (16, 32), (32, 64)]) + 65
    assert count_parameters(CNN3D()) == expected
