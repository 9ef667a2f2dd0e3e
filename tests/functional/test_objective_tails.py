import math

import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import Surrogate, get_surrogate, tail_mean_loss
from lightning_tpauc.functional.objective import tail_risk
from tests.helpers.tolerances import assert_close
from tests.reference.objective import fractions_of, minimal_inner
from tests.reference.pairwise import LOSSES, loss_matrix

NAMES = sorted(LOSSES)
SHARES = [0.35, 0.5, 0.61, 1.0, 0.03, 0.001]


def draw(num_pos, num_neg, seed=0, ties=False):
    rng = torch.Generator().manual_seed(seed)
    pos = torch.randn(num_pos, generator=rng, dtype=torch.float64) + 0.5
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    return ((pos * 2).round() / 2, (neg * 2).round() / 2) if ties else (pos, neg)


def mean_of_largest(losses, theta):
    """The mean of the largest theta n losses; the last one counts in part."""
    left = total = float(theta) * len(losses)
    value = 0.0
    for loss in sorted(losses, reverse=True):
        value += min(1.0, left) * loss
        left -= min(1.0, left)
    return value / total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_fpr", SHARES)
@pytest.mark.parametrize(("num_pos", "num_neg"), [(12, 20), (7, 11), (1, 1), (5, 1), (1, 6)])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_the_mean_is_that_of_the_largest_losses(name, max_fpr, num_pos, num_neg, ties):
    pos, neg = draw(num_pos, num_neg, ties=ties)
    theta = fractions_of(0.0, max_fpr)[1]
    rows = loss_matrix(pos.tolist(), neg.tolist(), name, margin=0.4, scale=2.0)
    expected = math.fsum(mean_of_largest(row, theta) for row in rows) / num_pos
    found = tail_mean_loss(pos, neg, max_fpr, surrogate=name, margin=0.4, scale=2.0)
    assert_close(found, expected)
    assert_close(found, math.fsum(minimal_inner(row, theta) for row in rows) / num_pos)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_thresholds_are_losses_of_that_rank(name, offset):
    pos, neg = draw(30, 70, seed=1)
    pos, neg = pos + offset, neg + offset
    s, _ = tail_risk(pos, neg, 0.27, get_surrogate(name))
    rank = math.ceil(0.27 * 70)
    assert_close(s, [sorted(row)[-rank] for row in loss_matrix(pos.tolist(), neg.tolist(), name)])


def test_large_inputs_are_sorted_and_agree():
    pos, neg = draw(300, 2000, seed=2)
    for name in NAMES:
        losses = get_surrogate(name).value(neg - pos[:, None])
        expected = losses.sort(1, descending=True).values[:, :500].mean()  # 0.25 of 2000
        assert_close(tail_mean_loss(pos, neg, 0.25, surrogate=name), expected)


def test_any_other_loss_has_hardest_negatives_of_its_own():
    loss = Surrogate("bowl", lambda t: t.square() * t.square(), lambda t: 4 * t**3)
    pos, neg = draw(9, 14, seed=3)
    expected = [mean_of_largest(row, 0.3) for row in loss.value(neg - pos[:, None]).tolist()]
    assert_close(tail_mean_loss(pos, neg, 0.3, surrogate=loss), sum(expected) / 9)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_back_from_the_device(name):
    assert tail_mean_loss(torch.empty(5, device="meta"), torch.empty(700, device="meta"), surrogate=name).shape == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [(torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_dtype_and_graph(given, expected):
    found = tail_mean_loss(torch.zeros(3, dtype=given, requires_grad=True), torch.zeros(2, dtype=given))
    assert found.dtype == expected
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((torch.zeros(0), torch.zeros(2)), "`pos_scores` to hold at least one score"),
        ((torch.zeros(2), torch.zeros(0)), "`neg_scores` to hold at least one score"),
        ((torch.zeros(2), torch.zeros(2), 0.0), "`max_fpr`"),
        ((torch.zeros(2), torch.zeros(2), 0.5, "cubic"), "`surrogate`"),
    ],
)
def test_bad_arguments_are_refused(args, match):
    with pytest.raises(ArgumentError, match=match):
        tail_mean_loss(*args)
