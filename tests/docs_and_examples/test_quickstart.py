"""The comparison of the README, cut short: it runs, reports what it did and stays readable."""

import importlib.util
import os
import re
import runpy
import sys

import pytest
import torch

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.models import Linear
from tests.helpers.paths import ROOT, SHARED_DATA

EXAMPLE = ROOT / "examples" / "quickstart.py"


@pytest.fixture
def example(monkeypatch, tmp_cwd):
    spec = importlib.util.spec_from_file_location("quickstart_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STEPS", 30)
    monkeypatch.setattr(module, "SEEDS", range(2))
    return module


@pytest.fixture
def root():
    folder = SHARED_DATA / "ijcnn1"
    if not folder.is_dir():
        pytest.skip(f"needs the LIBSVM files of ijcnn1 in {folder}")
    return str(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_the_table(example, root, tmp_path, capsys):
    example.main(root, str(tmp_path))
    header, *rows = capsys.readouterr().out.splitlines()
    columns = ["medians over splits", "validation", "test TPAUC", "(lowest, highest)", "AUROC", "lr"]
    assert re.split(r"  +", header) == [*columns, "ahead of cross-entropy"]
    values = r" +([\d.]+) +([\d.]+)  \(([\d.]+), ([\d.]+)\) +([\d.]+) +([\d.]+|default)"
    found = [re.fullmatch(rf"([\w -]+?){values}   on (\d) of 2", row) for row in rows]
    assert [row[1] for row in found] == ["cross-entropy", "balanced cross-entropy", "STACO"]
    for row, (_, rates) in zip(found, example.METHODS.values(), strict=True):
        val, median, low, high, auroc = map(float, row.groups()[1:6])
        assert 0 < val < 1
        assert 0 < low <= median <= high < 1
        assert 0.5 < auroc < 1
        assert (None if row[7] == "default" else float(row[7])) in rates
    assert found[0][8] == "0", "cross-entropy is not ahead of itself"


@pytest.mark.filterwarnings("ignore")
def test_all_methods_have_the_same_budget(example, monkeypatch, tmp_path):
    """256 examples a step; those that draw the classes apart take 64 positives and 192 negatives."""
    seen = []
    score = TPAUCModule.joint_scores

    def count(self, batch):
        if torch.is_grad_enabled():  # a step
            seen.append((len(batch.inputs), batch.num_pos, batch.num_neg, batch.num_dual_neg))
        return score(self, batch)

    monkeypatch.setattr(TPAUCModule, "joint_scores", count)
    monkeypatch.setattr(example, "Linear", lambda _: Linear(2))
    x, y = torch.randn(1600, 2), torch.arange(1600) % 8 == 0
    data = PosNegDataModule((x, y), val_fraction=0.2)
    for name, (method, rates) in example.METHODS.items():
        example.train(data, method(), rates[0])
        assert len(seen) == 30
        assert {sizes[0] for sizes in seen} == {256}
        assert name == "cross-entropy" or set(seen) == {(256, 64, 192, 0)}
        seen.clear()


def test_a_missing_network_is_one_line(tmp_cwd, monkeypatch):
    """Nothing is at the address that it asks: a proxy's port that is closed, in place of the world."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--data-root", "new"])
    with pytest.raises(SystemExit, match=r"^quickstart.py: error: .*ijcnn1.bz2 could not be downloaded: .*it there\.$"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
