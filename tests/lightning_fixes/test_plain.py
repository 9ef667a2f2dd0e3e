"""Whatever a checkpoint is given, torch reads it back with ``weights_only=True``, or it is refused by name."""

import collections
import enum
import io
import pathlib
from functools import partial

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import CheckpointError, TPAUCWarning
from lightning_tpauc.lightning_fixes.checkpoint_files import plain
from tests.helpers.problems import make_trainer


class Mode(str, enum.Enum):
    FAST = "fast"


Point = collections.namedtuple("Point", "x y")


def read_back(value):
    """What torch makes of a value that is saved and loaded: the independent judge."""
    file = io.BytesIO()
    torch.save({"value": value}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["value"]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(3)[::-1], torch.tensor([2, 1, 0])),
        (np.array(2.5), torch.tensor(2.5, dtype=torch.float64)),
        (np.array([1, 2], dtype=">i4"), torch.tensor([1, 2], dtype=torch.int32)),
        (np.array(["a", "b"]), ["a", "b"]),
        (pathlib.Path("a/b"), "a/b"),
        (AttributeDict(a=AttributeDict(b=1)), {"a": {"b": 1}}),
        (Mode.FAST, "fast"),
        (Point(1, np.int8(2)), (1, 2)),
        (frozenset({1}), {1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.OrderedDict(a=np.int64(1)), collections.OrderedDict(a=1)),
    ],
    ids=repr,
)
def test_a_plain_equivalent_is_saved(value, expected):
    found = plain(value, "x")
    assert same(found, expected)
    assert same(read_back(found), expected)


# ---------------------------------------------------------------- whole runs


def make_data(cls=PosNegDataModule, **kwargs):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    return cls((x, (x[:, 0] > 0.5).long()), num_pos=4, num_neg=8, val_fraction=0.3, **kwargs)


class Own(TPAUCModule):
    def __init__(self, extra=None, **kwargs):
        super().__init__(nn.Linear(2, 1), **kwargs)
        self.save_hyperparameters()


class OwnData(PosNegDataModule):
    def __init__(self, train_dataset, extra=None, **kwargs):
        super().__init__(train_dataset, **kwargs)
        self.save_hyperparameters(ignore=["train_dataset"])


def fit(folder, module, data, callbacks=(), **kwargs):
    saver = ModelCheckpoint(dirpath=folder, filename="saved", monitor=None)
    trainer = make_trainer(precision="32-true", callbacks=[saver, *callbacks], enable_checkpointing=True, **kwargs)
    trainer.fit(module, data)
    return torch.load(folder / "saved.ckpt", weights_only=True)


def numpy_sgd(parameters):
    return torch.optim.SGD(parameters, lr=np.float64(0.1), momentum=np.float32(0.5), weight_decay=np.float16(0))


def test_numbers_of_numpy_in_optimizer_and_schedule_resume(tmp_path):
    def make():
        torch.manual_seed(3)
        steps = partial(torch.optim.lr_scheduler.StepLR, step_size=np.int64(2), gamma=np.float32(0.5))
        return TPAUCModule(nn.Linear(2, 1), optimizer=numpy_sgd, lr_scheduler=steps)

    straight = make()
    make_trainer(precision="32-true", max_epochs=4).fit(straight, make_data())
    saved = fit(tmp_path, make(), make_data(), max_epochs=2)
    assert type(saved["optimizer_states"][0]["param_groups"][0]["momentum"]) is float
    assert type(saved["lr_schedulers"][0]["step_size"]) is int
    resumed = make()
    trainer = make_trainer(precision="32-true", max_epochs=4)
    trainer.fit(resumed, make_data(), ckpt_path=tmp_path / "saved.ckpt")
    assert torch.equal(resumed.backbone.weight, straight.backbone.weight)


def test_hyperparameters_of_module_and_data_are_rebuilt(tmp_path):
    extra = {"folder": pathlib.Path("a"), "grid": np.arange(2), "mode": Mode.FAST}
    saved = fit(tmp_path, Own(extra=extra), make_data(OwnData, extra=np.float32(0.5)))
    module = Own.load_from_checkpoint(tmp_path / "saved.ckpt")
    assert same(dict(module.hparams["extra"]), {"folder": "a", "grid": torch.arange(2), "mode": "fast"})
    assert saved["datamodule_hyper_parameters"]["extra"] == 0.5


def test_objects_are_left_out_of_hyperparameters(tmp_path):
    class WithData(PosNegDataModule):
        def __init__(self, train_dataset, other=None, **kwargs):
            super().__init__(train_dataset, **kwargs)
            self.save_hyperparameters(ignore=["train_dataset"])

    other = torch.utils.data.TensorDataset(torch.zeros(3, 2))
    with pytest.warns(TPAUCWarning, match=r"they leave out the hyperparameter `extra` \(len\): .*again"):
        saved = fit(tmp_path, Own(algorithm=STACO(), optimizer=numpy_sgd, extra=len), make_data(WithData, other=other))
    assert "other" not in saved["datamodule_hyper_parameters"]
    assert not {"algorithm", "extra"} & saved["hyper_parameters"].keys()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"extra": slice(2)}, r"hold hyper_parameters\['extra'\]: slice .*save_hyperparameters\(ignore=\['extra'\]\)"),
        ({"extra": {"inner": STACO()}}, r"hold hyper_parameters\['extra'\]\['inner'\]: STACO .*ignore=\['extra'\]"),
    ],
)
def test_hyperparameters_are_refused_before_the_first_step(tmp_path, where, words):
    module = Own(**where)
    with pytest.raises(CheckpointError, match=words):
        fit(tmp_path, module, make_data())
    assert module.training_state.batches_seen == 0
    with pytest.raises(CheckpointError, match=r"datamodule_hyper_parameters\['extra'\]: slice"):
        fit(tmp_path, Own(), make_data(OwnData, extra=slice(2)))
    make_trainer(precision="32-true").fit(module, make_data())  # nothing will be saved


class Remembers(Callback):
    def __init__(self, value, how):
        self.value, self.how = value, how

    def state_dict(self):
        return {"mine": self.value} if self.how == "state_dict" else {}


class Adds(TPAUCModule):
    value = None

    def on_save_checkpoint(self, checkpoint):
        super().on_save_checkpoint(checkpoint)
        checkpoint["mine"] = self.value


@pytest.mark.parametrize("how", ["state_dict", "module"])
def test_what_users_add_is_converted_or_refused_at_the_first_save(tmp_path, how):
    def run(value):
        module = (Adds if how == "module" else TPAUCModule)(nn.Linear(2, 1))
        module.value = value
        return fit(tmp_path, module, make_data(), [Remembers(value, how)])

    saved = run(np.float64(0.25))
    found = saved["callbacks"]["Remembers"]["mine"] if how == "state_dict" else saved["mine"]
    assert type(found) is float
    assert found == 0.25
    with pytest.raises(
        CheckpointError, match=r"can't hold .*mine.*: slice \(slice\(None, 7, None\)\) is not read back"
    ):
        run(slice(7))


def test_another_plugin_for_files_gets_plain_values_as_well(tmp_path):
    class OwnIO(TorchCheckpointIO):
        pass

    saved = fit(tmp_path, Own(extra=pathlib.Path("a")), make_data(), plugins=[OwnIO()])
    assert saved["hyper_parameters"]["extra"] == "a"
