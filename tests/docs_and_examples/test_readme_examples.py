"""The README's Python blocks and commands, run as they are printed."""

import re

import pytest

from tests.helpers.readme import README, runnable
from tests.helpers.shown_commands import run_command

TEXT = README.read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = runnable(TEXT)


def test_every_bash_block_is_marked_to_be_run():
    assert TEXT.count("```bash") == len(COMMANDS) + TEXT.count("<!-- ci: ")
    assert PYTHON
    assert COMMANDS


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_block_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[number], f"README block {number}", "exec"), {"__name__": "readme"})  # noqa: S102


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command_runs(name, tmp_path):
    run_command(COMMANDS[name], tmp_path)
