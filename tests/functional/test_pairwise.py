"""Sums over pairs against double loops, for every surrogate and by every way of evaluating them."""

import math

import pytest
import torch

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional import Surrogate, evaluate_pairs, get_surrogate, pairwise, pairwise_terms
from tests.helpers.tolerances import assert_close
from tests.reference.pairwise import LOSSES, pairwise_loops

SORTABLE = ["squared_hinge", "hinge", "square", "ramp", "smooth_ramp"]
BOUNDED = {"ramp", "smooth_ramp"}
PAIRS = [
    (name, method) for name in sorted(LOSSES) for method in ("dense", "sorted") if name in SORTABLE or method == "dense"
]
PAIRS += [(name, "auto") for name in sorted(LOSSES)]
FIELDS = ("excess", "active", "pos_grad", "neg_grad")
each_way = pytest.mark.parametrize(("name", "method"), PAIRS)


def draw(num_pos, num_neg, seed=0, dtype=torch.float64, low=0.0):
    """Scores, thresholds in [low, 1] and weights in [0, 1]."""
    rng = torch.Generator().manual_seed(seed)
    pos = torch.randn(num_pos, generator=rng, dtype=torch.float64) + 0.5
    neg = torch.randn(num_neg, generator=rng, dtype=torch.float64)
    s = low + (1 - low) * torch.rand(num_pos, generator=rng, dtype=torch.float64)
    y = torch.rand(num_pos, generator=rng, dtype=torch.float64)
    return tuple(x.to(dtype) for x in (pos, neg, s, y))


def draw_ties(num_pos, num_neg, seed=0):
    """Scores on a coarse grid, and thresholds between its losses, so that no pair sits on a threshold."""
    rng = torch.Generator().manual_seed(seed)
    pos = torch.randint(-4, 5, (num_pos,), generator=rng).double() / 4
    neg = torch.randint(-4, 5, (num_neg,), generator=rng).double() / 4
    s = torch.randint(-1, 4, (num_pos,), generator=rng).double() / 4 + 0.01
    return pos, neg, s, torch.randint(0, 3, (num_pos,), generator=rng).double() / 2


def terms_of(args, name, method="auto", **options):
    return pairwise_terms(*args, surrogate=name, method=method, **{"margin": 0.5, **options})


def weighted_sum(pos, neg, s, y, name="squared_hinge", method="auto"):
    return evaluate_pairs(pos, neg, s, surrogate=name, margin=0.5, method=method).weighted_sum(y)


def assert_equal_to_loops(terms, args, name, kind="float64", **options):
    expected = pairwise_loops(*(x.double().tolist() for x in args), name, **options)
    for field, values in zip(FIELDS, expected, strict=True):
        assert_close(getattr(terms, field), values, kind)


# ---------------------------------------------------------------- values


@each_way
@pytest.mark.parametrize(("num_pos", "num_neg"), [(1, 1), (1, 9), (8, 1), (7, 23), (40, 31)])
@pytest.mark.parametrize("low", [0.0, -1.0], ids=["thresholds>=0", "some_thresholds<0"])
def test_terms_match_double_loops(name, method, num_pos, num_neg, low):
    args = draw(num_pos, num_neg, low=low)
    assert_equal_to_loops(terms_of(args, name, method, margin=0.6, scale=1.7), args, name, margin=0.6, scale=1.7)
    args = draw_ties(num_pos, num_neg, seed=num_pos)
    assert_equal_to_loops(terms_of(args, name, method), args, name)


@each_way
def test_constant_scores(name, method):
    args = torch.full((4,), 0.3), torch.full((6,), 0.3), torch.tensor([-0.2, 0.0, 0.1, 9.0]), torch.ones(4)
    assert_equal_to_loops(terms_of(args, name, method), args, name, "float32")
    assert_equal_to_loops(terms_of(args[:3], name, method), args, name, "float32")  # weights default to ones


@pytest.mark.parametrize("method", ["dense", "sorted"])
@pytest.mark.parametrize("name", SORTABLE)
@pytest.mark.parametrize("margin", [0.25, 0.5, 2.0])
def test_ties_and_thresholds_at_and_around_all_kinks(name, method, margin):
    """All numbers are exact in binary, 32 negatives and their mean included, so that no rounding decides."""
    rng = torch.Generator().manual_seed(5)
    neg = torch.randint(-16, 17, (32,), generator=rng).double() / 8
    kinks = [LOSSES[name](t, margin, 1.0)[0] for t in (-margin, -margin / 2, 0.0, margin / 2, margin)]
    thresholds = [-0.5, *kinks, *(k + 2.0**-10 for k in kinks), max(kinks) + 0.5, 100.0]
    pos, s = (x.reshape(-1) for x in torch.meshgrid(torch.arange(-16, 17) / 8, torch.tensor(thresholds), indexing="ij"))
    args = pos.double(), neg, s.double(), torch.rand(pos.shape, generator=rng, dtype=torch.float64)
    assert_equal_to_loops(terms_of(args, name, method, margin=margin), args, name, margin=margin)


@pytest.mark.parametrize("method", ["dense", "sorted"])
@pytest.mark.parametrize("name", sorted(BOUNDED))
@pytest.mark.parametrize("far", [1e4, 1e9, -1e9, 1e15])
@pytest.mark.parametrize("side", ["pos", "neg"])
def test_bounded_losses_keep_their_digits_beside_a_score_far_away(name, method, far, side):
    args = draw(20, 30, seed=6, low=-0.2)
    args[side == "neg"][3] = far
    assert_equal_to_loops(terms_of(args, name, method), args, name)


@each_way
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_a_common_offset_does_not_cancel(name, method, offset):
    # Multiples of 2^-20 stay exact when the offset is added, so nothing but the method can lose digits.
    pos, neg, s, y = draw(30, 50)
    pos, neg = ((x * 2**20).round() / 2**20 for x in (pos, neg))
    assert_equal_to_loops(terms_of((pos + offset, neg + offset, s, y), name, method), (pos, neg, s, y), name)


@each_way
def test_single_and_half_precision(name, method):
    for offset in (0.0, 300.0):
        args = draw(40, 60, dtype=torch.float32)
        args = (args[0] + offset, args[1] + offset, *args[2:])
        terms = terms_of(args, name, method)
        assert {getattr(terms, field).dtype for field in FIELDS} == {torch.float32}
        assert_equal_to_loops(terms, args, name, "float32")
        with torch.autocast("cpu", torch.bfloat16):
            again = terms_of(args, name, method)
        assert all(torch.equal(getattr(terms, field), getattr(again, field)) for field in FIELDS)
    for dtype in (torch.float16, torch.bfloat16):
        pos, neg, s, y = draw(12, 15, dtype=torch.float32)
        args = pos.to(dtype), neg.to(dtype), s, y
        assert_equal_to_loops(terms_of(args, name, method), args, name, "float32")


@each_way
def test_no_positives_give_empty_results(name, method):
    empty = torch.zeros(0)
    terms = terms_of((empty, torch.randn(4), empty), name, method)
    assert terms.excess.shape == terms.active.shape == terms.pos_grad.shape == (0,)
    assert torch.equal(terms.neg_grad, torch.zeros(4))
    value = weighted_sum(empty.clone().requires_grad_(), torch.randn(4), empty, empty, name, method)
    assert value.item() == 0.0
    value.backward()


@each_way
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_score_spoils_the_value(name, method, broken):
    pos, neg, s, y = draw(5, 6)
    neg[2] = broken
    value = weighted_sum(pos, neg, s, y, name, method)
    assert not value.isfinite() or (broken == math.inf and name in BOUNDED)  # no pair costs more than 1
    value = weighted_sum(neg, pos, *draw(6, 5)[2:], name, method)
    assert not value.isfinite() or (broken == math.inf and name not in {"square"})  # an infinite positive costs nothing


# ---------------------------------------------------------------- gradients


@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shift_of_all_scores_has_no_gradient(name, method, dtype):
    """It changes no pair: the gradients add up to exactly 0 in any order, so that a last bias stays where it is."""
    pos, neg, s, y = draw(64, 192, seed=7, dtype=dtype)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    for offset, factor in ((0.0, 1.0), (50.0, 0.37)):
        scores = (pos + offset).requires_grad_(), (neg + offset).requires_grad_()
        found = torch.autograd.grad(factor * weighted_sum(*scores, s, y, name, method), scores)
        terms = terms_of((*scores, s, y), name, method)
        expected = factor * torch.cat([terms.pos_grad, terms.neg_grad])
        total, size = torch.cat(found)[order].cumsum(0)[-1], expected.abs().sum()
        assert total == 0.0 if dtype == torch.float32 else abs(total) < 1e-13 * size
        assert_close(torch.cat(found) / size, expected / size, "float32")


def test_constants_get_no_gradient_and_results_no_graph():
    pos, neg, s, y = (x.requires_grad_() for x in draw(6, 9))
    terms = pairwise_terms(pos, neg, s, y)
    assert not any(getattr(terms, field).requires_grad for field in FIELDS)
    pairs = evaluate_pairs(pos, neg, s, dual_neg_scores=neg)
    assert not any(x.requires_grad for x in (pairs.excess, pairs.active, pairs.dual.excess))
    pairs.weighted_sum(y).backward()
    assert_close(pos.grad, terms.pos_grad, "float64")
    assert_close(neg.grad, terms.neg_grad, "float64")
    assert s.grad is y.grad is None
    with torch.no_grad():
        assert not pairs.weighted_sum(y).requires_grad


def test_second_derivatives_are_refused():
    pos, neg, s, y = draw(6, 9)
    value = weighted_sum(pos.requires_grad_(), neg, s, y)
    with pytest.raises(UnsupportedError, match="without `create_graph=True`"):
        torch.autograd.grad(value, pos, create_graph=True)


# ---------------------------------------------------------------- two phases


def rule(excess):
    """Weights made of the losses, different for every positive."""
    return (0.1 + 0.3 * excess).clamp(0, 1)


@each_way
@pytest.mark.parametrize("limit", [2**16, 100, 20], ids=["both at once", "one at once", "in blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_may_follow_from_the_losses_on_either_batch(name, method, limit, dtype, monkeypatch):
    monkeypatch.setitem(pairwise._BLOCK, "cpu", limit)
    pos, neg, s, _ = draw(7, 9, dtype=torch.float32)
    dual = draw(7, 11, seed=1, dtype=dtype)[1].requires_grad_()
    for given in (None, dual):
        h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
        pairs = evaluate_pairs(h_pos, h_neg, s, surrogate=name, margin=0.5, method=method, dual_neg_scores=given)
        weights = rule(pairs.dual.excess)
        value = pairs.weighted_sum(weights)
        value.backward()
        apart = terms_of((pos, neg if given is None else dual, s), name, method)
        assert_close(weights, rule(apart.excess), "float32")
        expected = terms_of((pos, neg, s, weights), name, method)
        assert_close(value, (weights * expected.excess).sum(), "float32")
        assert_close(h_pos.grad, expected.pos_grad, "float32")
        assert_close(h_neg.grad, expected.neg_grad, "float32")
        assert_close(pairs.active, expected.active, "float32")
    assert dual.grad is None


@each_way
@pytest.mark.parametrize("limit", [2**16, 20], ids=["at once", "in blocks"])
def test_pairs_give_as_many_weighted_sums_as_one_asks_for(name, method, limit, monkeypatch):
    monkeypatch.setitem(pairwise._BLOCK, "cpu", limit)
    pos, neg, s, y = draw(7, 9)
    h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    pairs = evaluate_pairs(h_pos, h_neg, s, surrogate=name, margin=0.5, method=method)
    for weights in (y, 1.0 - y, y):
        found = torch.autograd.grad(pairs.weighted_sum(weights), (h_pos, h_neg))
        _, _, *expected = pairwise_loops(*(x.tolist() for x in (pos, neg, s, weights)), name)
        for grad, values in zip(found, expected, strict=True):
            assert_close(grad, values)


# ---------------------------------------------------------------- memory and devices


def spy(name):
    """A surrogate that records the sizes of the matrices it is evaluated on."""
    loss, sizes = get_surrogate(name, margin=0.5), []

    def value(t):
        sizes.append(t.numel())
        return loss.value(t)

    return Surrogate("spy", value, loss.derivative, loss.inverse, loss.monotone, loss.power), sizes


def test_auto_decides_by_size_and_sorting_forms_no_matrix():
    for (num_pos, num_neg), method, dense in [
        ((32, 32), "auto", True),
        ((128, 128), "auto", True),
        ((512, 512), "auto", False),
        ((30, 40), "sorted", False),
    ]:
        loss, sizes = spy("squared_hinge")
        pairwise_terms(*draw(num_pos, num_neg), surrogate=loss, method=method)
        assert bool(sizes) is dense


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize(("num_pos", "num_neg"), [(50, 30), (5, 300), (1, 64), (17, 64), (200, 1)])
def test_dense_blocks_stay_within_the_budget_and_form_each_pair_once(monkeypatch, name, num_pos, num_neg):
    args = draw(num_pos, num_neg)
    whole = terms_of(args, name, "dense")
    monkeypatch.setitem(pairwise._BLOCK, "cpu", 128)
    loss, sizes = spy(name)
    parts = pairwise_terms(*args, surrogate=loss, method="dense")
    assert max(sizes) <= 128
    assert sum(sizes) == num_pos * num_neg
    for field in FIELDS:
        assert_close(getattr(parts, field), getattr(whole, field))
    loss, sizes = spy(name)
    evaluate_pairs(*args[:3], surrogate=loss, method="dense").weighted_sum(args[3])
    assert sum(sizes) == num_pos * num_neg


@each_way
def test_no_number_is_read_back_from_the_device(name, method):
    # A meta tensor has no numbers: .item(), a boolean mask or a branch on a value would raise.
    pos, neg, s, y = (torch.empty(size, device="meta") for size in (5, 7, 5, 5))
    assert terms_of((pos, neg, s, y), name, method).neg_grad.shape == (7,)
    pairs = evaluate_pairs(pos.requires_grad_(), neg, s, surrogate=name, method=method, dual_neg_scores=neg)
    pairs.weighted_sum(y).backward()
    assert pos.grad.shape == (5,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_gives_the_same_without_synchronising(name, method, dtype, deterministic):
    args = draw(200, 300, dtype=dtype)
    on_device = [x.cuda() for x in args]
    torch.use_deterministic_algorithms(deterministic)
    torch.cuda.set_sync_debug_mode("error")
    try:
        terms = terms_of(on_device, name, method)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    expected = terms_of(args, name, method)
    for field in FIELDS:
        assert_close(
            getattr(terms, field).cpu(), getattr(expected, field), "float64" if dtype == torch.float64 else "float32"
        )


# ---------------------------------------------------------------- errors


def in_two_phases(weights=None, **args):
    return evaluate_pairs(**args).weighted_sum(torch.ones(2) if weights is None else weights)


@pytest.mark.parametrize("function", [pairwise_terms, in_two_phases])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"pos_scores": torch.zeros(2, 1)}, "`pos_scores` to have one dimension"),
        ({"pos_scores": torch.zeros(2, dtype=torch.int64)}, "`pos_scores` to be a float tensor"),
        (
            {"pos_scores": ["a", "b"]},
            "`pos_scores` to hold numbers, as a tensor, an array, a list .* got a list",
        ),
        ({"thresholds": torch.zeros(3)}, r"`thresholds` .* shape \(2,\), but got torch.float32 of shape \(3,\)"),
        ({"weights": torch.zeros(1)}, r"`weights` to be a float tensor .* shape \(2,\)"),
        ({"method": "fast"}, "`method` to be one of 'auto', 'dense', 'sorted', but got 'fast'"),
        ({"surrogate": "logistic", "method": "sorted"}, "can be sorted, but got 'logistic'. Use method=\"dense\""),
    ],
)
def test_bad_arguments_are_refused(function, change, match):
    args = {"pos_scores": torch.zeros(2), "neg_scores": torch.zeros(3), "thresholds": torch.zeros(2), **change}
    with pytest.raises(ArgumentError, match=match):
        function(**args)
