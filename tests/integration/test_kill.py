"""Runs that are killed with SIGKILL end where the unbroken run does, and checkpoints are whole or not there."""

import multiprocessing
import os
import signal
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
from tests.helpers.scripts.random_runs import Setting, differences, lost_points, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*", "ignore:.*use of fork.*"
    ),
]

KILLED = -signal.SIGKILL
#: Random augmentation, dropout, momentum, a schedule, stages and validation: 8 steps an epoch, 32 in all.
NOISY = Setting(data="noisy", stages={"every_n_steps": 5}, killed_at=())


def kill(trainer):
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(act, *args):
    """Call it in a process that may be killed; the exit code."""
    child = multiprocessing.get_context("fork").Process(target=act, args=args)
    child.start()
    child.join(120)
    return child.exitcode


def end(folder, setting, killed_at=None, act=kill):
    """A run's end in a file, unless it is killed before."""
    torch.save(run(folder, setting, killed_at, act), folder / "end.pt")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    @cache
    def of(every):
        folder = tmp_path_factory.mktemp("unbroken")
        assert in_child(end, folder, NOISY._replace(saved_every=every)) == 0
        return folder

    return of


def assert_same_end(folder, straight, lost):
    ours, theirs = (torch.load(path / "end.pt") for path in (folder, straight))
    assert differences(theirs, ours, straight, folder, lost) == []


def write_half(trainer):
    """Lets the next checkpoint be killed in the middle of its file."""

    def save(content, file):
        file.write(b"PK half of a checkpoint")
        file.flush()
        kill(trainer)

    torch.save = save


@pytest.mark.parametrize(
    ("every", "moment", "act", "resumed_at"),
    [
        pytest.param(3, ("on_before_optimizer_step", 14), kill, 12, id="inside a step"),
        pytest.param(3, ("on_train_batch_end", 15), write_half, 12, id="while a checkpoint is written"),
        pytest.param(8, ("on_validation_batch_start", 5), kill, 16, id="validation after the last batch's checkpoint"),
    ],
)
def test_a_killed_run_ends_where_the_unbroken_one_does(tmp_path, unbroken, every, moment, act, resumed_at):
    """Weights, dual variables, averages, optimizer, scheduler, position, generators and logged curves, bit for bit."""
    setting = NOISY._replace(saved_every=every)
    assert in_child(end, tmp_path, setting, moment, act) == KILLED
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)[KEY]["batches_seen"] == resumed_at
    lost = lost_points(tmp_path)
    assert in_child(end, tmp_path, setting) == 0
    assert_same_end(tmp_path, unbroken(every), lost)


def test_saved_between_two_epochs(tmp_path, unbroken):
    """As SLURM's signal may ask for it; no epoch is counted twice."""

    def save(trainer):
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        kill(trainer)

    assert in_child(end, tmp_path, NOISY, ("on_train_epoch_start", 3), save) == KILLED
    assert in_child(end, tmp_path, NOISY) == 0
    assert_same_end(tmp_path, unbroken(3), set())


# ---------------------------------------------------------------- files


def tiny(**kwargs):
    y = torch.arange(12) % 3 == 0
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    data = PosNegDataModule((x, y.long()), num_pos=2, num_neg=2)
    return TPAUCModule(nn.Linear(2, 1)), make_trainer(precision="32-true", max_steps=2, max_epochs=-1, **kwargs), data


def test_a_checkpoint_that_is_cut_short_says_so(tmp_path):
    module, trainer, data = tiny()
    trainer.fit(module, data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    whole = (tmp_path / "last.ckpt").read_bytes()
    for entry, length in (("fit", len(whole) // 2), ("validate", len(whole) - 1)):
        (tmp_path / "cut.ckpt").write_bytes(whole[:length])
        module, trainer, data = tiny()
        data.val_dataset = data.train_dataset
        with pytest.raises(CheckpointError, match=r"cut.ckpt' is not whole: its content can't be read"):
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
            CheckpointError, match=r"^The checkpoint '.*last.ckpt' can't be written \(.*No space left [^\n]*$"
        ):
            io.save_checkpoint({"other": 1}, path)
    with pytest.raises(CheckpointError, match=r"^The checkpoint '.*' can't be written \(.*File exists[^\n]*$"):
        io.save_checkpoint(content, path / "a.ckpt")
    assert io.load_checkpoint(path) == content
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


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
    with pytest.warns(TPAUCWarning, match="saved amid a training step: a resumed run repeats half of it"):
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
