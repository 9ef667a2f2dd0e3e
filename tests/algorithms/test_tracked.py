"""STACO with tracked duals against loops over pairs, and what its variables' kind means for a run."""

import math

import pytest
import torch

from lightning_tpauc.algorithms import STACO, TrainingScores
from lightning_tpauc.errors import ArgumentError, CheckpointError, UnsupportedError
from lightning_tpauc.functional import exact_duals, tpauc_objective
from lightning_tpauc.training.weights import IterateAverage
from tests.helpers.problems import DIM, NUM_POS, draw, make_data
from tests.helpers.tolerances import assert_close
from tests.reference.tracked import Tracked

MONOTONE = ["squared_hinge", "hinge", "logistic", "ramp", "smooth_ramp"]


@pytest.mark.parametrize("surrogate", MONOTONE)
@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize("step_units", ["loss", "absolute"])
@pytest.mark.parametrize("share_negatives", [True, False], ids=["shared", "two batches"])
def test_trajectory_equals_the_loops(surrogate, gamma, step_units, share_negatives):
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
@pytest.mark.parametrize("rectangle", [(0.5, 0.5), (0.37, 0.61), (0.8, 0.2), (0.0, 1.0)])
def test_on_the_whole_training_set_a_step_has_the_value_of_the_exact_duals(surrogate, rectangle):
    generator = torch.Generator().manual_seed(0)
    pos, neg = make_data(generator=generator)
    w = torch.randn(DIM, generator=generator, dtype=torch.float64)
    algorithm = STACO(*rectangle, surrogate=surrogate, duals="tracked", step_units="absolute")
    algorithm.setup(NUM_POS, dtype=torch.float64)
    h = (pos @ w).requires_grad_()
    loss = algorithm(h, neg @ w, index=torch.arange(NUM_POS))
    s, y, _ = exact_duals(h.detach(), neg @ w, *rectangle, surrogate=surrogate, margin=1.0)
    losses = algorithm.surrogate.value((neg @ w)[None] - h.detach()[:, None])
    risk = s + (losses - s[:, None]).clamp_min(0).mean(1) / rectangle[1]
    assert_close(loss.detach(), (y * risk).mean() / (1.0 - rectangle[0]), "trajectory64")


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
    assert algorithm.step_sizes == {}
    assert set(algorithm.diagnostics()) == {"active_share", "loss_unit", "neg_border", "pos_border"}
    with pytest.raises(UnsupportedError, match="keeps no thresholds to average"):
        algorithm.averages()


@pytest.mark.parametrize("score", [0.0, 0.7, -31.4])
def test_a_model_whose_scores_are_all_equal_moves(score):
    """All pairs count, each 1 / (S B theta_1) of the way of l' / L, since y is theta_0 for all."""
    algorithm = STACO(0.6, 0.25, surrogate="squared_hinge", margin=0.5, duals="tracked")
    algorithm.setup(6)
    pos, neg = torch.full((3,), score, requires_grad=True), torch.full((5,), score)
    algorithm(pos, neg, index=torch.tensor([0, 2, 5])).backward()
    assert_close(pos.grad, torch.full((3,), -2 * 0.5 / (3 * 0.25) / 0.25), "float32")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"surrogate": "square"}, r"`duals='tracked'` needs a non-decreasing surrogate, but 'square' falls"),
        ({"alpha": 0.5}, r"`alpha=0.5` is for dual variables .* Leave out `alpha`, or set `duals='per_positive'`"),
        ({"beta": 2.0}, "`beta=2.0`"),
        ({"beta_prime": 0.0}, "`beta_prime=0.0`"),
        ({"dual_init": "zeros"}, "`dual_init='zeros'`"),
        ({"gamma": 5.0, "stage_restart": "ones"}, "`stage_restart='ones'`"),
        ({"duals": "exact"}, "`duals` to be one of 'per_positive', 'tracked', but got 'exact'"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        STACO(**{"duals": "tracked", **arguments})


@pytest.mark.parametrize(("written", "own"), [("tracked", "per_positive"), ("per_positive", "tracked")])
def test_a_checkpoint_of_the_other_kind_is_refused(written, own):
    source, target = STACO(duals=written), STACO(duals=own)
    source.setup(4)
    target.setup(4)
    with pytest.raises(CheckpointError, match=f"written with duals='{written}', but the algorithm has duals='{own}'"):
        target.load_state_dict(source.state_dict())


def test_repr_names_the_kind():
    assert repr(STACO(duals="tracked")) == "STACO(min_tpr=0.5, max_fpr=0.5, duals='tracked')"
