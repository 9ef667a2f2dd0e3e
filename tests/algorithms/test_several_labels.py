"""Several labels in one step: gradient and state are those of one algorithm for each label on the same scores."""

import copy
import functools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_tpauc.algorithms import AUCM, SOTA, STACO, CrossEntropy, PreviousScores, SOTAs, Task, TrainingScores
from lightning_tpauc.errors import ArgumentError, CheckpointError, UnsupportedError
from lightning_tpauc.functional import TaskMasks, evaluate_pairs, pairwise
from lightning_tpauc.functional.pairwise import widest_float
from tests.helpers.tolerances import assert_close

SIZES = (9, 5, 14, 3)
K, S, B = len(SIZES), 6, 17
RECTANGLES = [(0.5, 0.5), (0.8, 0.3), (0.0, 1.0), (0.37, 0.61)]
WEIGHTS = [1.0, 2.0, 0.5, 3.0]


def draw(generator, step):
    """Scores and masks of one batch; now and then a task has no positive, or no negative."""
    num_pos = torch.tensor([int(torch.randint(1, min(S, n) + 1, (1,), generator=generator)) for n in SIZES])
    pos_mask = torch.arange(S) < num_pos[:, None]
    index = torch.zeros(K, S, dtype=torch.int64)
    for k, n in enumerate(SIZES):
        index[k, : num_pos[k]] = torch.randperm(n, generator=generator)[: num_pos[k]]
    order = torch.stack([torch.randperm(S, generator=generator) for _ in range(K)])  # padding lies anywhere
    pos_mask, index = pos_mask.gather(1, order), index.gather(1, order)
    index = index.where(pos_mask, -9)  # what pads may hold anything
    neg_mask, dual_mask = torch.rand(2, K, B, generator=generator) < 0.6
    neg_mask[:, 0] = dual_mask[:, 3] = True
    if step % 3 == 1:
        pos_mask[step % K] = False
    if step % 4 == 2:
        neg_mask[step % K] = False
    scores = torch.randn(K, S + 2 * B, generator=generator, dtype=torch.float64) * 0.8
    scores[:, :S] += 0.4
    return scores, index, TaskMasks(pos_mask, neg_mask, dual_mask)


def hidden(scores, masks):
    """The same scores, and nan instead of those that are not there."""
    broken = scores.clone()
    for part, mask in zip((slice(S), slice(S, S + B), slice(S + B, None)), masks, strict=True):
        broken[:, part] = broken[:, part].masked_fill(~mask, math.nan)
    return broken


def both(make, described=True):
    """One algorithm of all tasks, and one for each."""
    tasks = [Task(n, *rectangle, weight=w) for n, rectangle, w in zip(SIZES, RECTANGLES, WEIGHTS, strict=True)]
    together, alone = make(0.5, 0.5), [make(*r) for r in (RECTANGLES if described else [(0.5, 0.5)] * K)]
    together.setup(tasks if described else list(SIZES), dtype=torch.float64)
    for one, n in zip(alone, SIZES, strict=True):
        one.setup(n, dtype=torch.float64)
    return together, alone, torch.tensor(WEIGHTS if described else [1.0] * K, dtype=torch.float64)


def assert_equal_states(together, alone):
    for name, spec in together.state_specs.items():
        state = getattr(together, name)
        for k, one in enumerate(alone):
            own = together.entries(state, k) if spec.kind in ("positive", "dense") else state[k]
            assert_close(own, getattr(one, name), "trajectory64")


def run(together, alone, weights, steps=25, seed=0, first=0):
    """Steps of both on the same batches; their losses and gradients are compared at every one."""
    generator = torch.Generator().manual_seed(seed)
    weights, moved = weights / weights.sum(), 0.0
    for step in range(first, first + steps):
        scores, index, masks = draw(generator, step)
        leaf = hidden(scores, masks).requires_grad_()
        loss = together(leaf[:, :S], leaf[:, S : S + B], leaf[:, S + B :], index, masks=masks)
        loss.backward()
        expected, gradient = torch.zeros((), dtype=torch.float64), torch.zeros_like(scores)
        for k, one in enumerate(alone):
            p, n, d = masks.pos[k], masks.neg[k], masks.dual_neg[k]
            if not (p.any() and n.any()) and one.sampling != "uniform":
                continue
            row = scores[k].clone().requires_grad_()
            second = row[S + B :][d] if one.needs_dual_negatives else None
            own = one(row[:S][p], row[S : S + B][n], second, index[k][p])
            (own * weights[k]).backward()
            expected, gradient[k] = expected + weights[k] * own.detach(), row.grad
        assert_close(loss.detach(), expected, "trajectory64")
        assert_close(leaf.grad, gradient, "trajectory64")
        assert_equal_states(together, alone)
        moved = max(moved, float(gradient.abs().max()))
    assert moved > 1e-3, "a loss that does not move proves nothing"


def training_scores(seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [
        TrainingScores(
            torch.randn(n, generator=generator, dtype=torch.float64) + 0.4,
            torch.randn(30 + n, generator=generator, dtype=torch.float64),
        )
        for n in SIZES
    ]


@pytest.mark.parametrize("described", [True, False], ids=["rectangles of their own", "one rectangle"])
@pytest.mark.parametrize("duals", ["per_positive", "tracked"])
@pytest.mark.parametrize("step_units", ["loss", "absolute"])
@pytest.mark.parametrize("share_negatives", [True, False], ids=["shared", "two batches"])
@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
def test_staco_is_one_staco_for_each_task(described, duals, step_units, share_negatives, gamma):
    # Larger steps in absolute units overshoot and multiply what rounding leaves.
    sizes = {} if duals == "tracked" else {"alpha": 0.2, "beta": 0.2, "beta_prime": 0.2}

    def make(*rectangle):
        options = {"duals": duals, "step_units": step_units, "share_negatives": share_negatives, "gamma": gamma}
        return STACO(*rectangle, **options, **sizes)

    together, alone, weights = both(make, described)
    scores = training_scores()
    together.start(scores)
    for one, own in zip(alone, scores, strict=True):
        one.start(own)
    run(together, alone, weights)
    for algorithm in (together, *alone):
        algorithm.finish_stage()
    assert_equal_states(together, alone)
    scores = training_scores(seed=6)
    for algorithm, own in zip((together, *alone), (scores, *scores), strict=True):
        algorithm.restart(own)
        algorithm.tightness = 0.6
    run(together, alone, weights, steps=8, seed=1)
    mean = sum(w * one.proximal_coefficient for w, one in zip(weights.tolist(), alone, strict=True)) / weights.sum()
    assert_close(together.proximal_coefficient, mean)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "square", "logistic", "ramp", "smooth_ramp"])
@pytest.mark.parametrize("dual_init", ["zeros", "ones"])
def test_other_surrogates_and_starts(surrogate, dual_init):
    def make(*rectangle):
        return STACO(
            *rectangle, surrogate=surrogate, margin=0.5, dual_init=dual_init, alpha=0.3, beta=0.1, beta_prime=0.1
        )

    run(*both(make))


@pytest.mark.parametrize("make", [STACO, SOTA, functools.partial(STACO, gamma=5.0)], ids=["STACO1", "SOTA", "STACO2"])
def test_without_scores_every_task_starts_from_the_first_batch_that_it_is_in(make):
    sizes = {"alpha": 0.2, "beta": 0.2, "beta_prime": 0.2}
    run(*both(lambda *r: make(*r, **sizes)), steps=6)  # all tasks are in the first batch
    together, alone, weights = both(lambda *r: make(*r, **sizes))
    run(together, alone, weights, steps=6, first=1)  # task 1 is not
    assert all(together.state_dict()["started"])


def test_a_start_from_batches_is_resumed():
    def make(*rectangle):
        return STACO(*rectangle, alpha=0.2, beta=0.2, beta_prime=0.2)

    together, alone, weights = both(make)
    run(together, alone, weights, steps=1, first=1)
    assert together.state_dict()["started"] == [True, False, True, True]
    resumed, _, _ = both(make)
    resumed.load_state_dict(copy.deepcopy(together.state_dict()))
    run(resumed, alone, weights, steps=5, seed=1)
    assert all(resumed.state_dict()["started"])


@pytest.mark.parametrize("surrogate", ["hinge", "squared_hinge", "square", "ramp", "smooth_ramp"])
@pytest.mark.parametrize("method", ["dense", "sorted", "blocks"])
def test_pairs_of_all_tasks_by_every_method(surrogate, method, monkeypatch):
    generator = torch.Generator().manual_seed(2)
    if method == "blocks":
        monkeypatch.setitem(pairwise._BLOCK, "cpu", 50)
    for step in range(6):
        scores, _, masks = draw(generator, step)
        scores = scores.round(decimals=1) if step % 2 else scores  # ties
        thresholds = torch.rand(K, S, generator=generator, dtype=torch.float64) - 0.2
        weights = torch.rand(K, S, generator=generator, dtype=torch.float64) * masks.pos
        pos, neg = scores[:, :S].clone().requires_grad_(), scores[:, S : S + B].clone().requires_grad_()
        pairs = evaluate_pairs(
            pos, neg, thresholds, surrogate, method=method.replace("blocks", "dense"), masks=masks,
        )  # fmt: skip
        values = pairs.weighted_sum(weights)
        (values * torch.tensor(WEIGHTS)).sum().backward()
        for k in range(K):
            p, n = masks.pos[k], masks.neg[k]
            own_pos, own_neg = scores[k, :S][p].requires_grad_(), scores[k, S : S + B][n].requires_grad_()
            if not n.any():
                assert float(values[k].detach()) == 0.0
                continue
            own = evaluate_pairs(own_pos, own_neg, thresholds[k][p], surrogate, method="dense")
            assert_close(pairs.excess[k][p], own.excess, "trajectory64")
            assert_close(pairs.active[k][p], own.active, "trajectory64")
            value = own.weighted_sum(weights[k][p])
            assert_close(values[k], value, "trajectory64")
            (value * WEIGHTS[k]).backward()
            assert_close(pos.grad[k][p], own_pos.grad, "trajectory64")
            assert_close(neg.grad[k][n], own_neg.grad, "trajectory64")
            assert float(pos.grad[k][~p].abs().sum() + neg.grad[k][~n].abs().sum()) == 0.0


@pytest.mark.parametrize("duals", ["per_positive", "tracked"])
def test_a_state_of_tasks_is_saved_resumed_and_rolled_back(duals):
    make = functools.partial(STACO, duals=duals)
    together, _, _ = both(make)
    together.start(training_scores())
    generator = torch.Generator().manual_seed(3)
    batches = [draw(generator, step) for step in range(6)]

    def step(algorithm, batch):
        scores, index, masks = batch
        return algorithm(scores[:, :S], scores[:, S : S + B], None, index, masks=masks)

    for batch in batches[:3]:
        step(together, batch)
    saved = copy.deepcopy(together.state_dict())
    places = together.place(batches[3][1], batches[3][2].pos)
    snapshot = together.snapshot(places)
    step(together, batches[3])
    together.rollback(places, snapshot)
    for name in together.state_specs:
        assert torch.equal(getattr(together, name), saved[name])
    expected = [step(together, batch) for batch in batches[3:]]
    resumed, _, _ = both(make)
    resumed.load_state_dict(saved)
    assert [torch.equal(step(resumed, batch), loss) for batch, loss in zip(batches[3:], expected, strict=True)] == [
        True
    ] * 3
    other = STACO()
    other.setup(sum(SIZES), dtype=torch.float64)
    with pytest.raises(CheckpointError, match=rf"written for \[9, 5, 14, 3\] positive .* has {sum(SIZES)}"):
        other.load_state_dict(saved)


def test_several_tasks_have_tracked_duals_unless_something_speaks_for_the_papers():
    def names(count, **arguments):
        algorithm = STACO(**arguments)
        algorithm.setup(count)
        return set(algorithm.state_dict())

    own, tracked = {"y", "s", "s_prime"}, {"neg_border", "pos_border"}
    assert own <= names(4)
    assert tracked <= names([4, 5])
    assert not own & names([4, 5])
    for arguments in ({"duals": "per_positive"}, {"beta": 0.5}, {"dual_init": "zeros"}, {"stage_restart": "ones"}):
        assert own <= names([4, 5], **arguments)
        assert not tracked & names([4, 5], **arguments)
    square = {"surrogate": "square", "dual_init": "zeros", "stage_restart": "ones"}
    assert own <= names([4, 5], **square)
    again = STACO()
    for count, expected in ((4, own), ([4, 5], tracked), (4, own)):
        again.setup(count)
        assert expected <= set(again.state_dict())
        assert len(again.state_dict()) == len(names(count)), "nothing is left of another setup"
    for algorithm, other in ((STACO(), STACO(beta=0.5)), (STACO(beta=0.5), STACO())):
        algorithm.setup([4, 5])
        other.setup([4, 5])
        with pytest.raises(
            CheckpointError, match="written by another algorithm, or with other arguments, such as `duals`"
        ):
            algorithm.load_state_dict(other.state_dict())


class NoDouble(TorchDispatchMode):
    """Refuses float64, as a device that does not have it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves((args, kwargs, out)):
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float64, func
        return out


@pytest.fixture
def no_double(monkeypatch):
    """All code of several tasks believes that it runs on Apple's GPUs."""
    for module in ("functional.pairwise", "functional.staco", "algorithms.base"):
        monkeypatch.setattr(f"lightning_tpauc.{module}.widest_float", lambda _: widest_float(torch.device("mps")))


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(STACO, duals="tracked"),
        functools.partial(STACO, duals="per_positive"),
        functools.partial(STACO, duals="per_positive", surrogate="square", dual_init="zeros", stage_restart="ones"),
        functools.partial(STACO, gamma=5.0),
        SOTA,
        SOTAs,
        CrossEntropy,
    ],
)
def test_no_step_of_several_tasks_needs_float64_where_the_device_has_none(make, no_double):
    algorithm = make(0.5, 0.5)
    with NoDouble():
        algorithm.tightness = 0.5
        algorithm.setup([Task(n, *r) for n, r in zip(SIZES, RECTANGLES, strict=True)])
        generator = torch.Generator().manual_seed(0)
        if algorithm.needs_scores("start"):
            algorithm.start([TrainingScores(torch.randn(n), torch.randn(20)) for n in SIZES])
    for step in range(4):
        scores, index, masks = draw(generator, step)
        leaf = scores.float().requires_grad_()
        dual = (leaf[:, S + B :],) if algorithm.needs_dual_negatives else ()
        masks = masks if dual else masks._replace(dual_neg=None)
        with NoDouble():
            loss = algorithm(leaf[:, :S], leaf[:, S : S + B], *dual, index=index, masks=masks)
            loss.backward()
        assert bool(torch.isfinite(loss))


def test_what_does_not_fit_is_one_line():
    together, (alone, *_), _ = both(STACO)
    together.start(training_scores())
    assert {tuple(value.shape) for value in together.diagnostics().values()} == {()}
    scores, index, masks = draw(torch.Generator().manual_seed(0), 0)
    pos, neg = scores[:, :S], scores[:, S : S + B]
    for algorithm, p, n, i, m, message in [
        (together, pos, neg, index, None, "Expected `masks` for several labels .* `setup` was for \\[9, 5"),
        (
            alone,
            pos[0],
            neg[0],
            index[0],
            masks,
            "Expected `masks` for several labels and only for these, but `setup` was for 9",
        ),
        (together, pos, neg, None, masks, "`index` of shape"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            algorithm(p, n, None, i, masks=m)
    for wrong in (SIZES[1], -1):
        beyond = index.masked_scatter(masks.pos & (torch.arange(K) == 1)[:, None], torch.full((S,), wrong))
        with pytest.raises(ArgumentError, match=f"`index` to be in 0 .. 4 for label 1, .* but got {wrong}"):
            together(pos, neg, None, beyond, masks=masks)
    with pytest.raises(UnsupportedError, match="does not use the previous weights"):
        together(pos, neg, None, index, masks=masks, previous=PreviousScores(pos, neg))
    with pytest.raises(UnsupportedError, match="AUCM trains one label"):
        AUCM().setup([3, 4])
    for wrong, message in [
        ([3, 0], r"`num_positives` to be .* at least 1, or a list of them .* got \[3, 0\]"),
        ([Task(3, min_tpr=1.0)], "`min_tpr`"),
        ([Task(3, weight=0.0)], "a `weight` above 0"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            STACO().setup(wrong)
    counts = STACO()
    counts.setup(torch.tensor([3, 4]))  # as `labels.sum(0)` gives them
    assert counts.task_sizes == (3, 4)


@pytest.mark.parametrize("step_units", ["loss", "absolute"])
@pytest.mark.parametrize(("lam", "lam_prime"), [(3.0, 3.0), (1.0, 2.0)])
def test_sotas(step_units, lam, lam_prime):
    run(*both(lambda *r: SOTAs(*r, step_units=step_units, lam=lam, lam_prime=lam_prime)))


@pytest.mark.parametrize(
    "options", [{"step_units": "loss"}, {"step_units": "absolute", "alpha": 0.2, "beta": 0.2}], ids=["loss", "absolute"]
)
def test_sota(options):
    together, alone, weights = both(lambda *r: SOTA(*r, gamma=5.0, **options))
    scores = training_scores()
    for algorithm, own in zip((together, *alone), (scores, *scores), strict=True):
        algorithm.start(own)
    run(together, alone, weights)
    for algorithm in (together, *alone):
        algorithm.finish_stage()
    assert_equal_states(together, alone)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("pos_weight", [1.0, 3.0])
def test_cross_entropy(balanced, pos_weight):
    run(*both(lambda *rectangle: CrossEntropy(*rectangle, balanced=balanced, pos_weight=pos_weight)))
