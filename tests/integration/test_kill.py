"""Runs that are killed with SIGKILL end where the unbroken run does, and checkpoints are whole or not there."""

import multiprocessing
import os
import resource
import signal
import sys
import time
from functools import cache
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.errors import CheckpointError, MissingCheckpointError, TPAUCWarning
from lightning_tpauc.files import replacing
from lightning_tpauc.lightning_fixes.checkpoint_files import AtomicCheckpointIO
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.ddp import run_distributed
from tests.helpers.problems import make_trainer
from tests.helpers.scripts.survive import Kill, Setting, checkpoint_of, curves, differences, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*", "ignore:.*use of fork.*"
    ),
]

KILLED = -signal.SIGKILL


def in_child(folder, setting, *callbacks, ends=None):
    """Run in a process that may be killed; its exit code, which may have to be ``ends``."""
    folder.mkdir(parents=True, exist_ok=True)
    child = multiprocessing.get_context("fork").Process(target=quiet, args=(folder, setting, callbacks))
    child.start()
    child.join(120)
    assert child.exitcode is not None, "hangs"
    assert ends in (None, child.exitcode), (folder / "output.txt").read_text()
    return child.exitcode


def quiet(folder, setting, callbacks):
    output = (folder / "output.txt").open("a", buffering=1)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.stdout = sys.stderr = output  # pytest has put its own there
    run(folder, setting, callbacks)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    @cache
    def of(setting):
        folder = tmp_path_factory.mktemp("unbroken")
        in_child(folder, setting, ends=0)
        assert len(curves(folder)) > 70
        return folder

    return of


# 8 steps an epoch, 32 in all; stages of 5 steps
@pytest.mark.parametrize(
    ("setting", "where", "step", "resumed_at"),
    [
        pytest.param(Setting(), "step", 13, 12, id="inside a step"),
        pytest.param(Setting(), "save", 15, 12, id="while a checkpoint is written"),
        pytest.param(Setting(every=0), "save", 16, 8, id="while an epoch's checkpoint is written"),
        pytest.param(Setting(every=8), "validation", 16, 16, id="validation after the last batch's checkpoint"),
        pytest.param(Setting(validate_every=3, plateau=True), "validation", 15, 15, id="validation amid an epoch"),
        pytest.param(Setting(every=0, ends="both"), "step", 20, 16, id="epoch's checkpoint, max_epochs and max_steps"),
        pytest.param(Setting(every=-1, plateau=True), "step", 13, 8, id="checkpoint of the best validation"),
        pytest.param(Setting(workers=2, steps_known=True), "step", 13, 12, id="workers, estimated_stepping_batches"),
    ],
)
def test_a_killed_run_ends_where_the_unbroken_one_does(tmp_path, unbroken, setting, where, step, resumed_at):
    """Weights, dual variables, averages, optimizer, scheduler, position, generators and logged curves, bit for bit."""
    code = in_child(tmp_path, setting, Kill(where, step))
    said = (tmp_path / "output.txt").read_text()
    assert code == KILLED, said
    assert checkpoint_of(tmp_path) is not None, said
    saved = torch.load(checkpoint_of(tmp_path), weights_only=True)
    assert saved[KEY]["batches_seen"] == resumed_at
    assert not (tmp_path / "end0.pt").exists()
    in_child(tmp_path, setting, ends=0)
    assert differences(tmp_path, unbroken(setting)) == []


def test_killed_again_and_again(tmp_path, unbroken):
    setting, kills = Setting(), 0
    for step in (2, 8, 19, 31):
        kills += in_child(tmp_path, setting, Kill("step", step)) == KILLED
    assert kills == 4
    in_child(tmp_path, setting, ends=0)
    assert differences(tmp_path, unbroken(setting)) == []


class SaveBetweenEpochs(Callback):
    """As SLURM's signal may ask for it."""

    def __init__(self, path):
        self.path = path

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            trainer.save_checkpoint(self.path)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("ends", ["epochs", "both"])
def test_saved_between_two_epochs(tmp_path, unbroken, ends):
    """No epoch is counted twice."""
    in_child(tmp_path, Setting(ends=ends), SaveBetweenEpochs(tmp_path / "checkpoints" / "last.ckpt"), ends=KILLED)
    in_child(tmp_path, Setting(ends=ends), ends=0)
    assert differences(tmp_path, unbroken(Setting(ends=ends))) == []


# ---------------------------------------------------------------- files


def tiny(**kwargs):
    y = torch.arange(12) % 3 == 0
    data = PosNegDataModule((torch.randn(12, 2), y.long()), num_pos=2, num_neg=2)
    return TPAUCModule(nn.Linear(2, 1)), make_trainer(precision="32-true", max_steps=2, max_epochs=-1, **kwargs), data


def test_a_checkpoint_that_is_cut_short_says_so(tmp_path):
    module, trainer, data = tiny()
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    whole = (tmp_path / "last.ckpt").read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.ckpt").write_bytes(whole[:length])
        for entry in ("fit", "validate"):
            module, trainer, data = tiny()
            data.val_dataset = data.train_dataset
            with pytest.raises(CheckpointError, match=rf"cut.ckpt' is not whole: its {length} bytes end too early"):
                getattr(trainer, entry)(module, data, ckpt_path=tmp_path / "cut.ckpt")
    for error in (MissingCheckpointError, FileNotFoundError):
        with pytest.raises(error, match=r"There is no checkpoint '.*nowhere.ckpt' \(the current folder is"):
            trainer.validate(module, data, ckpt_path=tmp_path / "nowhere.ckpt")
    with pytest.raises(CheckpointError, match="is a folder, as ModelParallelStrategy writes"):
        trainer.validate(module, data, ckpt_path=tmp_path)


def test_a_failed_save_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    io, path = AtomicCheckpointIO(), tmp_path / "new folder" / "last.ckpt"
    content = {"state_dict": {}, "pytorch-lightning_version": "2.6"}
    io.save_checkpoint(content, path)
    with pytest.raises(CheckpointError, match="can't hold step: function"):
        io.save_checkpoint({"step": lambda: 2}, path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(
            CheckpointError, match=r"^The checkpoint '.*last.ckpt' can't be written: No space left [^\n]*$"
        ):
            io.save_checkpoint({"other": 1}, path)
    with pytest.raises(CheckpointError, match=r"^The checkpoint '.*' can't be written: File exists\. [^\n]*$"):
        io.save_checkpoint(content, path / "a.ckpt")
    assert io.load_checkpoint(path) == content
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_full_disk_is_one_line(tmp_path):
    """A limit on the size of files stands for the disk's end: it fails in the middle of what torch writes."""

    def save():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(CheckpointError, match=r"^The checkpoint '.*last.ckpt' can't be written: [^\n]*$"):
            AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(200_000)}, tmp_path / "last.ckpt")

    child = multiprocessing.get_context("fork").Process(target=save)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_no_reader_sees_half_a_file(tmp_path):
    """A reader that looks all the time while another process overwrites the checkpoint."""
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    content = {"weights": torch.ones(200_000)}
    io.save_checkpoint(content, path)

    def write():
        for _ in range(40):
            io.save_checkpoint(content, path)

    child = multiprocessing.get_context("fork").Process(target=write)
    child.start()
    reads, versions = 0, set()
    deadline = time.monotonic() + 60
    while child.exitcode is None and time.monotonic() < deadline:
        with path.open("rb") as file:
            versions.add(os.fstat(file.fileno()).st_ino)
            assert torch.equal(torch.load(file, weights_only=True)["weights"], content["weights"])
        reads += 1
        child.join(0)
    assert child.exitcode == 0
    assert reads > 3
    assert len(versions) > 1


def test_processes_that_save_the_same_file_do_not_write_into_each_others(tmp_path):
    path = tmp_path / "last.ckpt"

    def write(number):
        io = AtomicCheckpointIO()
        for _ in range(30):
            io.save_checkpoint({"weights": torch.full((100_000,), float(number))}, path)

    children = [multiprocessing.get_context("fork").Process(target=write, args=(k,)) for k in range(2)]
    for child in children:
        child.start()
    seen = set()
    while any(child.is_alive() for child in children):
        if path.exists():
            (value,) = torch.load(path, weights_only=True)["weights"].unique().tolist()
            seen.add(value)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert seen == {0.0, 1.0}
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_what_a_kill_left_is_removed_once_nobody_writes_it(tmp_path):
    path = tmp_path / "last.ckpt"

    def die():
        with replacing(path) as file:
            file.write(b"half")
            os._exit(9)

    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(target=die)
        child.start()
        child.join()
    old, young = tmp_path.iterdir()
    os.utime(old, (time.time() - 7200,) * 2)
    with replacing(path) as file:
        file.write(b"whole")
    assert set(tmp_path.iterdir()) == {young, path}
    assert path.read_bytes() == b"whole"


def test_the_module_replaces_lightnings_plugin_only():
    class Own(TorchCheckpointIO):
        pass

    for plugin, expected in ((None, AtomicCheckpointIO), (Own(), Own), (AsyncCheckpointIO(), AsyncCheckpointIO)):
        module, trainer, data = tiny(plugins=None if plugin is None else [plugin])
        trainer.fit(module, data)
        assert type(trainer.strategy.checkpoint_io) is expected


# ---------------------------------------------------------------- amid a step


class SaveAmidStep(Callback):
    """As a signal handler may."""

    def __init__(self, path):
        self.path = path

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        trainer.save_checkpoint(self.path)


def test_saving_amid_a_step_warns(tmp_path):
    module, trainer, data = tiny(callbacks=[SaveAmidStep(tmp_path / "amid.ckpt")])
    with pytest.warns(TPAUCWarning, match="saved amid a training step: a run resumed from it takes half a step twice"):
        trainer.fit(module, data)
    module, trainer, data = tiny()
    trainer.fit(module, data, ckpt_path=tmp_path / "amid.ckpt")
    assert module.training_state.batches_seen == trainer.global_step == 2


@pytest.mark.ddp
def test_saving_amid_a_step_of_several_ranks_is_refused(tmp_path):
    from tests.integration.test_distributed import Attached

    def save(rank, world):
        module, trainer, data = tiny(
            callbacks=[SaveAmidStep(tmp_path / "amid.ckpt")],
            devices=world,
            strategy="ddp",
            plugins=[Attached(rank, world)],
        )
        with pytest.raises(CheckpointError, match=r"amid a training step, .*auto_requeue=False"):
            trainer.fit(module, data)

    run_distributed(save, 2)
    assert not (tmp_path / "amid.ckpt").exists()
