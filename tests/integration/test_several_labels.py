"""A model with an output for each of several labels, through the Trainer."""

import math
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback

from lightning_tpauc import StageCallback, TPAUCModule
from lightning_tpauc.algorithms import SOTA, STACO, CrossEntropy
from tests.helpers.problems import loader, make_trainer
from tests.helpers.tasks import SIZES, Heads, K, OneHead, alone, eval_batches, make_arrays, make_batches
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCAdvice")

STEPS = 24
WEIGHTS = [1.0, 2.0, 0.5]
RECTANGLES = [(0.5, 0.5), (0.4, 0.7), (0.2, 0.6)]
TASKS = {
    k: {"min_tpr": low, "max_fpr": high, "weight": weight}
    for k, ((low, high), weight) in enumerate(zip(RECTANGLES, WEIGHTS, strict=True))
}


def train(algorithm, net, batches, evaluated, *, lr=0.05, **options):
    module = TPAUCModule(net, algorithm, partial(torch.optim.SGD, lr=lr), log_objective=True, warmup=0, **options)
    stages = StageCallback(every_n_steps=8, shrink_rectangle=False, keep_best=False)
    trainer = make_trainer(max_epochs=1, callbacks=[stages], num_sanity_val_steps=0)
    trainer.fit(module, loader(batches), loader(evaluated))
    return module, trainer


METHODS = {
    "STACO1, two batches": lambda *r: STACO(*r, dual_init="zeros", share_negatives=False),
    "STACO2": lambda *r: STACO(*r, dual_init="zeros", gamma=6.0),
    "tracked": lambda *r: STACO(*r),
    "SOTA": lambda *r: SOTA(*r, dual_init="zeros"),
    "cross-entropy": lambda *r: CrossEntropy(*r),
}


def with_coefficient(algorithm, value):
    """The algorithm with another factor of the proximal term."""
    kind = type(algorithm)
    algorithm.__class__ = type(f"Pulled{kind.__name__}", (kind,), {"proximal_coefficient": property(lambda _: value)})
    return algorithm


@pytest.mark.parametrize("method", METHODS)
def test_each_label_is_trained_as_if_alone(method):
    """Weights, averages, duals and metrics are those of K modules of one label on the same examples.

    The loss is the weighted mean, so the rate of a module of one label is that share of the rate; the proximal term is
    no part of the loss.
    """
    uniform, two = method == "cross-entropy", "two batches" in method or method == "SOTA"
    batches, evaluated = make_batches(STEPS, dual=7 if two else 0, uniform=uniform), eval_batches(*make_arrays())
    heads, lr = Heads(), 0.3
    module, trainer = train(
        METHODS[method](0.5, 0.5), Heads(), batches, evaluated, lr=lr, num_positives=list(SIZES), tasks=TASKS
    )
    moved = (module.backbone.weight - heads.weight).detach().abs().max()
    assert moved > 1e-3, "weights that stay where they were prove nothing"
    for k in range(K):
        share = WEIGHTS[k] / sum(WEIGHTS)
        algorithm = METHODS[method](*RECTANGLES[k])
        if method == "tracked":  # one label has it where it is asked for
            algorithm = STACO(*RECTANGLES[k], duals="tracked")
        with_coefficient(algorithm, module.algorithm.proximal_coefficient / share)
        x, y = make_arrays()
        own = eval_batches(x, y[:, k])
        one, single = train(
            algorithm, OneHead(heads, k), [alone(b, k) for b in batches], own, lr=lr * share, num_positives=SIZES[k]
        )
        assert_close(module.backbone.weight[k], one.backbone.weight, "trajectory64")
        for name, spec in one.algorithm.state_specs.items():
            state = getattr(module.algorithm, name)
            state = module.algorithm.entries(state, k) if spec.kind in ("positive", "dense") else state[k]
            assert_close(state, getattr(one.algorithm, name), "trajectory64")
        for name, value in single.callback_metrics.items():
            if name.startswith("val/"):
                assert_close(trainer.callback_metrics[f"{name}/{k}"], value, "trajectory32")
        assert module.threshold[str(k)] == pytest.approx(one.threshold, rel=1e-9)


def test_each_label_comes_as_far_to_its_rectangle_as_if_alone():
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            schedule = pl_module.training_state.rectangle_schedule
            self.seen.append(list(zip(pl_module.algorithm.tightness_of_tasks, schedule.held, strict=True)))

    def fit(algorithm, net, batches, evaluated, lr, **settings):
        watch = Watch()
        module = TPAUCModule(net, algorithm, partial(torch.optim.SGD, lr=lr), warmup=0, **settings)
        trainer = make_trainer(max_epochs=4, callbacks=[StageCallback(keep_best=False), watch], num_sanity_val_steps=0)
        trainer.fit(module, loader(batches), loader(evaluated))
        return module, watch.seen

    batches, heads, (x, y) = make_batches(40), Heads(), make_arrays()
    settings = {"num_positives": list(SIZES), "tasks": TASKS}
    module, seen = fit(STACO(0.5, 0.5, duals="tracked"), Heads(), batches, eval_batches(x, y), 0.3, **settings)
    for k in range(K):
        algorithm, lr = STACO(*RECTANGLES[k], duals="tracked"), 0.3 * WEIGHTS[k] / sum(WEIGHTS)
        own = [alone(batch, k) for batch in batches]
        one, single = fit(algorithm, OneHead(heads, k), own, eval_batches(x, y[:, k]), lr, num_positives=SIZES[k])
        assert [of_labels[k] for of_labels in seen] == [of_one[0] for of_one in single]
        assert_close(module.backbone.weight[k], one.backbone.weight, "trajectory64")
    reached = module.algorithm.tightness_of_tasks
    assert len(set(reached)) > 1, "labels that go alike prove nothing"
    assert any(held for of_labels in seen for _, held in of_labels)


def test_a_label_that_is_not_in_play_stays_as_it_is_in_that_step():
    batches = make_batches(STEPS, absent=True)
    assert any(not batch.masks.pos.any(1).all() for batch in batches)
    options = {"num_positives": list(SIZES), "lr": 0.3}
    module, _ = train(STACO(dual_init="zeros"), Heads(), batches, eval_batches(*make_arrays()), **options)
    # a plain loop over the algorithm of K tasks, which is tested against K of one by itself
    net, algorithm = Heads(), STACO(dual_init="zeros")
    algorithm.setup(list(SIZES), dtype=torch.float64)
    for batch in batches:
        net.zero_grad()
        pos, neg, _ = batch.split(net(batch.inputs))
        algorithm(pos, neg, index=batch.index, masks=batch.masks).backward()
        with torch.no_grad():
            net.weight -= 0.3 * net.weight.grad
    assert_close(module.training_state.state_dict()["iterate"][0], net.weight, "trajectory64")
    assert_close(module.algorithm.s_prime, algorithm.s_prime, "trajectory64")


def test_the_mean_of_the_labels_and_each_of_them_are_logged():
    x, y = make_arrays()
    y[:, 1] = y[:, 1].where(y[:, 1] != 1, torch.nan)  # no positive
    with pytest.warns(match=r"val/tpauc of 1 is nan: no positive") as caught:
        _, trainer = train(
            STACO(dual_init="zeros"), Heads(), make_batches(6), eval_batches(x, y), num_positives=list(SIZES)
        )
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert math.isnan(values["val/tpauc/1"])
    for name in ("tpauc", "auroc", "tpr_at_max_fpr", "fpr_at_min_tpr"):
        assert values[f"val/{name}"] == pytest.approx((values[f"val/{name}/0"] + values[f"val/{name}/2"]) / 2, rel=1e-6)
    assert "val/threshold/0" in values
    assert "val/threshold/1" not in values
    assert sum("is nan" in str(w.message) for w in caught) == 1
