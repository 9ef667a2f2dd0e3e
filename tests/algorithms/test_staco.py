"""STACO against the paper's algorithm in plain loops, with both kinds of dual variables."""

import math
from functools import partial

import pytest
import torch

from lightning_tpauc.algorithms import STACO, TrainingScores
from lightning_tpauc.errors import UnsupportedError
from lightning_tpauc.functional import TaskMasks, exact_duals, tpauc_objective
from lightning_tpauc.training.state import IterateAverage
from tests.helpers.problems import DIM, NUM_POS, draw, make_data, paper_sonx, paper_staco
from tests.helpers.tolerances import assert_close
from tests.reference import staco as reference
from tests.reference.tracked import Tracked

PAPER_LOSS = {"surrogate": "squared_hinge", "margin": 0.5}


def trajectory(algorithm, stage_lengths, steps, settings, decay_at=None, optimizer=torch.optim.SGD):
    """Our algorithm and the reference side by side; yields after every step."""
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    algorithm.start(None)
    sgd = optimizer([w], lr=settings.eta, weight_decay=settings.weight_decay)
    iterates = IterateAverage([w])
    state = reference.State([0.0] * DIM, algorithm.y.tolist(), algorithm.s.tolist(), algorithm.s_prime.item())
    anchors = reference.begin_stage(state)
    stage_end = iter(stage_lengths)
    next_end = next(stage_end, math.inf)
    for t in range(steps):
        scale = 1.0 if decay_at is None or t < decay_at else 0.1
        index, first, second = draw(generator)
        algorithm.step_scale = scale
        sgd.param_groups[0]["lr"] = scale * settings.eta
        sgd.zero_grad()
        loss = algorithm(pos[index] @ w, neg[first] @ w, neg[second] @ w, index)
        loss.backward()
        iterates.add_proximal_gradient(algorithm.proximal_coefficient)
        sgd.step()
        iterates.update()
        reference.step(
            state,
            anchors,
            pos[index].tolist(),
            neg[first].tolist(),
            neg[second].tolist(),
            index.tolist(),
            settings,
            scale,
        )
        yield algorithm, w, iterates, state
        if t + 1 == next_end:
            iterates.finish_stage()
            algorithm.finish_stage()
            algorithm.restart(None)
            state.w, state.s, state.s_prime = reference.averages(state)
            state.y = [1.0] * NUM_POS
            anchors = reference.begin_stage(state)
            next_end = t + 1 + next(stage_end, math.inf)


def compare(algorithm, w, iterates, state):
    assert_close(w.detach(), state.w, "trajectory64")
    assert_close(algorithm.y, state.y, "trajectory64")
    assert_close(algorithm.s, state.s, "trajectory64")
    assert_close(algorithm.s_prime, state.s_prime, "trajectory64")
    if state.steps:
        w_bar, s_bar, s_prime_bar = reference.averages(state)
        assert_close(iterates.mean[0], w_bar, "trajectory64")
        ours = algorithm.averages()
        assert_close(ours[0], s_bar, "trajectory64")
        assert_close(ours[1], s_prime_bar, "trajectory64")


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "square", "logistic", "ramp", "smooth_ramp"])
@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize(("dual_init", "step_units"), [("ones", "absolute"), ("zeros", "absolute"), ("zeros", "loss")])
def test_trajectory_equals_the_paper(surrogate, gamma, dual_init, step_units):
    alpha = 0.7 if step_units == "absolute" else 0.35  # over a unit of about one half: the same steps
    settings = reference.Settings(0.4, 0.3, 0.5, surrogate, alpha, 0.2, 0.03, 0.02, gamma)
    settings.in_units_of_the_loss = step_units == "loss"
    algorithm = paper_staco(
        0.6, 0.3, surrogate=surrogate, alpha=alpha, beta=0.2, beta_prime=0.03, gamma=gamma,
        dual_init=dual_init, stage_restart="ones", step_units=step_units,
    )  # fmt: skip
    lengths = [50, 70, 80] if math.isfinite(gamma) else []
    moved, inside = False, False
    # Under the smooth ramp, which is not convex, two trajectories a rounding apart part tenfold in twenty steps.
    steps = 100 if surrogate == "smooth_ramp" else 200
    for step in trajectory(algorithm, lengths, steps, settings, decay_at=3 * steps // 4):
        compare(*step)
        moved = moved or bool(step[1].detach().abs().max() > 1e-3)
        inside = inside or bool(((algorithm.y > 0) & (algorithm.y < 1)).any())
    assert moved, "a trajectory that stands still proves nothing"
    assert inside, "the dual weights must leave their bounds"


def test_shared_negatives_equal_two_batches_that_happen_to_be_the_same():
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64)
    shared = paper_staco(dual_init="zeros", share_negatives=True)
    twice = paper_staco(dual_init="zeros")
    for algorithm in (shared, twice):
        algorithm.setup(NUM_POS, dtype=torch.float64)
    for _ in range(20):
        index, first, _ = draw(generator)
        arguments = (pos[index] @ w, neg[first] @ w)
        gradients = []
        for algorithm, dual in ((shared, None), (twice, arguments[1])):
            scores = [x.clone().requires_grad_() for x in arguments]
            loss = algorithm(*scores, dual, index)
            gradients.append((loss.detach(), *torch.autograd.grad(loss, scores)))
        for once, again in zip(*gradients, strict=True):
            assert torch.equal(once, again)
        for state in ("y", "s", "s_prime"):
            assert torch.equal(getattr(shared, state), getattr(twice, state))
    assert not shared.needs_dual_negatives
    assert twice.needs_dual_negatives


def test_exact_restart_replaces_anchor_and_duals():
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64)
    algorithm = paper_staco(gamma=10.0)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    algorithm.start(TrainingScores(pos @ w, neg @ w))
    index, first, second = draw(generator)
    algorithm(pos[index] @ w, neg[first] @ w, neg[second] @ w, index)
    algorithm.finish_stage()
    assert algorithm.needs_scores("restart")
    algorithm.restart(TrainingScores(pos @ -w, neg @ -w))
    s, y, s_prime = exact_duals(pos @ -w, neg @ -w, 0.5, 0.5, **PAPER_LOSS)
    assert_close(algorithm.s, s)
    assert_close(algorithm.s_anchor, s)
    assert_close(algorithm.y, y)
    assert_close(algorithm.s_prime, s_prime)
    assert algorithm.stage_steps == 0


def test_exact_start_without_training_scores_uses_the_first_batch():
    algorithm = paper_staco()
    algorithm.setup(6)
    pos = torch.zeros(3, requires_grad=True)
    algorithm(pos, torch.zeros(4), torch.zeros(4), torch.tensor([0, 1, 2])).backward()
    assert_close(algorithm.s[3:], torch.full((3,), 0.25), "float32")  # l(0) = margin**2, not the dead zone's 1
    algorithm(pos, torch.full((4,), 0.1), torch.full((4,), 0.1), torch.tensor([3, 4, 5])).backward()
    assert pos.grad.abs().min() > 0, "the weights move from the first steps on"


@pytest.mark.parametrize("make", [paper_staco, partial(paper_sonx, dual_init="exact")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.3, 0.5, 1.1])
@pytest.mark.parametrize("score", [0.0, 0.7, -31.4])
def test_exact_start_moves_a_model_whose_scores_are_all_equal(make, dtype, margin, score):
    """Every loss is its threshold there; all pairs count, so the gradient is the one of y l / (theta_0 theta_1)."""
    algorithm = make(min_tpr=0.6, max_fpr=0.25, margin=margin)
    algorithm.setup(num_positives=6, dtype=dtype)
    algorithm.start(TrainingScores(torch.full((6,), score, dtype=dtype), torch.full((20,), score, dtype=dtype)))
    pos = torch.full((3,), score, dtype=dtype, requires_grad=True)
    neg = torch.full((5,), score, dtype=dtype)
    algorithm(pos, neg, neg, torch.tensor([0, 2, 5])).backward()
    weight = algorithm.y[[0, 2, 5]] if isinstance(algorithm, STACO) else 1.0
    assert_close(pos.grad, -weight * 2 * margin / (3 * 0.4 * 0.25) * torch.ones(3, dtype=dtype), "float32")


@pytest.mark.parametrize("tasks", [None, 2])
def test_training_goes_on_where_nothing_is_left_to_learn(tasks):
    """The global threshold is far above losses of 0, and its steps are in units of these."""
    algorithm = STACO(0.5, 0.5, dual_init="zeros")
    algorithm.setup(40 if tasks is None else [40] * tasks)
    algorithm.s_prime.fill_(0.5)
    algorithm.y.zero_()
    pos, neg, index = torch.full((4,), 3.0), torch.full((12,), -3.0), torch.arange(4)
    masks = None
    if tasks is not None:
        pos, neg, index = pos.repeat(tasks, 1), neg.repeat(tasks, 1), index.repeat(tasks, 1)
        masks = TaskMasks(torch.ones(tasks, 4, dtype=torch.bool), torch.ones(tasks, 12, dtype=torch.bool))
    losses = [algorithm(pos, neg, index=index, masks=masks).abs() for _ in range(1500)]
    assert max(losses) < 1e3, "in units of the loss, a thousandth of that of a constant model at least"
    assert (algorithm.loss_unit == 1e-3).all()
    assert (algorithm.s_prime < 0.05).all()
    algorithm(-pos, -neg, index=index, masks=masks)
    assert (algorithm.y > 0.0).any(), "a loss is noticed at once"


# ---------------------------------------------------------------- tracked duals

MONOTONE = ["squared_hinge", "hinge", "logistic", "ramp", "smooth_ramp"]


@pytest.mark.parametrize("surrogate", MONOTONE)
@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize("step_units", ["loss", "absolute"])
@pytest.mark.parametrize("share_negatives", [True, False], ids=["shared", "two batches"])
def test_trajectory_of_tracked_duals_equals_the_loops(surrogate, gamma, step_units, share_negatives):
    reference = Tracked("2/5", "3/10", 0.5, surrogate, 0.02, gamma, step_units == "loss", dim=DIM)
    algorithm = STACO(
        0.6, 0.3, surrogate=surrogate, margin=0.5, gamma=gamma, duals="tracked", step_units=step_units,
        share_negatives=share_negatives,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    sgd, iterates = torch.optim.SGD([w], lr=0.02), IterateAverage([w])
    moved = 0.0
    for t in range(60):
        index, first, second = draw(generator)
        second = first if share_negatives else second
        sgd.zero_grad()
        loss = algorithm(pos[index] @ w, neg[first] @ w, None if share_negatives else neg[second] @ w, index)
        loss.backward()
        iterates.add_proximal_gradient(algorithm.proximal_coefficient)
        sgd.step()
        iterates.update()
        expected = reference.step(pos[index].tolist(), neg[first].tolist(), neg[second].tolist())
        assert_close(loss.detach(), expected, "trajectory64")
        assert_close(w.detach(), reference.w, "trajectory64")
        assert_close((algorithm.neg_border, algorithm.pos_border), reference.borders, "trajectory64")
        if math.isfinite(gamma) and t % 25 == 24:
            iterates.finish_stage()
            algorithm.finish_stage()
            algorithm.restart(None)
            reference.finish_stage()
        moved = max(moved, float(w.detach().abs().max()))
    assert moved > 1e-2, "a trajectory that stands still proves nothing"


@pytest.mark.parametrize("surrogate", MONOTONE)
def test_on_the_whole_training_set_a_step_descends_on_the_exact_objective(surrogate):
    """23 positives and 40 negatives: whole counts for theta_0 = 9/23 and theta_1 = 3/10."""
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64).requires_grad_()
    rectangle = (14 / 23, 0.3)
    algorithm = STACO(*rectangle, surrogate=surrogate, duals="tracked", step_units="absolute")
    algorithm.setup(NUM_POS, dtype=torch.float64)
    loss = algorithm(pos @ w, neg @ w, index=torch.arange(NUM_POS))
    objective = tpauc_objective(pos @ w, neg @ w, *rectangle, surrogate, margin=1.0)
    assert_close(loss.detach(), objective.detach())
    assert_close(torch.autograd.grad(loss, w)[0], torch.autograd.grad(objective, w)[0])


def test_training_scores_give_the_borders_at_the_start_and_after_a_stage():
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64)
    algorithm = STACO(0.6, 0.3, gamma=10.0, duals="tracked")
    algorithm.setup(NUM_POS, dtype=torch.float64)
    assert algorithm.needs_scores("start")
    assert algorithm.needs_scores("restart")

    def borders(w):  # theta_0 n_+ = 9.2, theta_1 n_- = 12
        return (neg @ w).sort(descending=True).values[11], (pos @ w).sort().values[9]

    algorithm.start(TrainingScores(pos @ w, neg @ w))
    assert (algorithm.neg_border, algorithm.pos_border) == borders(w)
    index, first, _ = draw(generator)
    algorithm(pos[index] @ w, neg[first] @ w, index=index)
    assert 0.0 < abs(float(algorithm.neg_border - borders(w)[0])) < abs(float((neg[first] @ w).max() - borders(w)[0]))
    algorithm.finish_stage()
    algorithm.restart(TrainingScores(pos @ -w, neg @ -w))
    assert (algorithm.neg_border, algorithm.pos_border) == borders(-w)


def test_the_borders_follow_a_rectangle_that_shrinks():
    algorithm = STACO(0.8, 0.2, duals="tracked")
    algorithm.setup(10)
    pos, neg = torch.arange(10.0), torch.arange(10.0)
    for tightness, expected in ((0.0, (0.0, 9.0)), (1.0, (8.0, 1.0))):
        algorithm.tightness = tightness
        for _ in range(200):
            algorithm(pos, neg, index=torch.arange(10))
        assert_close((algorithm.neg_border, algorithm.pos_border), expected, "float32")


def test_nothing_is_kept_for_a_positive():
    algorithm = STACO(duals="tracked")
    algorithm.setup(1000)
    assert sum(v.numel() for v in algorithm.state_dict().values() if torch.is_tensor(v)) == 5
    assert set(algorithm.diagnostics()) == {"active_share", "loss_unit", "neg_border", "pos_border"}
    with pytest.raises(UnsupportedError, match="keeps no thresholds to average"):
        algorithm.averages()
