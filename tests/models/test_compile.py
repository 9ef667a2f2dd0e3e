"""A compiled backbone trains like the plain one: the module sees scores only."""

import copy

import pytest
import torch

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import MLP
from tests.helpers.problems import DIM, NUM_POS, eval_loader, loader, make_batches, make_trainer
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")


def fit(backbone):
    batches, _ = make_batches(6)
    algorithm = STACO(dual_init="zeros", stage_restart="ones", gamma=5.0)
    module = TPAUCModule(backbone, algorithm, lambda p: torch.optim.SGD(p, lr=0.1), num_positives=NUM_POS)
    trainer = make_trainer()
    trainer.fit(module, loader(batches), eval_loader())
    return [p.detach().clone() for p in module.parameters()], trainer.callback_metrics["val/tpauc"]


@pytest.mark.slow
def test_a_compiled_backbone_trains_alike():
    torch.manual_seed(0)
    plain = MLP(DIM, (8,)).double()
    # aot_eager traces forward and backward as the default backend does, without a C++ compiler.
    compiled = torch.compile(copy.deepcopy(plain), backend="aot_eager")
    before = [p.detach().clone() for p in plain.parameters()]
    (expected, value), (actual, compiled_value) = fit(plain), fit(compiled)
    assert any(not torch.equal(a, b) for a, b in zip(before, expected, strict=True)), "weights must have moved"
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, "trajectory64")
    assert_close(compiled_value, value)
