"""Trainings started as a user starts them: by a command, in processes of their own."""

import os
import secrets
import socket
import subprocess
from contextlib import closing, suppress

import pytest
import torch

from lightning_tpauc.cli import main
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.paths import ROOT
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close
from tests.helpers.warm import with_warm_path

#: 1,347 digits, a linear model, STACO2 with a stage an epoch; S and B are sums over processes.
#: A job that is stopped is one of fewer steps: nothing may go by the number of them.
CONFIG = """
seed_everything: 0
model:
  class_path: lightning_tpauc.TPAUCModule
  init_args:
    backbone: {{class_path: lightning_tpauc.models.Linear, init_args: {{num_features: 64}}}}
    algorithm: {{class_path: lightning_tpauc.algorithms.STACO, init_args: {{gamma: 50.0}}}}
    optimizer: {{class_path: torch.optim.SGD, init_args: {{lr: 0.1}}}}
    warmup: 0
data:
  class_path: lightning_tpauc.DigitsDataModule
  init_args: {{num_pos: {num_pos}, num_neg: {num_neg}, val_fraction: 0.25, batch_size: 7}}
trainer:
  accelerator: cpu
  precision: 64-true
  max_steps: 30
  logger: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - {{class_path: lightning_tpauc.StageCallback, init_args: {{shrink_rectangle: false}}}}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{dirpath: {folder}, save_last: true, every_n_train_steps: 30}}
"""


def start(command, folder, **environment):
    """A process as a user starts it: nothing of this test run in its environment but the path."""
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "LANG", "VIRTUAL_ENV")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=with_warm_path({**keep, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process, timeout=180):
    """Its output; a process that hangs is killed with all that it started."""
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        pytest.fail(f"did not end in {timeout} s:\n{process.communicate()[0]}")


def finish_well(process):
    output = finish(process)
    assert process.returncode == 0, output
    return output


def free_port():
    """A port below those that the system gives to connections, one of which could take it before it is used."""
    while True:
        port = 20000 + secrets.randbelow(12000)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return str(port)


def write_config(folder, world):
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(num_pos=12 // world, num_neg=24 // world, folder=folder / "checkpoints"))
    return str(path)


def run_alone(folder):
    """Checkpoint of the run in one process, this one."""
    before = dict(os.environ)
    here = ["--trainer.default_root_dir", str(folder)]  # the resolved configuration
    main(["fit", "--config", write_config(folder, 1), "--trainer.devices", "1", *here])
    os.environ.clear()
    os.environ.update(before)
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def assert_same_run(folder, expected):
    actual = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert actual["global_step"] == expected["global_step"] == 30
    assert_close(actual["state_dict"]["backbone.linear.weight"], expected["state_dict"]["backbone.linear.weight"])
    for part in ("algorithm", "average"):
        ours, theirs = flat(actual[KEY][part]), flat(expected[KEY][part])
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert_close(ours[name], value, "trajectory64")
