"""The README's Python blocks and commands, run as they are printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.readme import README
from tests.test_strategies import free_port

TEXT = README.read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = dict(re.findall(r"<!-- run: ([\w -]+) -->\n```bash\n(.*?)```", TEXT, re.DOTALL))


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
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "data").symlink_to(ROOT.parent / "shared" / "data")
    root = re.search(r"--data.root (data/\S+)", COMMANDS[name])
    if root and not (tmp_path / root[1]).exists():  # the command would download them
        pytest.skip("the folder of real data sets is not beside the checkout")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", COMMANDS[name]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": free_port()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = r"STACO against cross-entropy, .*: (ahead|level|behind)" if name == "compare" else r"val/tpauc = 0\.\d+"
    assert re.search(found, result.stdout), result.stdout
