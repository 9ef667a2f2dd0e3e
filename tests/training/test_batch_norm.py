"""Which batch-norm statistics go with averaged weights."""

import copy

import pytest
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


def train(choice, frozen=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, DIM, generator=generator, dtype=torch.float64)
    data = PosNegDataModule((x, torch.arange(60) % 3 == 0), num_pos=4, num_neg=8)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1)).double()
    net[1].train(not frozen)
    module = TPAUCModule(net, STACO(), lambda p: torch.optim.SGD(p, lr=0.05), score_activation="sigmoid")
    statistics = Statistics()
    make_trainer(callbacks=[statistics, StageCallback(batch_norm=choice)], max_epochs=2).fit(module, data)
    return net, data, statistics.seen


def test_average_takes_them_as_it_takes_weights():
    net, _, seen = train("average")
    assert_close(net[1].running_mean, polynomial_mean([mean for mean, _ in seen]))
    assert_close(net[1].running_var, polynomial_mean([var for _, var in seen]))


def test_keep_leaves_the_last_iterates():
    net, _, seen = train("keep")
    assert torch.equal(net[1].running_mean, seen[-1][0])
    assert torch.equal(net[1].running_var, seen[-1][1])


def test_recompute_averages_over_an_epoch_of_batches():
    net, data, seen = train("recompute")
    inner = copy.deepcopy(net[0])
    batches = [batch.inputs for batch in data.train_dataloader().whole_epoch()]
    assert len(batches) == len(seen) // 2
    with torch.no_grad():
        means = torch.stack([inner(b).mean(0) for b in batches]).mean(0)
        variances = torch.stack([inner(b).var(0) for b in batches]).mean(0)
    # which epoch is read is not promised; with all examples about as often, any is close
    assert (net[1].running_mean - means).abs().max() < 0.1 * variances.sqrt().min()
    assert not torch.equal(net[1].running_mean, seen[-1][0])
    assert net[1].momentum == 0.1, "the layer goes on as it was"


@pytest.mark.parametrize("choice", ["average", "keep", "recompute"])
def test_a_layer_in_evaluation_mode_keeps_its_own(choice):
    net, *_ = train(choice, frozen=True)
    assert not net[1].training
    assert torch.equal(net[1].running_mean, torch.zeros(3))
    assert torch.equal(net[1].running_var, torch.ones(3))
