"""The files in configs/paper say what the paper says, and what the runner's `--grid paper` runs."""

import inspect

import pytest
import yaml

from examples.paper.catalog import experiments
from examples.paper.methods import spread
from examples.paper.trial import PAPER_SETTINGS
from lightning_tpauc import algorithms, models
from tests.helpers.paths import ROOT
from tests.helpers.problems import PAPER_TRAINING

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


@each_config
def test_the_runner_runs_the_same(path):
    model, data, trainer = read(path)
    data_name, _, short = path.stem.partition("_")
    name = f"{data_name}-ogb" if data_name.startswith("mol") else data_name
    experiment = experiments("paper")[name]
    kind, values = arguments(model["backbone"], models)
    assert (kind, values) == (experiment.model[0], {**values, **experiment.model[1]})
    own = {k: v for k, v in experiment.data[1].items() if k != "batch_size"}  # of evaluation
    assert data["class_path"].endswith(f".{experiment.data[0]}")
    assert data["init_args"] == {**data["init_args"], **own}
    assert data["init_args"].get("num_folds") == (5 if experiment.folds else None)
    if short == "pretrain":
        assert experiment.pretrain is not None
        return
    (method,) = (m for m in experiment.methods if m.name.lower() == short)
    algorithm, values = arguments(model["algorithm"], algorithms)
    assert algorithm == method.algorithm
    assert values == {**values, **method.fixed}
    chosen = {**values, "lr": model["optimizer"]["init_args"]["lr"]}
    assert {k for joint, v in method.grid.items() for k in spread({joint: 0}) if chosen[k] not in v} == set()
    assert tuple(data["init_args"].get(n, 0) for n in ("num_pos", "num_neg", "num_dual_neg")) == method.sizes
    assert model.get("score_activation", "identity") == (method.activation or experiment.activation)
    stages = [c["init_args"] for c in trainer["callbacks"] if c["class_path"].endswith("StageCallback")]
    length = {"every_n_steps": method.stage_steps} if method.stage_steps else {"every_n_epochs": method.stage_epochs}
    has_stages = getattr(algorithms, algorithm)(**model["algorithm"]["init_args"]).has_stages
    assert stages == [{**PAPER_TRAINING, **(length if has_stages else {})}]
    standing = PAPER_SETTINGS.get(algorithm, {})
    words = {name for name in ("surrogate", "margin", "step_units", "share_negatives") if name in standing}
    assert {name: values[name] for name in words} == {name: standing[name] for name in words}
