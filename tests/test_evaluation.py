"""What validation, test and prediction take, and the names of what they report."""

import re
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.evaluation import inputs_and_target
from lightning_tpauc.functional import two_way_partial_auroc
from tests.fixed import make_trainer
from tests.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*")

DIM = 5


def make_problem():
    generator = torch.Generator().manual_seed(3)
    y = torch.cat([torch.ones(24), torch.zeros(80)]).long()
    return torch.randn(104, DIM, generator=generator) + 0.4 * y[:, None], y


def make_module(**kwargs):
    torch.manual_seed(0)
    return TPAUCModule(nn.Linear(DIM, 1), STACO(0.6, 0.4), lambda p: torch.optim.SGD(p, lr=0.05), **kwargs)


def loaders_of(*parts):
    x, y = make_problem()
    return [DataLoader(TensorDataset(x[part], y[part]), batch_size=16) for part in parts]


def area_of(module, part, *rectangle):
    x, y = make_problem()
    with torch.no_grad():
        return two_way_partial_auroc(module.raw_scores(x[part]), y[part], *rectangle)


class TwoValidations(PosNegDataModule):
    """Validates on two halves, each with its own metrics."""

    def val_dataloader(self):
        return loaders_of(slice(0, None, 2), slice(1, None, 2))


@pytest.mark.parametrize("subject", ["validate", "test"])
def test_each_of_several_loaders_has_its_own_metrics(subject):
    module, parts = make_module(), (slice(0, None, 2), slice(1, None, 3), slice(None))
    trainer = make_trainer(precision="32-true")
    prefix = "val" if subject == "validate" else "test"
    for _ in range(2):  # the second time nothing of the first is left
        for results in getattr(trainer, subject)(module, loaders_of(*parts), verbose=True):
            for number, part in enumerate(parts):
                for name, rectangle in (("tpauc", (0.6, 0.4)), ("auroc", (0.0, 1.0))):
                    found = torch.tensor(results[f"{prefix}/{name}/dataloader_idx_{number}"], dtype=torch.float64)
                    assert_close(found, area_of(module, part, *rectangle), "float32")
    (alone,) = getattr(trainer, subject)(module, loaders_of(slice(None)), verbose=False)
    assert set(alone) == {f"{prefix}/tpauc", f"{prefix}/auroc"}
    assert_close(
        torch.tensor(alone[f"{prefix}/tpauc"], dtype=torch.float64), area_of(module, slice(None), 0.6, 0.4), "float32"
    )


class Fail(Callback):
    """Breaks an evaluation off after its first batch."""

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        raise KeyError

    on_test_batch_end = on_validation_batch_end


@pytest.mark.parametrize("subject", ["validate", "test"])
def test_an_evaluation_that_is_broken_off_leaves_nothing_to_the_next(subject):
    module, loader = make_module(), loaders_of(slice(None))
    expected = getattr(make_trainer(precision="32-true"), subject)(module, loader, verbose=False)
    with pytest.raises(KeyError):
        getattr(make_trainer(precision="32-true", callbacks=[Fail()]), subject)(module, loader, verbose=False)
    assert getattr(make_trainer(precision="32-true"), subject)(module, loader, verbose=False) == expected


@pytest.mark.parametrize("sanity", [0, 2])
def test_checkpoints_can_follow_one_of_several_loaders(tmp_path, sanity):
    data = TwoValidations(make_problem(), val_dataset=make_problem(), num_pos=4, num_neg=10)
    saver = ModelCheckpoint(tmp_path, monitor="val/tpauc/dataloader_idx_1", mode="max")
    trainer = make_trainer(
        precision="32-true", callbacks=[saver], enable_checkpointing=True, num_sanity_val_steps=sanity
    )
    trainer.fit(module := make_module(), data)
    assert float(saver.best_model_score) == float(trainer.callback_metrics["val/tpauc/dataloader_idx_1"])
    assert_close(saver.best_model_score.double(), area_of(module, slice(1, None, 2), 0.6, 0.4), "float32")


def test_predictions_of_several_loaders():
    module = make_module()
    first, second = make_trainer(precision="32-true").predict(module, loaders_of(slice(0, 20), slice(20, 50)))
    scores = torch.cat([output["score"] for output in first + second])
    assert_close(scores, module.raw_scores(make_problem()[0][:50]).detach(), "float32")


def test_the_trained_rectangle_is_logged_by_its_name_as_well(tmp_path):
    saver = ModelCheckpoint(tmp_path, monitor="val/tpauc_tpr60_fpr40", mode="max")
    data = PosNegDataModule(make_problem(), val_dataset=make_problem(), num_pos=4, num_neg=10)
    trainer = make_trainer(precision="32-true", callbacks=[saver], enable_checkpointing=True)
    trainer.fit(make_module(rectangles=[(0.6, 0.4), (0.5, 0.5)]), data)
    logged = trainer.callback_metrics
    assert float(saver.best_model_score) == float(logged["val/tpauc_tpr60_fpr40"]) == float(logged["val/tpauc"])
    assert "val/tpauc_tpr50_fpr50" in logged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_labels_of_any_dtype(dtype, shape):
    x, y = make_problem()
    loader = DataLoader(TensorDataset(x, y.to(dtype).reshape(shape)), batch_size=16)
    module = make_module()
    (results,) = make_trainer(precision="32-true").test(module, loader, verbose=False)
    found = torch.tensor(results["test/tpauc"], dtype=torch.float64)
    assert_close(found, area_of(module, slice(None), 0.6, 0.4), "float32")


class DataBatch(SimpleNamespace):
    """Stands for a batch of PyG."""


X, Y = torch.zeros(2, DIM), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": X, "y": Y}, "batches (inputs, target) to validate and test on, but got a dict. Let the data set return"),
        (DataBatch(x=X, y=Y), "got a DataBatch. Let the data set return such pairs, or give it to PosNegDataModule"),
        (X, "got a Tensor. Let"),
        ([X], "got a list of Tensor. Let"),
        ((X, [0, 1]), "got a tuple of Tensor, list. Let"),
        (
            (X, torch.tensor([0.0, 0.25])),
            "labels 0 and 1 in the batches, but found 0.25. Pass, for instance, (y > 0.5)",
        ),
        ((X, torch.tensor([0.0, torch.nan])), "labels 0 and 1 in the batches, but found nan"),
    ],
)
def test_batches_of_another_kind(batch, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        inputs_and_target(batch)


def test_a_loader_of_mappings_is_refused_by_its_type():
    loader = DataLoader([{"x": x, "y": 1} for x in torch.zeros(4, DIM)], batch_size=2)
    with pytest.raises(ArgumentError, match="but got a dict"):
        make_trainer(precision="32-true").validate(make_module(), loader, verbose=False)
