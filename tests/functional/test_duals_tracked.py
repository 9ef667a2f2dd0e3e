"""Duals from two border scores against the exact solution, which ranks the risks of all positives."""

import pytest
import torch

from lightning_tpauc.functional import Surrogate, exact_duals, get_surrogate
from lightning_tpauc.functional.duals import (
    activate_ties,
    border_scores,
    border_step,
    border_thresholds,
    border_weights,
)
from tests.helpers.tolerances import assert_close

MONOTONE = ["squared_hinge", "hinge", "logistic", "ramp", "smooth_ramp"]
# the first gives whole counts with 12 x 20, the others fractional ones
RECTANGLES = [(0.25, 0.35), (0.5, 0.5), (0.37, 0.61), (0.0, 1.0), (0.95, 0.03), (0.9, 0.001)]


def draw(num_pos, num_neg, ties=False):
    rng = torch.Generator().manual_seed(3)
    pos = torch.randn(num_pos, generator=rng, dtype=torch.float64) + 0.5
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    return ((pos * 2).round() / 2, (neg * 2).round() / 2) if ties else (pos, neg)


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("rectangle", RECTANGLES)
@pytest.mark.parametrize("sizes", [(12, 20), (7, 11), (1, 1), (5, 1), (1, 6)])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_borders_of_all_scores_give_the_exact_duals(name, rectangle, sizes, ties):
    pos, neg = draw(*sizes, ties=ties)
    loss = get_surrogate(name)
    p, c = border_scores(pos, neg, *rectangle)
    s, y, s_prime = exact_duals(pos, neg, *rectangle, surrogate=loss)
    assert_close(border_thresholds(pos, c, loss), activate_ties(s, pos, loss))
    ours = border_weights(pos, p, 1.0 - rectangle[0])
    assert_close(ours.mean(), 1.0 - rectangle[0])
    # Where a surrogate is flat, positives of different scores have the same risk, and any share of these is optimal.
    excess = (loss.value(neg[None] - pos[:, None]) - s[:, None]).clamp_min(0).mean(1)
    risk = s + excess / rectangle[1]
    apart = (risk - s_prime).abs() > 1e-9
    assert_close(ours[apart], y[apart])
    assert_close((ours * risk).mean(), (y * risk).mean())


def test_where_no_two_risks_are_equal_the_dual_weights_are_the_exact_ones():
    pos, neg = draw(13, 20)
    p, _ = border_scores(pos, neg, 0.63, 0.3)
    assert_close(border_weights(pos, p, 0.37), exact_duals(pos, neg, 0.63, 0.3, surrogate="logistic").y)


@pytest.mark.parametrize("score", [0.0, 0.7, -31.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MONOTONE)
def test_all_pairs_of_equal_scores_count_alike(name, dtype, score):
    pos, neg, loss = torch.full((5,), score, dtype=dtype), torch.full((8,), score, dtype=dtype), get_surrogate(name)
    p, c = border_scores(pos, neg, 0.7, 0.2)
    assert bool((loss.value(neg[0] - pos) > border_thresholds(pos, c, loss)).all())
    assert_close(border_weights(pos, p, 0.3), torch.full((5,), 0.3), "float32")


def test_a_mean_of_borders_is_the_batch_s_own_at_first():
    border, steps = torch.zeros(()), torch.zeros((), dtype=torch.int32)
    seen = []
    for batch in (3.0, 1.0, -1.0):
        border = border_step(border, torch.tensor(batch, dtype=torch.float64), steps)
        steps = steps + 1
        seen.append(border.item())
    assert border.dtype == torch.float32
    assert_close(seen, [3.0, 2.8, 2.42], "float32")


def test_half_precision_scores_are_compared_in_single():
    pos = torch.tensor([1.0, 1.0078125, 2.0], dtype=torch.bfloat16)  # neighbours in bfloat16
    weights = border_weights(pos, torch.tensor(1.004), theta0=0.3)
    assert weights.dtype == torch.float32
    assert weights.tolist() == [1.0, 0.0, 0.0]
    assert border_thresholds(pos, torch.tensor(1.004), get_surrogate("hinge")).dtype == torch.float32


def test_a_surrogate_without_an_inverse_is_enough():
    loss = Surrogate("own", torch.exp, torch.exp, monotone=True)
    assert_close(border_thresholds(torch.zeros(2), torch.ones(()), loss), torch.full((2,), 2.7182817), "float32")
