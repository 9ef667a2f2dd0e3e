import subprocess
import sys

import pytest


@pytest.mark.slow
def test_importing_the_models_needs_no_extra():
    code = (
        "import sys\n"
        "for name in ('torch_geometric', 'ogb', 'rdkit', 'torchvision', 'medmnist'):\n"
        "    sys.modules[name] = None\n"
        "from lightning_tpauc.models import CNN3D, GIN, MLP, Linear, ResNet3D\n"
        "from lightning_tpauc.errors import MissingExtraError\n"
        "for model in (GIN, ResNet3D):\n"
        "    try:\n"
        "        model()\n"
        "    except MissingExtraError:\n"
        "        print(model.__name__)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["GIN", "ResNet3D"]
