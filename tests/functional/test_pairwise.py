import math

import pytest
import torch
from torch.autograd import gradcheck

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional import (
    Surrogate,
    evaluate_pairs,
    get_surrogate,
    pairwise,
    pairwise_terms,
    register_surrogate,
    surrogates,
    weighted_excess,
)
from tests.helpers.tolerances import assert_close
from tests.reference.pairwise import LOSSES, pairwise_loops

SORTABLE = ["squared_hinge", "hinge", "square", "ramp", "smooth_ramp"]
BOUNDED = {"ramp", "smooth_ramp"}
PAIRS = [
    (name, method) for name in sorted(LOSSES) for method in ("dense", "sorted") if name in SORTABLE or method == "dense"
]
PAIRS += [(name, "auto") for name in sorted(LOSSES)]
SIZES = [(1, 1), (1, 9), (8, 1), (7, 23), (40, 31)]
FIELDS = ("excess", "active", "pos_grad", "neg_grad")


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


def assert_equal_to_loops(terms, args, name, kind="float64", **options):
    expected = pairwise_loops(*(x.double().tolist() for x in args), name, **options)
    for field, values in zip(FIELDS, expected, strict=True):
        assert_close(getattr(terms, field), values, kind)


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize(("num_pos", "num_neg"), SIZES)
@pytest.mark.parametrize("low", [0.0, -1.0], ids=["thresholds>=0", "some_thresholds<0"])
def test_terms_match_double_loops(name, method, num_pos, num_neg, low):
    args = draw(num_pos, num_neg, low=low)
    terms = pairwise_terms(*args, surrogate=name, margin=0.6, scale=1.7, method=method)
    assert_equal_to_loops(terms, args, name, margin=0.6, scale=1.7)


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("seed", range(5))
def test_terms_match_double_loops_with_ties(name, method, seed):
    args = draw_ties(13, 29, seed)
    assert_equal_to_loops(pairwise_terms(*args, surrogate=name, method=method), args, name)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_constant_scores(name, method):
    args = torch.full((4,), 0.3), torch.full((6,), 0.3), torch.tensor([-0.2, 0.0, 0.1, 9.0]), torch.ones(4)
    assert_equal_to_loops(pairwise_terms(*args, surrogate=name, method=method), args, name, "float32")


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_weights_default_to_ones(name, method):
    pos, neg, s, _ = draw(5, 8)
    terms = pairwise_terms(pos, neg, s, surrogate=name, method=method)
    assert_equal_to_loops(terms, (pos, neg, s, torch.ones(5)), name)


@pytest.mark.parametrize("method", ["dense", "sorted"])
@pytest.mark.parametrize("name", SORTABLE)
def test_a_loss_equal_to_its_threshold_is_not_active(name, method):
    # All numbers are exact in binary: t = 0, -1/2 or 1/2, m = 1/2, so l is 1/4 or 1/2, 0, and 1.
    pos, neg = torch.zeros(3), torch.tensor([0.0, -0.5, 0.5])
    middle = LOSSES[name](0.0, 0.5, 1.0)[0]
    terms = pairwise_terms(pos, neg, torch.tensor([0.0, middle, 1.0]), surrogate=name, method=method)
    higher = sum(LOSSES[name](t, 0.5, 1.0)[0] > middle for t in (0.0, -0.5, 0.5))  # the ramp is at its maximum
    assert_close(terms.active, [2 / 3, higher / 3, 0.0], "float32")


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
    terms = pairwise_terms(*args, surrogate=name, margin=margin, method=method)
    assert_equal_to_loops(terms, args, name, margin=margin)


@pytest.mark.parametrize("method", ["dense", "sorted"])
@pytest.mark.parametrize("name", sorted(BOUNDED))
@pytest.mark.parametrize("far", [1e4, 1e9, -1e9, 1e15])
@pytest.mark.parametrize("side", ["pos", "neg"])
def test_bounded_losses_keep_their_digits_beside_a_score_far_away(name, method, far, side):
    pos, neg, s, y = draw(20, 30, seed=6, low=-0.2)
    (pos if side == "pos" else neg)[3] = far
    terms = pairwise_terms(pos, neg, s, y, surrogate=name, method=method)
    assert_equal_to_loops(terms, (pos, neg, s, y), name)


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_no_pair_is_active_at_a_threshold_that_no_loss_exceeds(name):
    pos, neg, _, y = draw(20, 30)
    for method in ("dense", "sorted"):
        for s in (1.0, 7.0):
            terms = pairwise_terms(pos, neg, torch.full_like(pos, s), y, surrogate=name, method=method)
            assert not any(getattr(terms, field).any() for field in FIELDS)


@pytest.mark.parametrize("method", ["dense", "sorted"])
def test_below_zero_every_pair_is_active_even_without_loss(method):
    pos, neg = torch.tensor([10.0]), torch.tensor([0.0, 11.0])
    terms = pairwise_terms(pos, neg, torch.tensor([-0.5]), method=method)
    assert_close(terms.active, [1.0], "float32")
    assert_close(terms.excess, [(0.5 + 1.5**2 + 0.5) / 2], "float32")
    assert_close(terms.neg_grad, [0.0, 1.5], "float32")


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_a_common_offset_does_not_cancel(name, method, offset):
    # Multiples of 2^-20 stay exact when the offset is added, so nothing but the method can lose digits.
    pos, neg, s, y = draw(30, 50)
    pos, neg = ((x * 2**20).round() / 2**20 for x in (pos, neg))
    terms = pairwise_terms(pos + offset, neg + offset, s, y, surrogate=name, method=method)
    assert_equal_to_loops(terms, (pos, neg, s, y), name)


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_single_precision(name, method, offset):
    args = draw(40, 60, dtype=torch.float32)
    args = (args[0] + offset, args[1] + offset, *args[2:])
    terms = pairwise_terms(*args, surrogate=name, method=method)
    assert {getattr(terms, field).dtype for field in FIELDS} == {torch.float32}
    assert_equal_to_loops(terms, args, name, "float32")


@pytest.mark.parametrize("name", SORTABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_and_sorted_agree_at_size(name, dtype):
    args = draw(300, 2000, seed=3, dtype=dtype, low=-0.1)
    dense = pairwise_terms(*args, surrogate=name, method="dense")
    ordered = pairwise_terms(*args, surrogate=name, method="sorted")
    for field in FIELDS:
        assert_close(getattr(ordered, field), getattr(dense, field), "float64" if dtype == torch.float64 else "float32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["dense", "sorted"])
def test_half_precision_scores_are_promoted(dtype, method):
    pos, neg, s, y = draw(12, 15, dtype=torch.float32)
    pos, neg = pos.to(dtype), neg.to(dtype)
    terms = pairwise_terms(pos, neg, s, y, method=method)
    assert terms.excess.dtype == torch.float32
    assert_equal_to_loops(terms, (pos, neg, s, y), "squared_hinge", "float32")


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_autocast_changes_nothing(name, method):
    args = draw(12, 15, dtype=torch.float32)
    expected = pairwise_terms(*args, surrogate=name, method=method)
    with torch.autocast("cpu", torch.bfloat16):
        terms = pairwise_terms(*args, surrogate=name, method=method)
    assert all(torch.equal(getattr(terms, field), getattr(expected, field)) for field in FIELDS)


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_without_gradients_the_rest_is_the_same(name, method):
    args = draw(9, 14)
    full = pairwise_terms(*args, surrogate=name, method=method)
    short = pairwise_terms(*args, surrogate=name, method=method, gradients=False)
    assert torch.equal(short.excess, full.excess)
    assert torch.equal(short.active, full.active)
    assert short.pos_grad is None
    assert short.neg_grad is None


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_no_positives_give_empty_results(name, method):
    empty = torch.zeros(0)
    terms = pairwise_terms(empty, torch.randn(4), empty, surrogate=name, method=method)
    assert terms.excess.shape == terms.active.shape == terms.pos_grad.shape == (0,)
    assert torch.equal(terms.neg_grad, torch.zeros(4))
    value, _ = weighted_excess(empty.requires_grad_(), torch.randn(4), empty, surrogate=name, method=method)
    assert value.item() == 0.0
    value.backward()


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_score_spoils_the_value(name, method, broken):
    pos, neg, s, y = draw(5, 6)
    neg[2] = broken
    value, _ = weighted_excess(pos, neg, s, y, surrogate=name, method=method)
    assert not value.isfinite() or (broken == math.inf and name in BOUNDED)  # no pair costs more than 1
    value, _ = weighted_excess(neg, pos, *draw(6, 5)[2:], surrogate=name, method=method)
    assert not value.isfinite() or (broken == math.inf and name not in {"square"})  # an infinite positive costs nothing


# --------------------------------------------------------------------------------------------------- gradients


def value_by_matrix(pos, neg, s, y, loss):
    """V from the S x B matrix, for autograd."""
    return (y * (loss.value(neg - pos[:, None]) - s[:, None]).clamp_min(0).mean(1)).sum()


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_gradients_match_autograd_of_the_matrix(name, method, low):
    pos, neg, s, y = draw(11, 17, seed=1, low=low)
    pos.requires_grad_()
    neg.requires_grad_()
    expected = torch.autograd.grad(value_by_matrix(pos, neg, s, y, get_surrogate(name)) * 3.0, (pos, neg))
    value, active = weighted_excess(pos, neg, s, y, surrogate=name, method=method)
    actual = torch.autograd.grad(value * 3.0, (pos, neg))
    assert_close(value, value_by_matrix(pos, neg, s, y, get_surrogate(name)))
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])
    assert not active.requires_grad


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_gradients_match_central_differences(name, method):
    pos, neg, s, y = draw(6, 9, seed=2)
    terms = pairwise_terms(pos, neg, s, y, surrogate=name, method=method)
    step = 1e-6

    def value(scores):
        excess = pairwise_loops(scores[:6], scores[6:], s.tolist(), y.tolist(), name)[0]
        return sum(weight * term for weight, term in zip(y.tolist(), excess, strict=True))

    scores, slopes = [*pos.tolist(), *neg.tolist()], []
    for k in range(len(scores)):
        up, down = list(scores), list(scores)
        up[k] += step
        down[k] -= step
        slopes.append((value(up) - value(down)) / (2 * step))
    assert_close(torch.cat([terms.pos_grad, terms.neg_grad]), slopes, "finite_difference")


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_gradcheck(name, method):
    pos, neg, s, y = draw(6, 9, seed=4)
    function = lambda pos, neg: weighted_excess(pos, neg, s, y, surrogate=name, method=method)[0]  # noqa: E731
    assert gradcheck(function, (pos.requires_grad_(), neg.requires_grad_()))


@pytest.mark.parametrize("wanted", ["pos", "neg"])
def test_one_side_may_be_constant(wanted):
    pos, neg, s, y = draw(6, 9)
    terms = pairwise_terms(pos, neg, s, y)
    scores = {"pos": pos, "neg": neg}[wanted].requires_grad_()
    weighted_excess(pos, neg, s, y)[0].backward()
    assert torch.equal(scores.grad, {"pos": terms.pos_grad, "neg": terms.neg_grad}[wanted])


def test_thresholds_and_weights_are_constants():
    pos, neg, s, y = (x.requires_grad_() for x in draw(6, 9))
    weighted_excess(pos, neg, s, y)[0].backward()
    assert s.grad is None
    assert y.grad is None


def test_half_precision_scores_get_half_precision_gradients():
    pos, neg, s, y = draw(6, 9, dtype=torch.float32)
    pos, neg = pos.bfloat16().requires_grad_(), neg.bfloat16().requires_grad_()
    value, _ = weighted_excess(pos, neg, s, y)
    value.backward()
    assert value.dtype == torch.float32
    assert pos.grad.dtype == neg.grad.dtype == torch.bfloat16
    assert_close(pos.grad, pairwise_terms(pos, neg, s, y).pos_grad, "half")


def test_second_derivatives_are_refused():
    pos, neg, s, y = draw(6, 9)
    pos.requires_grad_()
    value, _ = weighted_excess(pos, neg, s, y)
    with pytest.raises(UnsupportedError, match="without `create_graph=True`"):
        torch.autograd.grad(value, pos, create_graph=True)


def test_results_carry_no_graph():
    pos, neg, s, y = draw(6, 9)
    terms = pairwise_terms(pos.requires_grad_(), neg.requires_grad_(), s, y)
    assert not any(getattr(terms, field).requires_grad for field in FIELDS)


# ------------------------------------------------------------------------------------------- methods and memory


def spy(name):
    """A surrogate that records the sizes of the matrices it is evaluated on."""
    loss, sizes = get_surrogate(name), []

    def value(t):
        sizes.append(t.numel())
        return loss.value(t)

    return Surrogate("spy", value, loss.derivative, loss.inverse, loss.monotone, loss.power), sizes


def test_auto_decides_by_size():
    for (num_pos, num_neg), dense in {(32, 32): True, (128, 128): True, (512, 512): False}.items():
        loss, sizes = spy("squared_hinge")
        pairwise_terms(*draw(num_pos, num_neg), surrogate=loss)
        assert bool(sizes) is dense


def test_sorting_forms_no_matrix():
    loss, sizes = spy("squared_hinge")
    pairwise_terms(*draw(30, 40), surrogate=loss, method="sorted")
    assert sizes == []


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize(("num_pos", "num_neg"), [(50, 30), (5, 300), (1, 64), (17, 64), (200, 1)])
def test_dense_blocks_stay_within_the_budget(monkeypatch, name, num_pos, num_neg):
    args = draw(num_pos, num_neg)
    whole = pairwise_terms(*args, surrogate=name, method="dense")
    loss, sizes = spy(name)
    monkeypatch.setitem(pairwise._BLOCK, "cpu", 128)
    parts = pairwise_terms(*args, surrogate=loss, method="dense")
    assert max(sizes) <= 128
    assert sum(sizes) == num_pos * num_neg
    for field in FIELDS:
        assert_close(getattr(parts, field), getattr(whole, field))


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_no_number_is_read_back_from_the_device(name, method):
    # A meta tensor has no numbers: .item(), a boolean mask or a branch on a value would raise.
    args = [torch.empty(size, device="meta") for size in (5, 7, 5, 5)]
    terms = pairwise_terms(*args, surrogate=name, method=method)
    assert terms.neg_grad.shape == (7,)
    weighted_excess(args[0].requires_grad_(), *args[1:], surrogate=name, method=method)[0].backward()
    assert args[0].grad.shape == (5,)


@pytest.mark.parametrize("method", ["dense", "auto"])
def test_registered_surrogates_are_evaluated_densely(monkeypatch, method):
    monkeypatch.setattr(surrogates, "_FACTORIES", dict(surrogates._FACTORIES))
    register_surrogate(
        "cube",
        lambda margin, scale: Surrogate(
            "cube", lambda t: (t + margin).relu() ** 3, lambda t: 3 * (t + margin).relu() ** 2
        ),
    )
    args = draw(8, 9)
    terms = pairwise_terms(*args, surrogate="cube", method=method)
    monkeypatch.setitem(LOSSES, "cube", lambda t, m, _: (max(t + m, 0.0) ** 3, 3 * max(t + m, 0.0) ** 2))
    assert_equal_to_loops(terms, args, "cube")


# --------------------------------------------------------------------------------------------------------- errors


def two_phases(weights=None, **args):
    return evaluate_pairs(**args).weighted_sum(torch.ones(2) if weights is None else weights)


@pytest.mark.parametrize("function", [pairwise_terms, weighted_excess, two_phases])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"pos_scores": torch.zeros(2, 1)}, "`pos_scores` to have one dimension"),
        ({"pos_scores": torch.zeros(2, dtype=torch.int64)}, "`pos_scores` to be a float tensor"),
        ({"neg_scores": torch.zeros(0)}, "`neg_scores` to hold at least one score"),
        ({"neg_scores": None}, "`neg_scores` to be a float tensor, but got NoneType"),
        ({"thresholds": torch.zeros(3)}, r"`thresholds` .* shape \(2,\), but got torch.float32 of shape \(3,\)"),
        ({"thresholds": 0.0}, "`thresholds` to be a float tensor"),
        ({"weights": torch.zeros(1)}, r"`weights` to be a float tensor .* shape \(2,\)"),
        ({"surrogate": "cubic"}, "`surrogate` to be one of"),
        ({"margin": -1.0}, "`margin`"),
        ({"method": "fast"}, "`method` to be one of auto, dense, sorted, but got 'fast'"),
        ({"surrogate": "logistic", "method": "sorted"}, "can be sorted, but got 'logistic'. Use method=\"dense\""),
    ],
)
def test_bad_arguments_are_refused(function, change, match):
    args = {"pos_scores": torch.zeros(2), "neg_scores": torch.zeros(3), "thresholds": torch.zeros(2)}
    with pytest.raises(ArgumentError, match=match):
        function(**{**args, **change})


# ------------------------------------------------------------------------------------------------------------ CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_gives_the_same_without_synchronising(name, method, dtype, deterministic):
    args = draw(200, 300, dtype=dtype)
    on_device = [x.cuda() for x in args]
    torch.use_deterministic_algorithms(deterministic)
    torch.cuda.set_sync_debug_mode("error")
    try:
        terms = pairwise_terms(*on_device, surrogate=name, method=method)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    expected = pairwise_terms(*args, surrogate=name, method=method)
    for field in FIELDS:
        assert_close(
            getattr(terms, field).cpu(), getattr(expected, field), "float64" if dtype == torch.float64 else "float32"
        )


# --------------------------------------------------------------------------------------------------- two phases


def rule(excess):
    """Weights made of the losses, different for every positive."""
    return (0.1 + 0.3 * excess).clamp(0, 1)


def differentiate(pos, neg, value_of):
    """The value, what comes with it, and the gradients by ``pos`` and ``neg``."""
    scores = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    value, *others = value_of(*scores)
    value.backward()
    return value.detach(), *others, scores[0].grad, scores[1].grad


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("blocks", [False, True], ids=["at once", "in blocks"])
def test_weights_made_of_the_losses_equal_weights_made_before(name, method, blocks, monkeypatch):
    """To the last bit, values and gradients; the losses are those of a call of their own."""
    if blocks:
        monkeypatch.setitem(pairwise._BLOCK, "cpu", 20)
    pos, neg, s, _ = draw(7, 9, dtype=torch.float32)
    weights = rule(pairwise_terms(pos, neg, s, surrogate=name, method=method, gradients=False).excess)

    def in_two_phases(pos, neg):
        pairs = evaluate_pairs(pos, neg, s, surrogate=name, method=method)
        assert torch.equal(pairs.dual_excess, pairs.excess)
        return pairs.weighted_sum(rule(pairs.excess)), pairs.active

    expected = differentiate(pos, neg, lambda *h: weighted_excess(*h, s, weights, surrogate=name, method=method))
    for found, value in zip(differentiate(pos, neg, in_two_phases), expected, strict=True):
        assert torch.equal(found, value)
    assert expected[0] > 0


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("limit", [2**16, 100, 20], ids=["both at once", "one at once", "in blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dual_negatives_have_losses_of_their_own(name, method, limit, dtype, monkeypatch):
    monkeypatch.setitem(pairwise._BLOCK, "cpu", limit)
    pos, neg, s, _ = draw(7, 9, dtype=torch.float32)
    dual = draw(7, 11, seed=1, dtype=dtype)[1].requires_grad_()
    weights = rule(pairwise_terms(pos, dual, s, surrogate=name, method=method, gradients=False).excess)
    assert weights.dtype == dtype
    assert not torch.equal(weights, rule(pairwise_terms(pos, neg, s, surrogate=name, method=method).excess))

    def in_two_phases(pos, neg):
        pairs = evaluate_pairs(pos, neg, s, surrogate=name, method=method, dual_neg_scores=dual)
        return pairs.weighted_sum(rule(pairs.dual_excess)), pairs.active

    expected = differentiate(pos, neg, lambda *h: weighted_excess(*h, s, weights, surrogate=name, method=method))
    for found, value in zip(differentiate(pos, neg, in_two_phases), expected, strict=True):
        assert found.dtype == value.dtype
        assert_close(found, value, "float32")
    assert dual.grad is None


@pytest.mark.parametrize(("name", "method"), PAIRS)
@pytest.mark.parametrize("limit", [2**16, 20], ids=["at once", "in blocks"])
def test_pairs_give_as_many_weighted_sums_as_one_asks_for(name, method, limit, monkeypatch):
    monkeypatch.setitem(pairwise._BLOCK, "cpu", limit)
    pos, neg, s, y = draw(7, 9)
    h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
    pairs = evaluate_pairs(h_pos, h_neg, s, surrogate=name, method=method)
    for weights in (y, 1.0 - y, y):
        found = torch.autograd.grad(pairs.weighted_sum(weights), (h_pos, h_neg))
        terms = (pos, neg, s, weights)
        _, _, *expected = pairwise_loops(*(x.tolist() for x in terms), name)
        for grad, values in zip(found, expected, strict=True):
            assert_close(grad, values)


@pytest.mark.parametrize("surrogate", ["logistic", "squared_hinge"])
def test_pairs_that_are_not_kept_are_formed_once_if_the_weighted_sum_comes_first(surrogate, monkeypatch):
    monkeypatch.setitem(pairwise._BLOCK, "cpu", 20)
    pos, neg, s, y = draw(7, 9)
    for function in (
        lambda loss: pairwise_terms(pos, neg, s, y, surrogate=loss, method="dense"),
        lambda loss: weighted_excess(pos.requires_grad_(), neg, s, y, surrogate=loss, method="dense"),
        lambda loss: evaluate_pairs(pos, neg, s, surrogate=loss, method="dense").weighted_sum(y),
    ):
        loss, sizes = spy(surrogate)
        function(loss)
        assert sum(sizes) == 7 * 9


def test_pairs_carry_no_graph_but_that_of_the_scores():
    pos, neg, s, y = (x.requires_grad_() for x in draw(6, 9))
    pairs = evaluate_pairs(pos, neg, s)
    assert not any(x.requires_grad for x in (pairs.excess, pairs.active, pairs.dual_excess))
    pairs.weighted_sum(y).backward()
    assert pos.grad is not None
    assert s.grad is y.grad is None
    with torch.no_grad():
        assert not pairs.weighted_sum(y).requires_grad
    constant = evaluate_pairs(pos.detach(), neg.detach(), s).weighted_sum(y)
    assert not constant.requires_grad
    assert torch.equal(constant, weighted_excess(pos, neg, s, y)[0])


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_two_phases_read_no_number_back_from_the_device(name, method):
    pos, neg, s, y = (torch.empty(size, device="meta") for size in (5, 7, 5, 5))
    pairs = evaluate_pairs(pos.requires_grad_(), neg, s, surrogate=name, method=method, dual_neg_scores=neg)
    pairs.weighted_sum(y).backward()
    assert pos.grad.shape == (5,)


def test_second_derivatives_of_pairs_are_refused():
    pos, neg, s, y = draw(6, 9)
    value = evaluate_pairs(pos.requires_grad_(), neg, s).weighted_sum(y)
    with pytest.raises(UnsupportedError, match="without `create_graph=True`"):
        torch.autograd.grad(value, pos, create_graph=True)


@pytest.mark.parametrize(
    ("dual", "match"),
    [
        (torch.zeros(0), "Expected `dual_neg_scores` to hold at least one score"),
        (torch.zeros(2, 1), "Expected `dual_neg_scores` to have one dimension"),
        ([0.0, 1.0], "Expected `dual_neg_scores` to be a float tensor, but got list"),
    ],
)
def test_dual_negatives_that_do_not_fit_are_refused(dual, match):
    with pytest.raises(ArgumentError, match=match):
        evaluate_pairs(torch.zeros(3), torch.zeros(2), torch.zeros(3), dual_neg_scores=dual)


@pytest.mark.parametrize("weights", [torch.zeros(2), torch.zeros(3, dtype=torch.int64), 1.0, None])
def test_weights_that_do_not_fit_the_pairs_are_refused(weights):
    with pytest.raises(ArgumentError, match=r"`weights` to be a float tensor .* shape \(3,\)"):
        evaluate_pairs(torch.zeros(3), torch.zeros(2), torch.zeros(3)).weighted_sum(weights)
