"""The batch script for SLURM, run with a stand-in for srun that starts its tasks on this machine."""

import os
import re
import subprocess

import pytest
import torch

from tests.helpers.launching import assert_same_run, finish_well, free_port, start, write_config
from tests.helpers.paths import ROOT

SCRIPT = ROOT / "examples" / "slurm.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
OPTIONS = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", TEXT, re.MULTILINE))

#: What srun does: all tasks at once, each with its numbers, and a failure if one fails.
SRUN = """#!/bin/bash
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_NODEID=$rank SLURM_LOCALID=0 "$@" & tasks="${tasks-} $!"
done
for task in $tasks; do wait "$task" || exit 1; done
"""

pytestmark = pytest.mark.ddp


def test_it_asks_for_a_process_per_gpu():
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0
    assert os.access(SCRIPT, os.X_OK)
    assert OPTIONS["ntasks-per-node"] == OPTIONS["gpus-per-node"]
    assert int(OPTIONS["nodes"]) > 1
    assert "#SBATCH --requeue" in TEXT
    # SLURM sets this variable only where the option is given, and Lightning compares it with `devices`
    assert '--trainer.devices "$SLURM_NTASKS_PER_NODE"' in TEXT
    assert '--trainer.num_nodes "$SLURM_NNODES"' in TEXT


def test_two_machines_and_a_requeued_job(tmp_path, one_process):
    """The second start goes on where the first one was stopped, and ends where one process does."""
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN, encoding="utf-8")
    srun.chmod(0o755)
    config = write_config(tmp_path, 2)

    def submit(steps):
        job = {
            "PATH": f"{srun.parent}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NAME": "tpauc",
            "SLURM_NTASKS": "2",
            "SLURM_NNODES": "2",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_NODELIST": "127.0.0.1,localhost",
            "MASTER_PORT": free_port(),
        }
        frequently = ["--trainer.callbacks.every_n_train_steps", "5"]
        words = [SCRIPT, config, "--trainer.accelerator=cpu", "--trainer.max_steps", str(steps), *frequently]
        return finish_well(start(words, tmp_path, **job))

    submit(15)
    first = torch.load(tmp_path / "checkpoints-4711" / "last.ckpt", weights_only=True)
    assert first["global_step"] == 15
    assert "Restored all states from the checkpoint" in submit(30)
    assert_same_run(tmp_path, one_process)
