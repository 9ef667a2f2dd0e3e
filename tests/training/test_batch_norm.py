"""Which batch-norm statistics go with averaged weights."""

import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import make_trainer
from tests.helpers.tolerances import assert_close
from tests.reference.averages import polynomial_mean

DIM = 4


class Statistics(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append((pl_module.backbone[1].running_mean.clone(), pl_module.backbone[1].running_var.clone()))


def train(frozen=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, DIM, generator=generator, dtype=torch.float64)
    data = PosNegDataModule((x, torch.arange(60) % 3 == 0), num_pos=4, num_neg=8)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1)).double()
    net[1].train(not frozen)
    module = TPAUCModule(net, STACO(), lambda p: torch.optim.SGD(p, lr=0.05), score_activation="sigmoid")
    statistics = Statistics()
    make_trainer(callbacks=[statistics, StageCallback()], max_epochs=2).fit(module, data)
    return net, statistics.seen


def test_they_are_averaged_as_weights_are():
    net, seen = train()
    assert_close(net[1].running_mean, polynomial_mean([mean for mean, _ in seen]))
    assert_close(net[1].running_var, polynomial_mean([var for _, var in seen]))


def test_a_layer_in_evaluation_mode_keeps_its_own():
    net, _ = train(frozen=True)
    assert not net[1].training
    assert torch.equal(net[1].running_mean, torch.zeros(3))
    assert torch.equal(net[1].running_var, torch.ones(3))
