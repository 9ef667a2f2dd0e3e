"""The command examples/reproduce.py on files of the right names and next to no size."""

import bz2
import csv
import importlib.util
import re
import shlex
import shutil

import numpy as np
import pytest

from tests.helpers.paths import ROOT


@pytest.fixture
def plot():
    """Reports have figures."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def reproduce():
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "examples" / "reproduce.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def words(tmp_path):
    for name, seed in (("ijcnn1.bz2", 0), ("ijcnn1.t.bz2", 1)):
        labels = np.arange(150) % 3 == 0
        values = np.random.default_rng(seed).normal(size=150) + labels
        with bz2.open(tmp_path / name, "wt") as file:
            file.writelines(f"{'+1' if y else '-1'} 1:{x:.4f} 22:1\n" for y, x in zip(labels, values, strict=True))
    folders = {"data-root": tmp_path, "results": tmp_path / "results", "cache": tmp_path / "cache"}
    own = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
    return ["--experiment", "ijcnn1", *own, "--folds", "2", "--search-folds", "1", "--budget", "2", "--length", "4"]


def read_table(tmp_path):
    with (tmp_path / "results" / "ijcnn1" / "table.csv").open(encoding="utf-8") as file:
        return {(row["min_tpr"], row["method"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ijcnn1-gamma", "surrogates"])
def test_stored_results_are_reported_as_they_were(plot, reproduce, name, tmp_path):
    stored = ROOT / "examples" / "results" / name
    shutil.copytree(stored / "cells", tmp_path / name / "cells")
    text = (stored / "README.md").read_text(encoding="utf-8")
    words = shlex.split(re.search(r"Command: `python examples/reproduce.py (.*)`", text)[1])
    reproduce.main([*words, "--only-report", "--results", str(tmp_path)])
    assert (tmp_path / name / "table.csv").read_text() == (stored / "table.csv").read_text()
    again = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    assert again[again.index("## ") :] == text[text.index("## ") :]


@pytest.mark.slow
def test_runs_goes_on_and_reports(plot, reproduce, words, tmp_path, capsys):
    reproduce.main([*words, "--methods", "CE"])
    first = read_table(tmp_path)
    reproduce.main([*words, "--methods", "CE", "SOTA"])
    table = read_table(tmp_path)
    assert {method for _, method in table} == {"CE", "SOTA"}
    assert all(table[key] == row for key, row in first.items())
    assert (table["0.5", "CE"]["paper_mean"], table["0.5", "SOTA"]["paper_mean"]) == ("0.23", "")
    assert {row["runs"] for row in table.values()} == {"2"}
    printed = capsys.readouterr().out
    assert "| SOTA | " in printed
    assert "LIBSVMDataModule: train_file=ijcnn1.bz2, test_file=ijcnn1.t.bz2." in printed
    # without data: nothing is left to run; a seed that is given twice is one run
    reproduce.main([*words, "--methods", "CE", "SOTA", "--only-report", "--seeds", "0", "0", "--data-root", "none"])
    assert read_table(tmp_path) == table
    capsys.readouterr()
    reproduce.main([*words, "--methods", "CE", "STACO1, paper's start", "--only-report"])
    command = capsys.readouterr().out.split("Command: `")[1].partition("`")[0]
    assert shlex.split(command)[-3:] == ["CE", "STACO1, paper's start", "--only-report"]
