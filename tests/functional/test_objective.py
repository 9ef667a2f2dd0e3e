"""The objective against sorted lists, and the tail means that it consists of."""

import itertools
import math

import pytest
import torch

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional import Surrogate, get_surrogate, surrogate_names, tail_mean_loss, tpauc_objective
from tests.helpers.tolerances import assert_close
from tests.reference.objective import cvar_objective, fractions_of, minimal_inner, objective_loops
from tests.reference.pairwise import LOSSES, loss_matrix

NAMES = sorted(LOSSES)
RECTANGLES = [(0.5, 0.5), (0.25, 0.75), (0.0, 1.0), (0.9, 0.1), (0.63, 0.37)]


def draw(num_pos, num_neg, seed=0, ties=False):
    rng = torch.Generator().manual_seed(seed)
    pos = torch.randn(num_pos, generator=rng, dtype=torch.float64) + 0.5
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    return ((pos * 3).round() / 3, (neg * 3).round() / 3) if ties else (pos, neg)


def test_every_named_surrogate_has_a_reference():
    assert set(NAMES) <= set(surrogate_names())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("min_tpr", "max_fpr"), RECTANGLES)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("num_pos", "num_neg"), [(10, 20), (13, 31)])
def test_value_matches_sorted_lists(name, min_tpr, max_fpr, ties, num_pos, num_neg):
    pos, neg = draw(num_pos, num_neg, ties=ties)
    actual = tpauc_objective(pos, neg, min_tpr, max_fpr, surrogate=name, margin=0.7, scale=1.3)
    expected = objective_loops(pos.tolist(), neg.tolist(), min_tpr, max_fpr, name, margin=0.7, scale=1.3)
    assert actual.shape == ()
    assert_close(actual, expected)


@pytest.mark.parametrize("name", [name for name in NAMES if get_surrogate(name).monotone])
@pytest.mark.parametrize("ties", [False, True])
def test_whole_counts_give_the_cvar_form(name, ties):
    pos, neg = draw(12, 20, ties=ties)
    expected = cvar_objective(pos.tolist(), neg.tolist(), 0.25, 0.35, name)
    assert_close(tpauc_objective(pos, neg, 0.25, 0.35, name, 0.5), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("num_pos", "num_neg"), [(12, 15), (300, 400)])
def test_gradient_matches_autograd_of_the_selected_block(name, num_pos, num_neg):
    pos, neg = (x.requires_grad_() for x in draw(num_pos, num_neg))
    loss = get_surrogate(name, margin=0.5)
    lowest, highest = pos.sort().values[: num_pos // 2], neg.sort().values[num_neg - (2 * num_neg) // 5 :]
    expected = torch.autograd.grad(loss.value(highest - lowest[:, None]).mean(), (pos, neg))
    actual = torch.autograd.grad(tpauc_objective(pos, neg, 0.5, 0.4, loss), (pos, neg))
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])


def test_a_surrogate_of_ones_own():
    cube = Surrogate("cube", lambda t: (t + 1.0).relu() ** 3, lambda t: 3.0 * (t + 1.0).relu() ** 2, monotone=True)
    pos, neg = torch.tensor([0.0, 5.0]), torch.tensor([1.0, -9.0])
    assert tpauc_objective(pos, neg, surrogate=cube).item() == 8.0


def test_the_number_it_asks_for_is_enough_and_least():
    for theta in (0.1, 0.3, 0.07, 0.0003, 0.9):
        with pytest.raises(ArgumentError) as caught:
            tpauc_objective(torch.zeros(4), torch.zeros(0 + 1), 0.0, theta)
        needed = int(str(caught.value).split("at least ")[1].split()[0])
        tpauc_objective(torch.zeros(4), torch.zeros(needed), 0.0, theta)
        with pytest.raises(ArgumentError):
            tpauc_objective(torch.zeros(4), torch.zeros(needed - 1), 0.0, theta)


@pytest.mark.slow
@pytest.mark.parametrize("num_pos", [1, 4, 7])
def test_ties_at_the_border_share_the_gradient(num_pos):
    """It is the mean over all choices among them, of which ``topk`` makes one."""
    pos = torch.tensor([0.2, 0.7, 0.2, 0.2, -0.3, 0.9, 0.2], dtype=torch.float64, requires_grad=True)
    neg = torch.tensor([0.5, -1.0], dtype=torch.float64)
    tpauc_objective(pos, neg, 1 - num_pos / 7, 0.5, "squared_hinge", 0.5).backward()
    gradients = []
    for order in itertools.permutations(range(7)):
        scores = pos.detach()[list(order)].requires_grad_()
        lowest = sorted(range(7), key=lambda k: float(scores[k]))[:num_pos]  # stable: the first of those tied
        loss = (0.5 + neg.max() - scores[lowest]).clamp_min(0).square().mean()
        (gradient,) = torch.autograd.grad(loss, scores)
        gradients.append(gradient[[order.index(k) for k in range(7)]])
    assert_close(pos.grad, torch.stack(gradients).mean(0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("of", ["pos", "neg"])
def test_scores_without_a_finite_objective(bad, of):
    scores = {"pos": torch.tensor([0.0, 1.0, 2.0, 3.0]), "neg": torch.tensor([0.0, 1.0, 2.0, 1.0])}
    scores[of][1] = bad
    value = float(tpauc_objective(scores["pos"], scores["neg"], 0.5, 0.5))
    harmless = bad == math.inf if of == "pos" else bad == -math.inf  # the easiest of its class, which is not selected
    assert math.isfinite(value) == harmless


# ---------------------------------------------------------------- tails


def mean_of_largest(losses, theta):
    """The mean of the largest theta n losses; the last one counts in part."""
    left = total = float(theta) * len(losses)
    value = 0.0
    for loss in sorted(losses, reverse=True):
        value += min(1.0, left) * loss
        left -= min(1.0, left)
    return value / total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_fpr", [0.35, 0.5, 0.61, 1.0, 0.03, 0.001])
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


def test_tails_of_large_inputs_are_sorted_and_agree():
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
