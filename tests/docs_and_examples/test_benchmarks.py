"""Benchmarks keep up with the package: each can be imported, says how to run it, and the quick ones run."""

import importlib

import pytest

from benchmarks.common import compare, verdict
from tests.helpers.paths import ROOT

NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("name", NAMES)
def test_each_says_how_it_runs(name, capsys):
    module = importlib.import_module(f"benchmarks.{name}")
    assert f"benchmarks.{name}" in module.__doc__ or f"benchmarks/{name}.py" in module.__doc__
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_the_table_of_results_names_them_all():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text and f"`{name}.py`" not in text] == []


@pytest.mark.slow
def test_sides_are_timed_in_turns_and_compared_with_targets(capsys):
    order = []

    def side(name, seconds):
        order.append(name)
        return seconds

    clocks = compare({"ours": lambda: side("ours", 0.002), "theirs": lambda: side("theirs", 0.008)}, rounds=2)
    assert order == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert clocks["theirs"].over(clocks["ours"]) == 4.0
    assert verdict("theirs / ours", 4.0, 3.0, at_least=True)
    assert not verdict("ours", 0.6, 0.5, unit=" s")
    printed = capsys.readouterr().out
    assert "| theirs | 8 | 8 | 8 | 4.000 |" in printed
    assert "theirs / ours: 4 (target >= 3) ok" in printed
    assert "ours: 0.6 s (target <= 0.5 s) MISSED" in printed
