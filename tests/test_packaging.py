"""What is installed, what importing it costs, and what happens where an extra is missing."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import yaml

import lightning_tpauc
from lightning_tpauc import models
from lightning_tpauc.errors import MissingExtraError
from tests.helpers.paths import ROOT
from tests.test_layering import MODULES, dotted, imports, parse

#: Import names of the optional dependencies.
EXTRAS = {"matplotlib", "medmnist", "ogb", "rdkit", "torch_geometric", "torchvision"}

#: What `pip install lightning-tpauc` brings along.
CORE = {
    "jsonargparse",
    "lightning",
    "numpy",
    "scikit-learn",
    "scipy",
    "tensorboard",
    "torch",
    "torchmetrics",
    "tqdm",
    "typing_extensions",
}

# ---------------------------------------------------------------- what is installed


def test_the_command_is_installed():
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="lightning-tpauc")
    assert callable(command.load())


def test_it_requires_the_core_only():
    """The archives themselves are built and checked by .ci/run."""
    required = [line for line in importlib.metadata.requires("lightning-tpauc") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in required} == CORE
    assert all(">=" in line for line in required)


def test_version_changelog_and_citation_agree():
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (
        released[0] == (cited["version"], str(cited["date-released"])) == (lightning_tpauc.__version__, released[0][1])
    )


# ---------------------------------------------------------------- what an import brings in


def test_whatever_is_imported_is_a_declared_requirement():
    """Also what another requirement happens to bring along."""
    nodes = [node for path in MODULES for node in ast.walk(parse(path))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    foreign = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"lightning_tpauc"}
    assert foreign <= {name.replace("scikit-learn", "sklearn").replace("-", "_") for name in CORE} | EXTRAS


@pytest.mark.slow
def test_importing_the_package_is_free_and_no_module_needs_an_extra():
    """In a fresh interpreter; Lightning and torchmetrics may import torchvision and matplotlib where they are there."""
    script = f"""
import importlib, json, sys
import lightning_tpauc
heavy = sorted({{"lightning", "numpy", "torch"}} & set(sys.modules))
import lightning.pytorch.cli, torchmetrics
for name in [*sys.modules, *{EXTRAS!r}]:
    if name.split(".")[0] in {EXTRAS!r}:
        sys.modules[name] = None  # every import of it raises from here on
from lightning_tpauc import *
for name in {[dotted(path) for path in MODULES if path.name != "__main__.py"]!r}:
    importlib.import_module(f"lightning_tpauc.{{name}}".rstrip("."))
print(json.dumps(heavy))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []


# ---------------------------------------------------------------- what is said where an extra is missing


def one_molecule(folder):
    path = folder / "few.csv"
    path.write_text("smiles,active\n" + "CCO,1\nC,0\n" * 4)
    data = lightning_tpauc.SMILESDataModule(path.name, "active", root=folder, cache_dir=folder, split="random")
    data.setup()


def all_pictures(_):
    rates = torch.tensor([0.0, 1.0])
    for call in (
        lambda: lightning_tpauc.TwoWayPartialAUROC(task="multilabel", num_labels=2).plot(torch.tensor([0.5, 0.6])),
        lambda: lightning_tpauc.TwoWayPartialAUROC().plot(torch.tensor(0.5)),
        lambda: lightning_tpauc.ROCFigure(),
    ):
        with pytest.raises(MissingExtraError, match="matplotlib"):
            call()
    importlib.import_module("lightning_tpauc.metrics.figures").plot_rocs([(rates, rates)], ["ROC curve"], [(0.5, 0.5)])


def one_comparison(folder):
    data = lightning_tpauc.DigitsDataModule(positive_digit=8, val_fraction=0.25)
    lightning_tpauc.compare(torch.nn.Linear(64, 1), data, folder, max_steps=1, accelerator="cpu")


def one_figure(_):
    importlib.import_module("lightning_tpauc.comparison.report").new_figure(1, 1, (2, 2))


#: Module that asks for extras -> extra, the dependencies it imports, a call that needs each of them.
USERS = {
    "comparison.comparing": ("plot", ("matplotlib",), one_comparison),
    "comparison.report": ("plot", ("matplotlib",), one_figure),
    "data.medmnist": (
        "medical",
        ("medmnist",),
        lambda folder: lightning_tpauc.MedMNISTDataModule(root=folder, download=True).prepare_data(),
    ),
    "data.molecules": ("graph", ("ogb", "rdkit", "torch_geometric"), one_molecule),
    "metrics.figures": ("plot", ("matplotlib",), all_pictures),
    "metrics.tpauc": ("plot", ("matplotlib",), lambda _: lightning_tpauc.TwoWayPartialAUROC().plot(torch.tensor(0.5))),
    "models.gin": ("graph", ("ogb", "torch_geometric"), lambda _: models.GIN()),
    "models.volumes": ("medical", ("torchvision",), lambda _: models.ResNet3D()),
}

#: Modules that import an extra only when handed its objects, so that it can't be missing.
ALREADY_THERE = {"data.examples"}


def asked_for(tree):
    """Extras that a module imports by name or through ``import_extra``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_extra"]
    named = [ast.literal_eval(call.args[0]) for call in calls] + list(imports(tree))
    return tuple(sorted({name.split(".")[0] for name in named} & EXTRAS))


def test_the_table_of_users_is_complete():
    found = {dotted(path): asked_for(parse(path)) for path in MODULES if dotted(path) not in ALREADY_THERE}
    assert {name: extras for name, extras in found.items() if extras} == {name: user[1] for name, user in USERS.items()}


@pytest.mark.parametrize(
    ("name", "missing"), [(name, missing) for name, (_, needed, _) in USERS.items() for missing in needed]
)
def test_a_missing_extra_is_named_with_its_remedy(name, missing, monkeypatch, tmp_path):
    extra, needed, call = USERS[name]
    absent = [other for other in needed if other != missing and find_spec(other) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed and would be named instead")
    importlib.import_module(f"lightning_tpauc.{name}")  # with torchmetrics, which takes matplotlib if it is installed
    for module in [missing, *sys.modules]:
        if module.split(".")[0] == missing:
            monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{missing}.*pip install 'lightning-tpauc\[{extra}\]'"):
        call(tmp_path)
