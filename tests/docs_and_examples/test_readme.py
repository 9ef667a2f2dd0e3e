"""The README's Python blocks and commands, run as they are printed."""

import re
import subprocess

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.readme import README, commands, runnable
from tests.helpers.shown_commands import run_command

TEXT = README.read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = runnable(TEXT)


def test_every_bash_block_is_marked_to_be_run():
    assert TEXT.count("```bash") == len(COMMANDS) + TEXT.count("<!-- ci: ")
    assert PYTHON
    assert COMMANDS


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block_runs(number, tmp_cwd):
    exec(compile(PYTHON[number], f"README block {number}", "exec"), {"__name__": "readme"})  # noqa: S102


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command_runs(name, tmp_path):
    run_command(COMMANDS[name], tmp_path)


def test_it_has_the_two_commands_that_ci_runs():
    named = commands(TEXT)
    assert set(named) == {"quickstart", "tests"}
    assert "--config configs/quickstart.yaml" in named["quickstart"]
    assert "pytest" in named["tests"]
    for command in named.values():
        # `bash -e` passes over a failure left of `&&`; only in the last line does it become the script's own.
        assert not any("&&" in line for line in command.splitlines()[:-1])
        assert subprocess.run(["bash", "-n"], input=command, text=True, check=False).returncode == 0


def test_links_point_to_files_that_exist():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", TEXT)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_table_of_where_it_wins_is_that_of_the_results():
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = ["all nine kinds of decoys", "26 letters, network", "ijcnn1, linear, (.8, .2)"]
    rows += ["adult, 160 positives", "6 letters, 20% of the"]
    shown = re.findall(r"^\| [^|]*((?:\| \**\.\d{3}\** ){5})\|$", TEXT, re.MULTILINE)
    heads = [head.strip() for head in re.search(r"^\| test TPAUC, means.*", results, re.MULTILINE)[0].split("|")]
    columns = [heads.index(name) for name in ("cross-entropy", "logit adj.", "balanced", "averaged", "STACO")]
    for start, line in zip(rows, shown, strict=True):
        cells = next(line for line in results.splitlines() if line.startswith(f"| {start}")).split("|")
        expected = [cells[k] for k in columns]
        assert [float(cell.strip(" *")) for cell in line.strip("| ").split("|")] == list(map(float, expected)), start
