"""The files in configs/paper say what the paper says."""

import inspect

import pytest
import yaml

from lightning_tpauc import algorithms
from tests.helpers.paths import ROOT

CONFIGS = sorted((ROOT / "configs" / "paper").glob("*.yaml"))
each_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)


def read(path):
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config["model"]["init_args"], config["data"], config["trainer"]


def arguments(part, module):
    """All arguments of a class in a config, defaults included."""
    name = part["class_path"].split(".")[-1]
    parameters = inspect.signature(getattr(module, name).__init__).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return name, {**defaults, **part.get("init_args", {})}


@each_config
def test_training_is_the_papers(path):
    model, data, trainer = read(path)
    pretraining, linear = path.stem.endswith("pretrain"), "Linear" in model["backbone"]["class_path"]
    lengths = (trainer.get("max_steps"), trainer["max_epochs"], model["lr_scheduler_interval"])
    assert lengths == ((3000, -1, "step") if linear else (None, 60, "epoch"))
    decay = model["lr_scheduler"]
    milestones = [500, 1500, 2500] if linear else [30, 45] if pretraining else [20, 40]
    assert decay["class_path"].endswith(".MultiStepLR")
    assert decay["init_args"] == {"milestones": milestones, "gamma": 0.1}
    optimizer = model["optimizer"]["init_args"]
    assert optimizer["weight_decay"] == 2e-4
    assert model["optimizer"]["class_path"] == f"torch.optim.{'Adam' if pretraining else 'SGD'}"
    assert optimizer.get("momentum", 0.0) == arguments(model["algorithm"], algorithms)[1].get("momentum", 0.0)
    if pretraining:
        assert optimizer["lr"] == 1e-3
    start = None if linear or pretraining else f"checkpoints/{path.stem.partition('_')[0]}_pretrain/best.ckpt"
    assert model.get("init_from") == start
    (kept,) = (c["init_args"] for c in trainer["callbacks"] if c["class_path"].endswith(".ModelCheckpoint"))
    assert (kept["monitor"], kept["mode"]) == ("val/tpauc", "max")
    examples = [data["init_args"].get(name, 0) for name in ("num_pos", "num_neg", "num_dual_neg")]
    assert sum(examples) == 64
    staco = model["algorithm"]["class_path"].endswith((".STACO", ".SOTA"))
    assert examples == ([32, 16, 16] if staco else [32, 32, 0])
