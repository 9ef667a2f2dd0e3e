"""A shift of all scores changes no pair: its gradient is exactly 0, so that no optimizer moves the last bias."""

from functools import partial

import pytest
import torch
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import SONX, SOTA, STACO, SOTAs
from tests.helpers.problems import bare_trainer, noisy_labels
from tests.helpers.ranks import fit as fit_ranks
from tests.helpers.tolerances import assert_close

METHODS = {
    "STACO": lambda: STACO(),
    "two batches": lambda: STACO(share_negatives=False),
    "STACO2": lambda: STACO(gamma=300.0),
    "squared hinge": lambda: STACO(surrogate="squared_hinge"),
    "logistic": lambda: STACO(surrogate="logistic"),
    "tracked": lambda: STACO(duals="tracked"),
    "SONX": lambda: SONX(gamma=0.0),
    "SOTA": lambda: SOTA(),
    "SOTAs": lambda: SOTAs(),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sizes", [(64, 192), (32, 32), (64, 1024)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_sum_up_to_nothing_in_any_order(name, sizes, dtype):
    generator = torch.Generator().manual_seed(0)
    algorithm = METHODS[name]()
    algorithm.setup(sizes[0], dtype=dtype)
    for _ in range(5):
        pos, neg, dual = (
            torch.randn(n, generator=generator, dtype=dtype, requires_grad=True) for n in (*sizes, sizes[1])
        )
        (algorithm(pos, neg, dual.detach(), torch.arange(sizes[0])) * 1.7).backward()
        joint = torch.cat([pos.grad, neg.grad])
        assert joint.abs().sum() > 0.1
        for _ in range(3):
            order = torch.randperm(len(joint), generator=generator)
            assert float(joint[order].sum()) == 0.0
            assert float(joint[order].cumsum(0)[-1]) == 0.0


@pytest.mark.parametrize("gamma", [float("inf"), 300.0])
def test_adam_does_not_move_the_last_bias(gamma):
    x, y = noisy_labels(900, 6, 0.5)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    before = [p.detach().clone() for p in net.parameters()]
    module = TPAUCModule(net, STACO(gamma=gamma), lambda p: torch.optim.Adam(p, lr=0.01))
    bare_trainer(max_steps=100, max_epochs=-1).fit(module, PosNegDataModule((x, y)))
    moved = [not torch.equal(p.detach(), old) for p, old in zip(net.parameters(), before, strict=True)]
    assert moved == [True, True, True, False]


@pytest.mark.ddp
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_the_last_bias_is_the_same_in_two_processes(tmp_path, precision, monkeypatch):
    """Where the weights are pulled to an anchor, Adam makes full steps of the smallest difference."""
    monkeypatch.setattr("tests.helpers.ranks.partial", lambda *_, **__: partial(torch.optim.Adam, lr=0.01))
    options = {"precision": precision, "max_steps": 60, "stage": 6, "algorithm": STACO(gamma=20.0)}
    (single,) = fit_ranks(tmp_path, 1, **options)
    for other in fit_ranks(tmp_path, 2, **options):
        assert torch.equal(other["weights"]["backbone.bias"], single["weights"]["backbone.bias"])
        assert_close(other["weights"]["backbone.weight"], single["weights"]["backbone.weight"], "float32")
