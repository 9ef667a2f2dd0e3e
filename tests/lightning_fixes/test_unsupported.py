"""Callbacks that would give wrong results are refused before training starts, with a remedy that works."""

import pytest
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    ModelCheckpoint,
    ModelPruning,
)
from torch import nn

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.errors import ArgumentError
from tests.helpers.problems import DIM, NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")


def staco(**kwargs):
    return STACO(dual_init="zeros", stage_restart="ones", **kwargs)


def make_module(algorithm=None, backbone=None, **kwargs):
    return TPAUCModule(backbone or LinearScore(), algorithm or staco(), num_positives=NUM_POS, **kwargs)


def fit(module, *callbacks, steps=2, **kwargs):
    batches, _ = make_batches(steps)
    trainer = make_trainer(callbacks=list(callbacks), **kwargs)
    trainer.fit(module, loader(batches), eval_loader())
    return trainer


class Unfreeze(BaseFinetuning):
    """Freezes the second layer, until the second epoch."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone[1])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone[1], optimizer, lr=0.1)


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 3), nn.Linear(3, 1))


# ---------------------------------------------------------------- weights that others change


def test_finetuning_and_pruning_work_where_nothing_is_averaged():
    module = make_module(CrossEntropy(average=False), two_layers())
    before = module.backbone[1].weight.detach().clone()
    fit(module, Unfreeze(), max_epochs=1)
    assert torch.equal(module.backbone[1].weight.double(), before.double())
    fit(module := make_module(CrossEntropy(average=False), two_layers()), Unfreeze(), max_epochs=2)
    assert not torch.equal(module.backbone[1].weight.double(), before.double())
    fit(module := make_module(CrossEntropy(average=False), two_layers()), ModelPruning("l1_unstructured", amount=0.5))
    assert float((module.backbone[0].weight == 0).double().mean()) >= 0.5


# ---------------------------------------------------------------- the best of an area


@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, "min") for name in ("val/tpauc", "val/tpauc_tpr60_fpr50", "val/tpauc/dataloader_idx_0")),
        *((name, "max") for name in ("val/fpr_at_min_tpr", "val/objective")),
    ],
)
def test_the_worst_is_not_taken_for_the_best(tmp_path, kind, name, mode):
    callback = kind(monitor=name, mode=mode, **({"dirpath": tmp_path} if kind is ModelCheckpoint else {}))
    worst, better = {"min": ("smallest", "max"), "max": ("largest", "min")}[mode]
    words = rf"{kind.__name__}\(monitor='{name}'\) .* the {worst} value for the best; pass `mode='{better}'`"
    with pytest.raises(ArgumentError, match=words):
        fit(make_module(), callback, enable_checkpointing=True)
    # nothing is chosen where nothing is trained
    make_trainer(callbacks=[callback], enable_checkpointing=True).test(make_module(), eval_loader(), verbose=False)
