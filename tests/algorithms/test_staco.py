"""STACO against the paper's algorithm in plain loops."""

import math
from functools import partial

import pytest
import torch

from lightning_tpauc.algorithms import STACO, TrainingScores
from lightning_tpauc.errors import ArgumentError, CheckpointError
from lightning_tpauc.functional import exact_duals
from lightning_tpauc.functional.pairwise import TaskMasks
from lightning_tpauc.training.weights import IterateAverage
from tests.helpers.problems import DIM, NUM_POS, draw, make_data, paper_sonx, paper_staco
from tests.helpers.tolerances import assert_close
from tests.reference import staco as reference


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


@pytest.mark.parametrize(("surrogate", "degree"), [("hinge", 1), ("squared_hinge", 2)])
@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_in_units_of_the_loss_the_scale_of_the_scores_does_not_matter(surrogate, degree, factor):
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    batches = [draw(generator) for _ in range(60)]
    runs = []
    for scale in (1.0, factor):
        algorithm = STACO(0.6, 0.3, surrogate=surrogate, margin=scale)
        algorithm.setup(NUM_POS, dtype=torch.float64)
        w = torch.full((DIM,), 0.3, dtype=torch.float64)
        gradients = []
        for index, first, second in batches:
            h = [(scale * (x @ w)).requires_grad_() for x in (pos[index], neg[first])]
            algorithm(*h, neg[second] @ w * scale, index).backward()
            gradients.append(h[0].grad * scale)
        runs.append((algorithm.y, algorithm.s / scale**degree, algorithm.s_prime / scale**degree, gradients[-1]))
    for one, other in zip(*runs, strict=True):
        assert_close(other, one, "trajectory64")


def test_weight_decay_is_added_to_the_bracketed_gradient():
    settings = reference.Settings(0.5, 0.5, 0.5, "squared_hinge", 0.1, 0.1, 0.1, 0.05, 3.0, weight_decay=0.2)
    algorithm = paper_staco(gamma=3.0, alpha=0.1, beta=0.1, beta_prime=0.1, dual_init="zeros", stage_restart="ones")
    for step in trajectory(algorithm, [30, 30], 60, settings):
        compare(*step)


def test_value_is_the_minmax_function_at_the_old_thresholds():
    pos, neg = torch.tensor([0.1, 0.3], dtype=torch.float64), torch.tensor([0.2, 0.0, 0.4], dtype=torch.float64)
    algorithm = paper_staco(0.6, 0.5, alpha=0.1, dual_init="zeros")
    algorithm.setup(2, dtype=torch.float64)
    y, s_prime = algorithm.y, algorithm.s_prime
    loss = algorithm(pos, neg, neg, torch.tensor([1, 0]))
    g = [(sum(max(0.5 + n - p, 0) ** 2 for n in neg.tolist()) / 3) / 0.5 for p in pos.tolist()]
    y_new = [min(1.0, max(0.0, 1.0 + 0.1 * (value - 0.0) / 0.4)) for value in g]
    assert_close(loss, sum(y * value for y, value in zip(y_new, g, strict=True)) / 2 / 0.4)
    assert y is algorithm.y, "state is updated in place"
    assert s_prime is algorithm.s_prime, "state is updated in place"


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


def test_untouched_positives_keep_their_state():
    algorithm = paper_staco(dual_init="ones")
    algorithm.setup(5)
    algorithm(torch.zeros(2), torch.zeros(3), torch.zeros(3), torch.tensor([4, 1]))
    assert algorithm.y[[0, 2, 3]].tolist() == [1.0, 1.0, 1.0]
    assert algorithm.s[[0, 2, 3]].tolist() == [1.0, 1.0, 1.0]
    assert algorithm.s[4] != 1.0


def test_exact_start_solves_the_duals_of_the_training_scores():
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64)
    algorithm = paper_staco(0.6, 0.3)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    assert algorithm.needs_scores("start")
    assert not algorithm.needs_scores("restart"), "STACO1 has one stage"
    algorithm.start(TrainingScores(pos @ w, neg @ w))
    s, y, s_prime = exact_duals(pos @ w, neg @ w, 0.6, 0.3)
    assert_close(algorithm.s, s)
    assert_close(algorithm.y, y)
    assert_close(algorithm.s_prime, s_prime)
    assert_close(algorithm.y.mean(), 0.4)


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
    s, y, s_prime = exact_duals(pos @ -w, neg @ -w, 0.5, 0.5)
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


def test_a_state_from_before_the_first_step_starts_from_the_first_batch_as_well():
    original, restored = paper_staco(), paper_staco()
    original.setup(6)
    restored.setup(6)
    restored.load_state_dict(original.state_dict())
    for _ in range(2):  # the second time from a state that has been started
        for algorithm in (original, restored):
            algorithm(torch.zeros(3), torch.full((4,), -0.1), torch.full((4,), -0.1), torch.tensor([0, 1, 2]))
        assert torch.equal(restored.s, original.s)
        restored.setup(6)
        restored.load_state_dict(original.state_dict())


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


def test_start_from_a_batch_of_equal_scores_moves_too():
    algorithm = paper_staco()
    algorithm.setup(num_positives=6)
    pos = torch.zeros(3, requires_grad=True)
    algorithm(pos, torch.zeros(5), torch.zeros(5), torch.tensor([0, 2, 5])).backward()
    assert bool((pos.grad < 0).all())


def test_checkpoint_in_mid_stage_goes_on_as_if_unbroken():
    pos, neg = make_data()

    def run(steps, algorithm, generator):
        for _ in range(steps):
            index, first, second = draw(generator)
            w = torch.ones(DIM, dtype=torch.float64)
            algorithm(pos[index] @ w, neg[first] @ w, neg[second] @ w, index)

    straight = paper_staco(gamma=10.0, dual_init="zeros")
    straight.setup(NUM_POS, dtype=torch.float64)
    run(20, straight, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    first_half = paper_staco(gamma=10.0, dual_init="zeros")
    first_half.setup(NUM_POS, dtype=torch.float64)
    run(9, first_half, generator)
    resumed = paper_staco(gamma=10.0)
    resumed.setup(NUM_POS, dtype=torch.float64)
    resumed.load_state_dict({k: v.clone() if torch.is_tensor(v) else v for k, v in first_half.state_dict().items()})
    run(11, resumed, generator)
    for name, value in straight.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(resumed.state_dict()[name])), name


def test_rollback_undoes_a_step_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    algorithm = paper_staco(dual_init="zeros", gamma=5.0)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    before = {k: torch.as_tensor(v).clone() for k, v in algorithm.state_dict().items()}
    index, first, second = draw(generator)
    snapshot = algorithm.snapshot(index)
    algorithm(pos[index].sum(1), neg[first].sum(1), neg[second].sum(1), index)
    assert not torch.equal(before["y"], algorithm.y) or not torch.equal(before["s"], algorithm.s)
    algorithm.rollback(index, snapshot)
    for name, value in before.items():
        assert torch.equal(value, torch.as_tensor(algorithm.state_dict()[name])), name


def test_state_costs_sixteen_bytes_a_positive():
    algorithm = paper_staco(gamma=100.0)
    algorithm.setup(1000)
    per_positive = [v for v in algorithm.state_dict().values() if torch.is_tensor(v) and v.numel() == 1000]
    assert sum(v.element_size() for v in per_positive) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": -1.0}, r"`alpha` to be a number in \[0, inf\), but got -1.0"),
        ({"beta": float("nan")}, r"`beta` to be a number in \[0, inf\), but got nan"),
        ({"beta_prime": float("inf")}, r"`beta_prime` to be a number in \[0, inf\), but got inf"),
        ({"gamma": 0.0}, r"`gamma` to be above 0 \(infinity: STACO1\), but got 0.0"),
        ({"gamma": "5"}, "`gamma` to be above 0 .*, but got '5'"),
        ({"dual_init": "twos"}, "`dual_init` to be one of 'exact', 'ones', 'zeros', but got 'twos'"),
        ({"stage_restart": "zeros"}, "`stage_restart` to be one of 'exact', 'ones', but got 'zeros'"),
        ({"surrogate": "square"}, "`dual_init='exact'` needs a non-decreasing surrogate, but 'square'"),
        ({"surrogate": "square", "dual_init": "zeros", "gamma": 5.0}, "`stage_restart='exact'` needs a non-decreasing"),
        ({"min_tpr": 1.0}, "`min_tpr` to be a number in"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        paper_staco(**arguments)


def test_bad_calls():
    algorithm = paper_staco(dual_init="zeros")
    with pytest.raises(ArgumentError, match=r"call `setup\(num_positives\)` first"):
        algorithm(torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="`num_positives` to be a whole number of at least 1, but got 0"):
        algorithm.setup(0)
    with pytest.raises(ArgumentError, match=r"`dtype` to be torch.float32 or torch.float64, but got torch.bfloat16"):
        algorithm.setup(3, dtype=torch.bfloat16)
    algorithm.setup(3)
    with pytest.raises(ArgumentError, match="`index` to name each of the `pos_scores`"):
        algorithm(torch.zeros(2), torch.zeros(1), torch.zeros(1), torch.tensor([0]))
    with pytest.raises(ArgumentError, match="needs a second batch of negatives"):
        algorithm(torch.zeros(1), torch.zeros(1), None, torch.tensor([0]))
    with pytest.raises(ArgumentError, match="`neg_scores` to have shape"):
        algorithm(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1), torch.tensor([0]))


def test_state_of_another_run_is_refused():
    source, target = paper_staco(), paper_staco()
    source.setup(4)
    target.setup(5)
    with pytest.raises(CheckpointError, match="written for 4 positive examples, but the training set has 5"):
        target.load_state_dict(source.state_dict())
    state = source.state_dict()
    del state["s_anchor"]
    target.setup(4)
    with pytest.raises(CheckpointError, match="written by another algorithm"):
        target.load_state_dict(state)


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
