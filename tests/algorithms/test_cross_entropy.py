import math

import pytest
import torch

from lightning_tpauc.algorithms.baselines import CrossEntropy
from lightning_tpauc.errors import ArgumentError
from tests.helpers.loop import Loop, random_scores
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


@pytest.mark.parametrize("pos_weight", [1.0, 2.5])
def test_equals_torch(pos_weight):
    pos, neg = random_scores()
    algorithm = CrossEntropy(pos_weight=pos_weight)
    algorithm.setup(6)
    loss = algorithm(pos, neg, index=torch.arange(6))
    target = torch.cat([torch.ones(6), torch.zeros(8)]).double()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.cat([pos, neg]), target, pos_weight=torch.tensor(pos_weight)
    )
    assert_close(loss.detach(), expected.detach())


def test_balanced_does_not_depend_on_the_share_of_negatives():
    algorithm = CrossEntropy(balanced=True)
    algorithm.setup(6)
    pos, neg = random_scores()
    loss = algorithm(pos, neg, index=torch.arange(6))
    assert_close(algorithm(pos, neg.repeat(9), index=torch.arange(6)).detach(), loss.detach())


def test_large_logits_neither_overflow_nor_saturate():
    algorithm = CrossEntropy()
    algorithm.setup(1)
    pos = torch.tensor([-1e4], requires_grad=True)
    loss = algorithm(pos, torch.tensor([1e4]), index=torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert pos.grad.item() == -0.5


def test_half_precision_scores_are_summed_in_single():
    algorithm = CrossEntropy()
    algorithm.setup(1)
    neg = torch.zeros(4096, dtype=torch.bfloat16)
    loss = algorithm(neg[:0], neg, index=torch.zeros(0, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(2.0))


def test_sampling_and_capabilities():
    assert CrossEntropy().sampling == "uniform"
    assert CrossEntropy(balanced=True).sampling == "pos_neg"
    assert CrossEntropy().takes_logits
    assert not CrossEntropy().has_stages
    assert not CrossEntropy().averages_iterates


@pytest.mark.parametrize("pos_weight", [0.0, -1.0, math.nan, "2"])
def test_bad_pos_weight(pos_weight):
    with pytest.raises(ArgumentError, match=r"Expected `pos_weight` to be a number in \(0, inf\), but got"):
        CrossEntropy(pos_weight=pos_weight)


def test_balanced_batches_hold_both_classes():
    algorithm = CrossEntropy(balanced=True)
    algorithm.setup(3)
    with pytest.raises(
        ArgumentError, match="CrossEntropy needs positives and negatives in every batch, but got 0 and 2"
    ):
        algorithm(torch.zeros(0), torch.zeros(2), index=torch.zeros(0, dtype=torch.int64))
