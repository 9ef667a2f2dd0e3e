"""The LightningModule against the paper's loop, a plain torch loop, and its own promises."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError, NonFiniteError, UnsupportedError
from tests.helpers.problems import (
    DIM,
    NUM_POS,
    LinearScore,
    eval_loader,
    loader,
    make_batches,
    make_trainer,
    paper_staco,
    paper_stages,
)
from tests.helpers.tolerances import assert_close
from tests.reference import staco as reference

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")


def sgd(lr, **kwargs):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **kwargs)


def staco(**kwargs):
    defaults = {"alpha": 0.7, "beta": 0.2, "beta_prime": 0.03, "dual_init": "zeros", "stage_restart": "ones"}
    return paper_staco(0.6, 0.3, **{**defaults, **kwargs})


def make_module(algorithm, optimizer, **kwargs):
    return TPAUCModule(LinearScore(), algorithm, optimizer, num_positives=NUM_POS, **{"warmup": 0, **kwargs})


class Recorder(Callback):
    """Copies what a step left behind."""

    def __init__(self):
        self.weights, self.losses, self.rates = [], [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append([p.detach().clone() for p in pl_module.parameters()])
        self.losses.append(outputs["loss"].clone())
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
def test_fit_equals_the_papers_loop(gamma):
    steps, lengths = 60, (20, 30, 45)
    batches, parts = make_batches(steps)
    module = make_module(staco(gamma=gamma), sgd(0.02))
    trainer = make_trainer(callbacks=[paper_stages(every_n_steps=20, growth=1.5)])
    trainer.fit(module, loader(batches))

    settings = reference.Settings(0.4, 0.3, 0.5, "squared_hinge", 0.7, 0.2, 0.03, 0.02, gamma)
    state = reference.State([0.0] * DIM, [1.0] * NUM_POS, [0.0] * NUM_POS, 0.0)
    anchors, stage = reference.begin_stage(state), 0
    for pos, neg, dual, index in parts:
        reference.step(state, anchors, pos.tolist(), neg.tolist(), dual.tolist(), index.tolist(), settings)
        if math.isfinite(gamma) and state.steps == lengths[stage]:
            state.w, state.s, state.s_prime = reference.averages(state)
            state.y = [1.0] * NUM_POS
            anchors, stage = reference.begin_stage(state), stage + 1
    w_bar = reference.averages(state)[0]
    assert trainer.global_step == steps
    assert module.training_state.average.stage == stage
    assert_close(module.backbone.weight.detach(), w_bar, "trajectory64")
    assert_close(module.algorithm.s, state.s, "trajectory64")
    assert_close(module.algorithm.y, state.y, "trajectory64")
    assert_close(module.algorithm.s_prime, state.s_prime, "trajectory64")


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd(0.05, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_proximal_term_is_part_of_the_gradient_for_any_optimizer(optimizer):
    batches, parts = make_batches(25)
    gamma = 2.0
    module = make_module(staco(gamma=gamma), optimizer)
    recorder = Recorder()
    make_trainer(callbacks=[recorder, paper_stages(every_n_steps=10)]).fit(module, loader(batches))

    # the same with the proximal term in the loss, by autograd
    algorithm = staco(gamma=gamma)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    w = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    opt = optimizer([w])
    anchor, seen = w.detach().clone(), []
    for t, (pos, neg, dual, index) in enumerate(parts):
        opt.zero_grad()
        loss = algorithm(pos @ w, neg @ w, dual @ w, index)
        (loss + (w - anchor).square().sum() / (2 * gamma * 0.4)).backward()
        opt.step()
        seen.append(w.detach().clone())
        if t + 1 in (10, 20):
            anchor = torch.stack(seen).mean(0)
            w.data.copy_(anchor)
            seen = []
            algorithm.finish_stage()
            algorithm.restart()
        # the recorder runs before the stage callback, so it sees the iterate and not the average
        if t + 1 not in (10, 20):
            assert_close(recorder.weights[t][0], w.detach(), "trajectory64")


def test_clipping_bounds_the_data_gradient_and_leaves_the_proximal_term():
    batches, parts = make_batches(6)
    module = make_module(staco(gamma=0.5), sgd(0.3), gradient_clip_val=0.01)
    recorder = Recorder()
    make_trainer(callbacks=[recorder, paper_stages()]).fit(module, loader(batches))
    algorithm = staco(gamma=0.5)
    algorithm.setup(NUM_POS, dtype=torch.float64)
    w = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    for t, (pos, neg, dual, index) in enumerate(parts[:5]):
        (gradient,) = torch.autograd.grad(algorithm(pos @ w, neg @ w, dual @ w, index), w)
        gradient = gradient * min(1.0, 0.01 / (gradient.norm().item() + 1e-6))
        w.data -= 0.3 * (gradient + w.detach() / (0.5 * 0.4))
        assert_close(recorder.weights[t][0], w.detach(), "trajectory64")


def test_modules_that_were_given_one_algorithm_have_a_copy_each():
    algorithm = STACO(0.6, 0.3)
    plain = TPAUCModule(LinearScore(), algorithm)
    squashed = TPAUCModule(LinearScore(), algorithm, score_activation="sigmoid")
    scores = torch.zeros(3), torch.zeros(5)
    for module, slope in ((plain, 1.0), (squashed, 0.25)):
        assert module.algorithm.score_slope == slope
        assert module.algorithm.surrogate.value(torch.zeros(())) == slope
    assert algorithm.num_positives is None
    plain.algorithm.setup(3)
    plain.algorithm(*scores, scores[1], torch.arange(3))
    assert squashed.algorithm.num_positives is None


@pytest.mark.parametrize("validated", [False, True])
def test_lazy_layers_need_no_sanity_check(validated):
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.9).long()

    def train(net):
        torch.manual_seed(1)
        data = PosNegDataModule((x, y), val_dataset=(x, y) if validated else None, num_pos=4, num_neg=8)
        module = TPAUCModule(net())
        make_trainer(precision="32-true", num_sanity_val_steps=0).fit(module, data)
        return module.backbone

    net = train(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1)))
    assert net[0].weight.shape == (4, 3)
    assert not any(child.training != net.training for child in net.modules())


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_scheduler_drives_all_step_sizes(interval):
    batches, _ = make_batches(6)
    scales = []

    class Spy(STACO):
        def step(self, *args):
            scales.append(self.step_scale)
            return super().step(*args)

    module = TPAUCModule(
        LinearScore(),
        Spy(dual_init="zeros"),
        sgd(0.02),
        lambda opt: torch.optim.lr_scheduler.MultiStepLR(opt, [2, 4] if interval == "step" else [1, 2], gamma=0.1),
        lr_scheduler_interval=interval,
        num_positives=NUM_POS,
    )
    recorder = Recorder()
    make_trainer(callbacks=[recorder], max_epochs=1 if interval == "step" else 3).fit(
        module, loader(batches if interval == "step" else batches[:2])
    )
    assert_close(torch.tensor(scales), torch.tensor([1.0, 1.0, 0.1, 0.1, 0.01, 0.01]), "float32")


def test_other_rectangles_and_the_objective_are_logged():
    batches, _ = make_batches(2)
    module = make_module(staco(), sgd(0.1), rectangles=[(0.25, 0.75), (0.6, 0.3)], log_objective=True)
    trainer = make_trainer()
    trainer.fit(module, loader(batches), eval_loader())
    names = {name for name in trainer.callback_metrics if name.startswith("val/")}
    reported = {
        "tpauc",
        "auroc",
        "tpauc_tpr25_fpr75",
        "tpauc_tpr60_fpr30",
        "objective",
        "tpr_at_max_fpr",
        "fpr_at_min_tpr",
        "threshold",
        "sensitivity_at_threshold",
        "specificity_at_threshold",
        "precision_at_threshold",
    }
    assert names == {f"val/{name}" for name in reported}
    results = trainer.test(module, eval_loader(), verbose=False)[0]
    bounded = {name for name in reported if name.endswith("_at_threshold")}
    expected = reported | {f"{name}_{side}" for name in bounded for side in ("lower", "upper")}
    assert set(results) == {f"test/{name}" for name in expected}


def test_nothing_to_train_or_to_score():
    batches, _ = make_batches(1)
    with pytest.raises(ArgumentError, match="TPAUCModule has no model: pass `backbone=`"):
        make_trainer().fit(TPAUCModule(optimizer=sgd(0.1), num_positives=3), loader(batches))
    with pytest.raises(ValueError, match="empty parameter list"):
        make_trainer().fit(TPAUCModule(nn.Identity(), num_positives=3), loader(batches))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"score_activation": "relu"}, "`score_activation` to be one of 'identity', 'sigmoid', but got 'relu'"),
        ({"lr_scheduler_interval": "day"}, "`lr_scheduler_interval` to be one of 'epoch', 'step', but got 'day'"),
        ({"gradient_clip_val": -1.0}, "`gradient_clip_val` to be a number in"),
        ({"rectangles": [0.7, 0.3]}, r"`rectangles` to be pairs, .*got \[0.7, 0.3\]"),
        ({"rectangles": [(0.5, 1.5)]}, "`max_fpr` to be a number in"),
        ({"lr": 0.1, "min_tpr": 0.5}, r"can't take all of these arguments: lr, min_tpr\. .* STACO\(min_tpr=0.8"),
    ],
)
def test_bad_arguments(kwargs, words):
    with pytest.raises(ArgumentError, match=words):
        make_module(staco(), sgd(0.1), **kwargs)


def test_unknown_number_of_positives():
    batches, _ = make_batches(1)
    with pytest.raises(ArgumentError, match="The number of training positives is unknown"):
        make_trainer().fit(TPAUCModule(LinearScore(), staco()), loader(batches))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD([torch.zeros(1)], lr=0.1), lambda p: [torch.optim.SGD(p)]])
def test_an_optimizer_that_is_no_factory_of_one(optimizer):
    batches, _ = make_batches(1)
    with pytest.raises(ArgumentError, match=r"`optimizer` to map parameters to one torch\.optim\.Optimizer") as caught:
        make_trainer().fit(make_module(staco(), optimizer), loader(batches))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["7", 7.0, 0, True])
def test_number_of_positives_is_a_whole_number(number):
    with pytest.raises(ArgumentError, match=f"`num_positives` to be a whole number of at least 1, but got {number!r}"):
        TPAUCModule(LinearScore(), staco(), num_positives=number)


@pytest.mark.parametrize("number", [0, 2])
def test_no_optimizer_or_two_are_refused(number):
    class Own(TPAUCModule):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(number)] or None

    with pytest.raises(UnsupportedError, match=rf"exactly one optimizer: got {number}"):
        make_trainer().fit(Own(LinearScore(), staco(), num_positives=NUM_POS), loader(make_batches(1)[0]))


def test_divergence_stops_the_run_and_names_the_step_size(tmp_path):
    batches, _ = make_batches(200)
    module = make_module(staco(), sgd(1e200))
    trainer = make_trainer()
    with pytest.raises(NonFiniteError, match="Lower the optimizer's `lr`"):
        trainer.fit(module, loader(batches))
    assert module.training_state.batches_seen < 200

    module = make_module(staco(beta=1e308, alpha=1.0), sgd(1e-3))
    with pytest.raises(NonFiniteError, match=r"Lower .*`beta`"):
        make_trainer(callbacks=[paper_stages()]).fit(module, loader(batches))
    with pytest.raises(NonFiniteError, match="Not finite after"):
        trainer.save_checkpoint(tmp_path / "broken.ckpt")
    assert not (tmp_path / "broken.ckpt").exists()


def test_growth_without_bound_stops_the_run_long_before_it_overflows():
    y = torch.arange(60) % 3 == 0
    x = torch.randn(60, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.manual_seed(0)
    module = TPAUCModule(LinearScore(), staco(), sgd(3.0), warmup=0)
    data = PosNegDataModule((x, y.long()), num_pos=4, num_neg=8)
    with pytest.raises(
        NonFiniteError, match=r"Diverged after \d+ steps: .* grown to .* Lower .*standardise the inputs"
    ):
        make_trainer(max_epochs=100).fit(module, data)
    assert float(module.backbone.weight.abs().max()) < 1e12

    batches, _ = make_batches(20)
    large = [batch._replace(inputs=1e8 * batch.inputs) for batch in batches]  # no blow-up: all losses are of that size
    started = LinearScore()
    torch.nn.init.ones_(started.weight)
    trainer = make_trainer()
    trainer.fit(TPAUCModule(started, staco(), sgd(1e-20), num_positives=NUM_POS), loader(large))
    assert float(trainer.callback_metrics["train/loss"]) > 1e15


def test_scores_without_a_gradient_are_refused():
    class Detached(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).detach()

    x = torch.arange(40.0)[:, None]
    data = PosNegDataModule((x, (x[:, 0] > 30).long()), num_pos=4, num_neg=8)
    with pytest.raises(ArgumentError, match="scores of `forward` have no gradient"):
        make_trainer(max_epochs=1).fit(TPAUCModule(Detached(1, 1)), data)
