"""The trained rectangle shrinks while it is in reach, and is held where it is not."""

import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, Task, TrainingScores
from lightning_tpauc.algorithms.base import TIGHTNESS_GRID, shrunk_rectangle
from lightning_tpauc.functional import objective_ratio
from lightning_tpauc.training.optimizer import steps_of_share
from lightning_tpauc.training.rectangle import SHARE, RectangleSchedule, shrinking_progress
from tests.helpers.problems import bare_trainer, noisy_labels
from tests.helpers.tolerances import TOLERANCES
from tests.reference.objective import objective_loops


def separable(n=200):
    return [TrainingScores(torch.linspace(2.0, 4.0, n), torch.linspace(-4.0, -2.0, n))]


def shuffled(n=200, far=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [TrainingScores(torch.randn(n, generator=generator) + far, torch.randn(n, generator=generator))]


def schedule(min_tpr=0.8, max_fpr=0.2, tasks=200):
    algorithm = STACO(min_tpr, max_fpr)
    algorithm.setup(tasks)
    algorithm.tightness = 0.0
    return RectangleSchedule(algorithm, 500)


def test_is_held_where_the_objective_comes_near_that_of_a_constant_model():
    made = schedule()
    assert made.algorithm.rectangle == (0.0, 1.0), "every pair counts at first"
    made.hold_at = 2.0
    for k in range(1, 21):
        made.move(k / 20, shuffled())
    reached, surrogate = made.algorithm.tightness, made.algorithm.surrogate
    assert 0.0 < reached < 1.0
    held, beyond = (
        objective_ratio(*shuffled()[0], *shrunk_rectangle(*made.algorithm.asked_rectangles[0], tightness), surrogate)
        for tightness in (reached, reached + 0.1)
    )
    assert held < 2.0 <= beyond
    assert made.ratios[0] == pytest.approx(float(held))


def test_held_out_scores_hold_it_even_where_training_scores_are_perfect():
    made = schedule()
    made.held_out = [[0.8 + 0.2 * t for t in TIGHTNESS_GRID]]  # 0.85 at a quarter of the way
    for k in range(1, 21):
        made.move(k / 20, separable())
    assert made.algorithm.tightness == pytest.approx(0.2)


def test_what_the_last_steps_have_computed_is_measured_where_it_leaves_a_doubt():
    """Stale scores neither hold the rectangle nor let it shrink."""
    stale = shuffled(far=0.6)
    for fresh, moves in ((separable(), True), (shuffled(), False)):
        made = schedule()
        made.move(0.05, stale, lambda scores=fresh: scores)
        assert (made.algorithm.tightness > 0.0) is moves
    schedule().move(0.05, separable(), lambda: pytest.fail("there is no doubt"))
    made = schedule()
    made.held_out = [[0.9] * 21]
    made.move(0.05, stale, lambda: pytest.fail("the validation decides"))


def test_each_labels_rectangle_goes_its_own_way():
    asked = [Task(5, min_tpr=0.8, weight=2.0), Task(5, max_fpr=0.2), Task(5), Task(5, weight=0.0)]
    made = schedule(0.6, 0.5, asked)
    corners = [(0.8, 0.5), (0.6, 0.2), (0.6, 0.5), (0.6, 0.5)]
    singles = [schedule(*corner, tasks=5) for corner in corners]
    scores = [shuffled(40, far, k)[0] for k, far in enumerate((3.0, 0.0, 3.0, 0.0))]
    scores[2] = None  # until its positives were visited
    grids = [[0.1 + 0.2 * k + 0.02 * t for t in range(21)] for k in range(4)]
    for k in range(1, 26):
        if k == 8:
            scores[2] = separable(40)[0]
        if k == 12:
            made.held_out = grids
            for single, grid in zip(singles, grids, strict=True):
                single.held_out = [grid]
        made.move(min(1.0, k / 20), scores)
        for label, single in enumerate(singles[:3]):
            single.move(min(1.0, k / 20), [scores[label]])
            assert made.algorithm.tightness_of_tasks[label] == single.algorithm.tightness
            assert made.held[label] == single.held[0]
            assert str(made.ratios[label]) == str(single.ratios[0])  # equal nan
            assert made.algorithm.rectangles[label] == single.algorithm.rectangle
    assert made.algorithm.tightness_of_tasks[:2] == (1.0, 0.0)
    # a label that trains nothing is not held
    assert made.algorithm.tightness_of_tasks[3] == 1.0
    assert not made.held[3]


# ---------------------------------------------------------------- the ratio


@pytest.mark.parametrize("surrogate", ["hinge", "squared_hinge", "logistic"])
def test_ratio_is_the_objective_over_that_of_equal_scores(surrogate):
    scores = [part.double() for part in shuffled(40)[0]]
    value = objective_ratio(*scores, 0.5, 0.5, surrogate=surrogate, margin=0.5)
    constant = objective_loops([0.0] * 40, [0.0] * 40, 0.5, 0.5, surrogate)
    naive = objective_loops(scores[0].tolist(), scores[1].tolist(), 0.5, 0.5, surrogate)
    torch.testing.assert_close(value, torch.tensor(naive / constant, dtype=torch.float64), **TOLERANCES["float64"])


def test_ratio_of_large_classes_is_that_of_their_quantiles():
    generator = torch.Generator().manual_seed(1)
    pos, neg = torch.randn(200_000, generator=generator) + 1.0, torch.randn(300_000, generator=generator)
    lowest, highest = pos.sort().values[:100_000], neg.sort(descending=True).values[:150_000]
    exact = (1.0 + highest[::150][None] - lowest[::100][:, None]).clamp_min(0.0).mean()
    torch.testing.assert_close(objective_ratio(pos, neg, 0.5, 0.5), exact, rtol=1e-2, atol=0.0)


def test_ratio_of_a_rectangle_without_an_example_is_nan():
    assert objective_ratio(torch.zeros(3), torch.zeros(3), 0.9, 0.5).isnan()
    assert objective_ratio(torch.zeros(0), torch.zeros(3), 0.5, 0.5).isnan()
    assert objective_ratio(torch.zeros(3), torch.zeros(0), 0.5, 0.5).isnan()


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("at_the_end", "held_out", "said"),
    [
        (shuffled, [], "the loss is {:.0%} (training) of that of a model that gives all the same score. Train longer"),
        (shuffled, [0.9] * 21, "the loss is {:.0%} (training) and 90% (validation) of that"),
        (separable, [0.9] * 21, "the loss is 0% (training) and 90% (validation) of that"),
    ],
)
def test_a_run_that_was_held_says_what_was_measured(at_the_end, held_out, said, caplog):
    made = schedule(0.5, 0.5)
    for k in range(1, 21):
        made.held_out = [held_out] if held_out and k > 1 else []
        made.move(k / 20, separable() if k == 1 else shuffled())
    with caplog.at_level("INFO"):
        made.say_if_held(None, at_the_end)
    ratio = float(objective_ratio(*at_the_end()[0], 0.5, 0.5, made.algorithm.surrogate))
    assert "Your rectangle was not fully trained. Training shrank it 5% of the way, to min_tpr=" in caplog.text
    assert said.format(ratio) in caplog.text


# ---------------------------------------------------------------- when it moves


def trainer_like(total, per_epoch, callbacks=()):
    return SimpleNamespace(estimated_stepping_batches=total, num_training_batches=per_epoch, callbacks=callbacks)


@pytest.mark.parametrize(
    ("total", "per_epoch", "steps"),
    [(1000, 100, 500), (100_000, 100, 2000), (math.inf, 100, 2000), (500, math.inf, 250), (math.inf, math.inf, 1000)],
)
def test_takes_half_of_the_run_but_no_more_than_20_epochs(total, per_epoch, steps):
    assert steps_of_share(trainer_like(total, per_epoch), SHARE) == steps


def test_follows_the_clock_where_it_ends_the_run_earlier(monkeypatch):
    timer = Timer(duration={"seconds": 100})
    monkeypatch.setattr(timer, "time_elapsed", lambda *_: 25.0)
    assert shrinking_progress(trainer_like(1000, 10, [timer]), 10, 500) == pytest.approx(0.5)
    assert shrinking_progress(trainer_like(1000, 10, [Timer()]), 10, 500) == pytest.approx(0.02)


def fit(x, y, **kwargs):
    torch.manual_seed(0)
    data = PosNegDataModule((x, y), num_pos=16, num_neg=48, val_fraction=0.3)
    module = TPAUCModule(torch.nn.Linear(x.shape[1], 1), STACO(0.75, 0.25), lambda p: torch.optim.Adam(p, lr=0.1))
    trainer = bare_trainer(max_steps=60, callbacks=[StageCallback(**kwargs)])
    trainer.fit(module, data)
    return trainer, module


def test_a_training_reaches_the_rectangle_that_is_in_reach_and_says_so():
    trainer, module = fit(*noisy_labels(600, 4, 0.05))
    assert module.algorithm.tightness == 1.0
    names = ("min_tpr", "max_fpr", "objective_ratio")
    min_tpr, max_fpr, ratio = (trainer.callback_metrics[f"train/{name}"] for name in names)
    assert (min_tpr, max_fpr) == (0.75, 0.25)
    assert 0.0 <= ratio < 0.85


def test_what_later_epochs_log_is_what_lightning_would_make_of_it(monkeypatch):
    ours = fit(*noisy_labels(600, 4, 0.05))[0].callback_metrics
    monkeypatch.setattr(_ResultCollection, "get", lambda *_: None)  # so that every value goes through `log`
    assert fit(*noisy_labels(600, 4, 0.05))[0].callback_metrics == ours


def test_a_training_on_labels_that_no_model_predicts_is_held(caplog):
    with caplog.at_level("INFO"):
        _, module = fit(*noisy_labels(600, 4, 20.0))
    assert module.algorithm.tightness < 1.0
    assert "Your rectangle was not fully trained" in caplog.text


def test_a_fixed_rectangle_is_trained_from_the_first_step_on():
    trainer, module = fit(*noisy_labels(600, 4, 0.05), shrink_rectangle=False)
    assert module.training_state.rectangle_schedule is None
    assert module.algorithm.tightness == 1.0
    assert "train/min_tpr" not in trainer.callback_metrics
