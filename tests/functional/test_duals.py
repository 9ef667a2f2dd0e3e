"""Dual variables: the exact ones against a search over all breakpoints, and those from two scores on the borders."""

import math
from itertools import pairwise

import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import Surrogate, duals, exact_duals, get_surrogate, pairwise_terms
from lightning_tpauc.functional.duals import border_scores, border_thresholds, border_weights
from tests.helpers.tolerances import assert_close
from tests.reference.objective import cvar_objective, fractions_of, inner, min_max_value, minimal_inner, outer
from tests.reference.pairwise import loss_matrix

MONOTONE = ["squared_hinge", "hinge", "logistic", "ramp", "smooth_ramp"]
# The first rectangle gives whole counts with 12 x 20, the others fractional ones.
RECTANGLES = [(0.25, 0.35), (0.5, 0.5), (0.37, 0.61), (0.0, 1.0), (0.95, 0.03), (0.9, 0.001)]


def draw(num_pos, num_neg, seed=0, ties=False):
    rng = torch.Generator().manual_seed(seed)
    pos = torch.randn(num_pos, generator=rng, dtype=torch.float64) + 0.5
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    return ((pos * 2).round() / 2, (neg * 2).round() / 2) if ties else (pos, neg)


cases = pytest.mark.parametrize("name", MONOTONE)
rectangles = pytest.mark.parametrize(("min_tpr", "max_fpr"), RECTANGLES)
sizes = pytest.mark.parametrize(("num_pos", "num_neg"), [(12, 20), (7, 11), (5, 1), (1, 6)])
MARGIN = {"margin": 0.5}
tied = pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])


@cases
@rectangles
@sizes
@tied
def test_each_level_is_minimised_and_the_saddle_value_is_the_cvar_objective(
    name, min_tpr, max_fpr, num_pos, num_neg, ties
):
    pos, neg = draw(num_pos, num_neg, ties=ties)
    duals = exact_duals(pos, neg, min_tpr, max_fpr, surrogate=name, scale=2.0, **MARGIN)
    theta0, theta1 = fractions_of(min_tpr, max_fpr)
    rows = loss_matrix(pos.tolist(), neg.tolist(), name, scale=2.0)
    g = [inner(row, s, theta1) for row, s in zip(rows, duals.s.tolist(), strict=True)]
    assert_close(g, [minimal_inner(row, theta1) for row in rows])
    assert_close(outer(g, duals.s_prime.item(), theta0), min(outer(g, s_prime, theta0) for s_prime in g))
    solution, rectangle = [x.tolist() for x in duals], (min_tpr, max_fpr, name)
    value = min_max_value(pos.tolist(), neg.tolist(), *solution, *rectangle, scale=2.0)
    assert_close(value, cvar_objective(pos.tolist(), neg.tolist(), *rectangle, scale=2.0))
    assert torch.all((duals.y >= 0) & (duals.y <= 1))
    assert_close(duals.y.mean(), float(theta0))
    order = pos.argsort()  # lower scores never weigh less, equal scores weigh the same
    for (low, y_low), (high, y_high) in pairwise(zip(pos[order].tolist(), duals.y[order].tolist(), strict=True)):
        assert y_low == y_high or (low < high and y_low > y_high)


@cases
def test_equal_scores_tie_at_any_size(name):
    # 1,001 equal positives: vector and remainder loops must not break the tie.
    duals = exact_duals(torch.full((1001,), 0.1), draw(1, 333)[1].float(), 0.3, 0.45, surrogate=name)
    assert torch.equal(duals.y, torch.full((1001,), 0.7))
    assert duals.s.unique().numel() == 1


def test_no_number_is_read_back_from_the_device():
    solved = exact_duals(torch.empty(5, device="meta"), torch.empty(700, device="meta"))
    assert solved.y.shape == (5,)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_scores_that_are_not_finite(monkeypatch, broken, which):
    scores = draw(5, 6)
    scores[which][2] = broken
    name = ("pos_scores", "neg_scores")[which]
    with pytest.raises(ArgumentError, match=rf"`{name}` to be finite, but 1 of {5 + which} are nan or infinite"):
        exact_duals(*scores)
    monkeypatch.setattr(duals, "check_finite", lambda *_: None)  # as on an accelerator, where nobody looks
    for part in exact_duals(*scores):
        assert part.isnan().all()


def test_square_is_refused_with_a_remedy():
    with pytest.raises(ArgumentError, match=r"non-decreasing surrogate, but 'square'.*dual_init='zeros'"):
        exact_duals(torch.zeros(3), torch.zeros(3), surrogate="square")


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_does_not_decide_which_pairs_are_active_at_exact_thresholds(name, dtype):
    """Scores of the same model in batches of another size differ in the last digits."""
    generator = torch.Generator().manual_seed(0)
    pos = 2.0 * torch.randn(50, generator=generator, dtype=dtype)
    neg = 2.0 * torch.randn(80, generator=generator, dtype=dtype)
    loss = get_surrogate(name, margin=0.5)
    s = exact_duals(pos, neg, 0.5, 0.25, surrogate=loss).s
    lowered = border_thresholds(pos, border_scores(pos, neg, 0.5, 0.25)[1], loss)
    assert_close(lowered, s, "float32" if dtype == torch.float64 else "half")
    # The 20th highest of 80 negatives is at the threshold of every positive that it costs anything. Where a ramp is at
    # its maximum there, all losses of 1 equal the threshold; where it is nearly flat, others equal it up to rounding.
    losses = loss.value(neg.double() - pos.double()[:, None])
    near = s - 3.0 * (s - lowered)
    clear = (s > 0) & ~((losses < s[:, None]) & (losses > near[:, None]) & (losses < 1.0)).any(1)
    assert int(clear.sum()) > 20
    expected = torch.where(s == 1, (losses == 1.0).double().mean(1).clamp_min(20 / 80), 20 / 80).to(dtype)[clear]
    assert torch.equal(pairwise_terms(pos, neg, lowered, surrogate=loss).active[clear], expected)
    for _ in range(20):
        noise = [1.0 + torch.finfo(dtype).eps * torch.randn(n, generator=generator, dtype=dtype) for n in (50, 80)]
        active = pairwise_terms(pos * noise[0], neg * noise[1], lowered, surrogate=loss).active
        assert torch.equal(active[clear], expected)


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("height", "margin"), [(0.0, 0.5), (3.0, 0.1), (200.0, 0.05)])
def test_equal_scores_are_active_in_spite_of_rounding(name, dtype, height, margin):
    """At the maximum of a ramp as well, where no threshold but a lower one has an active pair."""
    loss = get_surrogate(name, margin=margin)
    pos, neg = torch.full((20,), height, dtype=dtype), torch.full((30,), height, dtype=dtype)
    s = border_thresholds(pos, border_scores(pos, neg, 0.5, 0.25)[1], loss)
    generator = torch.Generator().manual_seed(0)
    for spread in (0.0, 1.0, 2.0):
        noise = [
            1.0 + spread * torch.finfo(dtype).eps * torch.randn(n, generator=generator, dtype=dtype) for n in (20, 30)
        ]
        terms = pairwise_terms(pos * noise[0], neg * noise[1], s, surrogate=loss)
        assert torch.equal(terms.active, torch.ones_like(pos))
        if spread == 0.0:
            assert torch.all(terms.pos_grad < 0)


@cases
@rectangles
@tied
def test_whole_weights_stand_for_so_many_copies(name, min_tpr, max_fpr, ties):
    pos, neg = draw(9, 14, seed=4, ties=ties)
    weight = torch.tensor([3, 1, 2, 1, 4, 1, 1, 5, 2])
    copies = torch.arange(9).repeat_interleave(weight)
    expected = exact_duals(pos[copies], neg, min_tpr, max_fpr, surrogate=name, **MARGIN)
    for scale in (1.0, 0.1):  # only ratios matter
        pos_weight = scale * weight.double()
        found = exact_duals(pos, neg, min_tpr, max_fpr, surrogate=name, pos_weight=pos_weight, **MARGIN)
        assert_close(found.s[copies], expected.s)
        assert_close(found.s_prime, expected.s_prime)
        assert_close(found.y[copies], expected.y)


# ---------------------------------------------------------------- two scores on the borders


@pytest.mark.parametrize("name", MONOTONE)
@pytest.mark.parametrize("rectangle", RECTANGLES)
@pytest.mark.parametrize("sizes", [(12, 20), (7, 11), (5, 1), (1, 6)])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_borders_of_all_scores_give_the_exact_duals(name, rectangle, sizes, ties):
    pos, neg = draw(*sizes, seed=3, ties=ties)
    loss = get_surrogate(name, margin=0.5)
    p, c = border_scores(pos, neg, 1.0 - rectangle[0], rectangle[1])
    s, y, s_prime = exact_duals(pos, neg, *rectangle, surrogate=loss)
    assert_close(border_thresholds(pos, c, loss), s)
    ours = border_weights(pos, p, 1.0 - rectangle[0])
    assert_close(ours.mean(), 1.0 - rectangle[0])
    # Where a surrogate is flat, positives of different scores have the same risk, and any share of these is optimal.
    excess = (loss.value(neg[None] - pos[:, None]) - s[:, None]).clamp_min(0).mean(1)
    risk = s + excess / rectangle[1]
    apart = (risk - s_prime).abs() > 1e-9
    assert_close(ours[apart], y[apart])
    assert_close((ours * risk).mean(), (y * risk).mean())


def test_a_surrogate_without_an_inverse_is_enough():
    loss = Surrogate("own", torch.exp, torch.exp, monotone=True)
    found = border_thresholds(torch.zeros(2), torch.ones((), dtype=torch.float64), loss)
    assert_close(found, torch.full((2,), math.e, dtype=torch.float64))
