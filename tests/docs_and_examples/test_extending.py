"""docs/extending.md, done: a method, a surrogate and a data set, each in one file, in a folder and in the package."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from lightning_tpauc.cli import main
from tests.helpers.paths import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
METHOD, SURROGATE, DATA = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
#: Without the lines that try them out.
METHOD, DATA = METHOD.partition("\n\nalgorithm = ")[0], DATA.partition("\n\ndata = ")[0]
SURROGATE = SURROGATE.partition("\nprint(")[0]
QUIET = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
SHORT = ["--trainer.max_epochs=2", "--trainer.accelerator=cpu", *(f"--trainer.{name}=false" for name in QUIET)]
WINE = ["--data.num_pos=8", "--data.num_neg=16", "--data.val_fraction=0.3", "--data.batch_size=32"]
LINEAR = ["--model.backbone=lightning_tpauc.models.Linear", "--model.backbone.num_features=13"]


@pytest.fixture
def folder(tmp_cwd):
    """A user's folder; what its files import is forgotten afterwards."""
    before = set(sys.modules)
    yield tmp_cwd
    for name in set(sys.modules) - before:
        if name in ("method", "wine"):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_in_a_folder_of_ones_own(folder, capsys):
    """The command finds the classes by their files; the file of the data set registers the surrogate."""
    (folder / "method.py").write_text("import torch\n" + METHOD, encoding="utf-8")
    (folder / "wine.py").write_text(f"import torch\n{SURROGATE}\n{DATA}", encoding="utf-8")
    for algorithm in (["method.QuantileHinge"], ["STACO", "--model.algorithm.surrogate=exponential"]):
        name, *options = algorithm
        main(["fit", "--data=wine.Wine", *WINE, *LINEAR, f"--model.algorithm={name}", *options, *SHORT])
        assert re.search(r"val/tpauc = [01]\.\d+", capsys.readouterr().out)


def replace_once(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.slow
def test_in_the_package(tmp_path):
    """One new file, or one entry in a file, and the line that exports it: found by its short name."""
    package = tmp_path / "lightning_tpauc"
    shutil.copytree(ROOT / "lightning_tpauc", package, ignore=shutil.ignore_patterns("__pycache__"))

    (package / "algorithms" / "quantile_hinge.py").write_text("import torch\n" + METHOD, encoding="utf-8")
    exported = "from lightning_tpauc.algorithms.quantile_hinge import QuantileHinge"
    exports = package / "algorithms" / "__init__.py"
    replace_once(exports, "__all__ = (\n", f'{exported}\n\n__all__ = (\n    "QuantileHinge",\n')

    factory = re.search(r"^def exponential.*?(?=^register_surrogate)", SURROGATE, re.MULTILINE | re.DOTALL)[0]
    table = "_FACTORIES: dict[str, SurrogateFactory] = {\n"
    new = f'{factory}\n{table}    "exponential": lru_cache(exponential),\n'
    replace_once(package / "functional" / "surrogates.py", table, new)

    (package / "data" / "wine.py").write_text(DATA, encoding="utf-8")
    exports = package / "data" / "__init__.py"
    exported = "from lightning_tpauc.data.wine import Wine"
    replace_once(exports, "__all__ = (\n", f'{exported}\n\n__all__ = (\n    "Wine",\n')

    words = ["fit", "--data=Wine", *WINE, *LINEAR, *SHORT]
    program = f"""
import lightning_tpauc
from lightning_tpauc.cli import main

print(lightning_tpauc.__file__)
main({[*words, "--model.algorithm=QuantileHinge"]})
main({[*words, "--model.algorithm=STACO", "--model.algorithm.surrogate=exponential"]})
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(str(package)), "the copy is what runs"
    assert len(re.findall(r"\n  val/tpauc = [01]\.\d+", done.stdout)) == 2, done.stdout


def test_the_places_that_the_page_names_are_there():
    places = re.findall(r"`((?:lightning_tpauc|tests|docs)/[\w./]*)`", PAGE)
    assert places
    missing = [place for place in places if not (ROOT / place.replace("NAME", "staco")).exists()]
    assert [place for place in missing if not (ROOT / place.replace("NAME", "medmnist")).exists()] == []
