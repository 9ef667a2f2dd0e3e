"""Runs a shell command that the README or a page of docs/ shows."""

import os
import re
import subprocess

import pytest

from tests.helpers.launching import free_port
from tests.helpers.paths import ROOT
from tests.helpers.warm import with_warm_path

#: What is printed, by the subcommand that says it last.
_PRINTED = {
    "compare": r"STACO against .*cross-entropy.*, .*: (ahead|level|behind|can't tell)",
    "predict": r"^example_id,score,decision\n0,-?[\d.]+,[01]$",
    "fit": r"val/tpauc = 0\.\d+",
}


def run_command(command, folder):
    """Run it in a folder with the configurations and the real data, and look at what it prints."""
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "data").symlink_to(ROOT.parent / "shared" / "data")
    root = re.search(r"--data.root (data/\S+)", command)
    if root and not (folder / root[1]).exists():  # the command would download them
        pytest.skip("the folder of real data sets is not beside the checkout")
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=with_warm_path({**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": free_port()}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    expected = next(words for name, words in _PRINTED.items() if re.search(rf"\b{name} --config", command))
    assert re.search(expected, result.stdout, re.MULTILINE), result.stdout
