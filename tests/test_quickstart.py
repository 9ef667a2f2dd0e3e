"""The comparison of the README, cut short: it runs, reports what it did and stays readable."""

import importlib.util
import logging
import re

import pytest

from tests.paths import ROOT

EXAMPLE = ROOT / "examples" / "quickstart.py"


@pytest.fixture
def example(monkeypatch, tmp_cwd):
    spec = importlib.util.spec_from_file_location("quickstart_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "STEPS", 30)
    monkeypatch.setattr(module, "SEEDS", range(2))
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield module
    logger.setLevel(level)  # main() silences it


@pytest.mark.filterwarnings("ignore")
def test_the_table(example, capsys):
    example.main()
    header, *rows = capsys.readouterr().out.splitlines()
    assert "test TPAUC" in header
    assert "AUROC" in header
    found = [
        re.fullmatch(r"([\w -]+?) +([\d.]+)  \(([\d.]+), ([\d.]+)\) +([\d.]+) +([\d.]+)   on (\d) of 2", r)
        for r in rows
    ]
    assert [row[1] for row in found] == ["cross-entropy", "balanced cross-entropy", "STACO"]
    for row, (_, _, rates) in zip(found, example.METHODS.values(), strict=True):
        median, low, high, auroc = map(float, row.groups()[1:5])
        assert 0 < low <= median <= high < 1
        assert 0.5 < auroc < 1
        assert float(row[6]) in rates


@pytest.mark.filterwarnings("ignore")
def test_all_methods_have_the_same_budget(example, monkeypatch):
    from lightning_tpauc import TPAUCModule

    seen = []
    step = TPAUCModule.training_step

    def count(self, batch, batch_idx):
        seen.append(len(batch.inputs))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TPAUCModule, "training_step", count)
    for method, num_neg, rates in example.METHODS.values():
        example.run(method(), num_neg, rates[0], seed=0)
        assert seen == [96] * 30
        seen.clear()


def test_it_stays_short():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 80
