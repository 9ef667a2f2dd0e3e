"""Cross-entropy against loops, and the exact objective on the whole training set, alone and through the Trainer."""

import pytest
import torch

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy, FullBatch
from lightning_tpauc.errors import UnsupportedError
from lightning_tpauc.functional import tpauc_objective
from tests.helpers.loop import Loop
from tests.helpers.problems import NUM_NEG, NUM_POS, LinearScore, make_data, make_trainer
from tests.helpers.tolerances import assert_close
from tests.reference import cross_entropy as reference

SETTINGS = [
    pytest.param({}, id="uniform"),
    pytest.param({"pos_weight": 3.0}, id="pos-weight"),
    pytest.param({"balanced": True}, id="balanced"),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_trajectory_is_that_of_loops(settings):
    loop = Loop(CrossEntropy(**settings), lr=0.3)
    w = loop.start
    for index, neg, dual in loop.batches:
        loss, w = reference.step(
            w, [loop.positives[i] for i in index], neg, 0.3, settings.get("pos_weight", 1.0), "balanced" in settings
        )
        assert_close(loop.step((index, neg, dual)), loss, "trajectory64")
        assert_close(loop.w.detach(), w, "trajectory64")


@pytest.mark.parametrize(("num_pos", "num_neg"), [(0, 5), (5, 0)])
def test_batch_without_a_class_follows_the_other(num_pos, num_neg):
    loop = Loop(CrossEntropy(), lr=0.3)
    index, neg, dual = loop.batches[0]
    index, neg = index[:num_pos], neg[:num_neg]
    loss, w = reference.step(loop.start, [loop.positives[i] for i in index], neg, 0.3, 1.0, False)
    assert_close(loop.step((index, neg, dual)), loss)
    assert_close(loop.w.detach(), w)


def test_empty_batch_gives_zero_and_zero_gradients():
    algorithm = CrossEntropy()
    algorithm.setup(3)
    pos, neg = torch.zeros(0, requires_grad=True), torch.zeros(0, requires_grad=True)
    loss = algorithm(pos, neg, index=torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert pos.grad.shape == neg.grad.shape == (0,)


pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*")

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=5, line_search_fn="strong_wolfe"),
}
STEPS = 8
#: Not 0, where all scores tie and the gradient depends on which of them count as the hardest.
START = torch.tensor([0.125, -0.25, 0.0625, -0.125], dtype=torch.float64)


def fit(optimizer, algorithm=None, **kwargs):
    pos, neg = make_data()
    target = torch.cat([torch.ones(NUM_POS), torch.zeros(NUM_NEG)]).long()
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    data = PosNegDataModule((torch.cat([pos, neg])[order], target[order]), num_pos=5, num_neg=5)
    backbone = LinearScore()
    backbone.weight.data.copy_(START)
    module = TPAUCModule(backbone, algorithm or FullBatch(0.6, 0.3, surrogate="squared_hinge", margin=0.5), optimizer)
    trainer = make_trainer(max_epochs=STEPS, **kwargs)
    trainer.fit(module, data)
    return module, trainer


def loop(optimizer):
    """The same in plain torch."""
    pos, neg = make_data()
    w = START.clone().requires_grad_()
    optimizer = optimizer([w])
    for _ in range(STEPS):

        def evaluate():
            optimizer.zero_grad()
            loss = tpauc_objective(pos @ w, neg @ w, 0.6, 0.3, "squared_hinge", 0.5)
            loss.backward()
            return loss

        optimizer.step(evaluate)
    return w.detach()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_fit_equals_a_plain_loop(name):
    module, trainer = fit(OPTIMIZERS[name])
    expected = loop(OPTIMIZERS[name])
    assert (expected - START).abs().max() > 0.05, "weights that stand still prove nothing"
    assert_close(module.backbone.weight.detach(), expected, "trajectory64")
    assert trainer.global_step == module.training_state.batches_seen == STEPS


@pytest.mark.ddp
@pytest.mark.parametrize("name", ["sgd", "lbfgs"])
def test_two_processes_equal_one(name):
    module, _ = fit(OPTIMIZERS[name], strategy="ddp_fork", devices=2)
    assert_close(module.backbone.weight.detach(), loop(OPTIMIZERS[name]), "trajectory64")


def test_lbfgs_needs_a_function_that_stays_the_same():
    with pytest.raises(UnsupportedError, match="LBFGS needs one loss for all steps: STACO draws batches"):
        fit(OPTIMIZERS["lbfgs"], STACO(dual_init="zeros"))


@pytest.mark.parametrize("rectangle", [(0.75, 0.75), (0.5, 0.5), (0.25, 0.75)])
def test_weights_that_are_zero_are_no_trap(rectangle):
    """There all scores are equal, and a gradient of any few of them may point uphill."""
    generator = torch.Generator().manual_seed(1)
    y = (torch.arange(400) % 8 == 0).double()
    x = torch.randn(400, 20, generator=generator, dtype=torch.float64) + 0.35 * y[:, None]
    reached = []
    for start in (0.0, 1e-3):
        weight = start * torch.randn(20, generator=generator, dtype=torch.float64)
        weight.requires_grad_()
        algorithm = FullBatch(*rectangle, surrogate="squared_hinge", margin=0.5)
        algorithm.setup(50)
        optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

        def loss(optimizer=optimizer, weight=weight, algorithm=algorithm):
            optimizer.zero_grad()
            scores = x @ weight
            value = algorithm(scores[y == 1], scores[y == 0], index=torch.arange(50))
            value.backward()
            return value

        optimizer.step(loss)
        reached.append(float(loss().detach()))
    assert reached[0] == pytest.approx(reached[1], rel=1e-2)
    assert reached[0] < 0.9 * 0.25  # the loss of equal scores is m^2
