from importlib.util import find_spec

import pytest
import torch

from lightning_tpauc.models import ResNet3D
from tests.helpers.fitting import count_parameters

needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")


@needs_torchvision
@pytest.mark.parametrize(
    ("stem_stride", "size", "stages"), [(1, 28, [28, 14, 7, 4]), (2, 64, [32, 16, 8, 4]), (2, 28, [14, 7, 4, 2])]
)
def test_stages_work_at_the_documented_sizes(stem_stride, size, stages):
    torch.manual_seed(0)
    with torch.device("meta"):
        model = ResNet3D(stem_stride=stem_stride)
    seen = []
    for k in range(1, 5):
        layer = getattr(model.network, f"layer{k}")
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[2:]))
    assert model(torch.empty(2, 1, size, size, size, device="meta")).shape == (2,)
    assert seen == [(stage,) * 3 for stage in stages]


@needs_torchvision
def test_number_of_parameters():
    def block(a, b):
        shortcut = a * b + 2 * b if a != b else 0
        return 27 * (a * b + b * b) + 4 * b + shortcut

    widths = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    with torch.device("meta"):
        model = ResNet3D()
    assert count_parameters(model) == 27 * 64 + 2 * 64 + sum(block(a, b) for a, b in widths) + 513
