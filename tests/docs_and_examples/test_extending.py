"""docs/extending.md, done: a method, a surrogate and a data set, each in one file of a user's folder."""

import re
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


def test_the_places_that_the_page_names_are_there():
    places = re.findall(r"`((?:lightning_tpauc|tests|docs)/[\w./]*)`", PAGE)
    assert places
    missing = [place for place in places if not (ROOT / place.replace("NAME", "staco")).exists()]
    assert [place for place in missing if not (ROOT / place.replace("NAME", "medmnist")).exists()] == []
