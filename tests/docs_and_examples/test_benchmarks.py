"""Benchmarks keep up with the package: each can be imported and says how to run it."""

import importlib

import pytest

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
