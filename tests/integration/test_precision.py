"""Every precision of the Trainer against float32, and steps that a gradient scaler skips."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA
from lightning_tpauc.errors import NonFiniteError
from lightning_tpauc.training.state import written
from tests.helpers.problems import make_trainer, paper_staco, paper_stages, shifted
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close
from tests.reference.averages import polynomial_mean

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*"),
]

DIM = 5
PRECISIONS = ["32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed"]
HALF = ["bf16-mixed", "bf16-true", "16-mixed"]


def scaled_trainer(precision, scale=1024.0, **kwargs):
    """A Trainer in this precision; Lightning itself would turn 16-mixed into bf16-mixed on a CPU."""
    if precision != "16-mixed":
        return make_trainer(precision=precision, **kwargs)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return make_trainer(precision=None, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)], **kwargs)


def make_datamodule():
    x, y = shifted(torch.arange(60) % 3 == 0, DIM, 0.5, seed=3)
    return PosNegDataModule((x, y), val_dataset=(x, y), num_pos=4, num_neg=8)


def staco2(**kwargs):
    return paper_staco(0.6, 0.4, **{"gamma": 1.5, "alpha": 0.3, "beta": 0.2, "beta_prime": 0.1, **kwargs})


def sgd(lr=0.5, **kwargs):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **kwargs)


def fit(precision, algorithm, optimizer=None, *, net=None, callbacks=(), stages=None, trainer=None, **kwargs):
    torch.manual_seed(0)
    module = TPAUCModule(net or nn.Linear(DIM, 1), algorithm, optimizer or sgd(), warmup=0, **kwargs)
    limits = {"max_steps": 12, "max_epochs": -1, **(trainer or {})}
    callbacks = [stages or paper_stages(every_n_steps=7), *callbacks]
    run = scaled_trainer(precision, callbacks=callbacks, num_sanity_val_steps=0, **limits)
    run.fit(module, make_datamodule())
    return module, run


class AfterSteps(Callback):
    """The weights after each step."""

    def __init__(self):
        self.weights = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append(torch.cat([p.detach().double().flatten() for p in pl_module.parameters()]))


class Displace(Callback):
    """Moves the weights away from the anchor, exactly representable in every precision."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            pl_module.backbone.weight.fill_(-0.5)
            pl_module.training_state.average.anchor[0].fill_(-0.25)


@pytest.mark.parametrize(("clip", "fused"), [(None, True), (0.05, False), (0.05, True)])
@pytest.mark.parametrize("precision", HALF)
def test_one_step_is_that_of_float32(precision, clip, fused):
    """Loss gradient, clipping and proximal term together; scaled by 1024, any of them would be far off."""
    expected, actual = AfterSteps(), AfterSteps()
    settings = {"gradient_clip_val": clip, "trainer": {"max_steps": 1}}
    fit("32-true", staco2(), sgd(1.0), callbacks=[Displace(), expected], **settings)
    fit(precision, staco2(), sgd(1.0, fused=fused), callbacks=[Displace(), actual], **settings)
    assert_close(actual.weights[0][:DIM], expected.weights[0][:DIM], "half")  # the bias has no gradient but rounding
    gradient = -0.5 + 0.25 / (1.5 * 0.4) - expected.weights[0][:DIM]
    assert (gradient.norm() > 0.5) if clip is None else (0.04 < gradient.norm() <= 0.0501), "both terms matter"


@pytest.mark.parametrize(
    ("precision", "method"),
    [*((precision, SONX) for precision in PRECISIONS), *(("bf16-true", m) for m in (staco2, PAUCI, AUCM, SOTA))],
)
def test_state_and_pairwise_work_are_float32_or_better(precision, method):
    wide = torch.float64 if precision == "64-true" else torch.float32
    seen = set()

    class Spy(type(method())):
        def __call__(self, *scores, **kwargs):
            previous = kwargs["previous"] or ()
            seen.update(s.dtype for s in (*scores[:3], *previous))
            seen.add(torch.is_autocast_enabled("cpu"))
            return super().__call__(*scores, **kwargs)

    algorithm = method()
    algorithm.__class__ = Spy
    module, trainer = fit(precision, algorithm, score_activation="sigmoid", trainer={"max_steps": 9})
    assert seen == {wide, False}
    average, previous = module.training_state.average, module.training_state.previous
    memory = module.training_state.memory
    kept = flat([module.algorithm.state_dict(), None if memory is None else written(memory)]).values()
    kept = [*kept, *average.anchor, *average.mean, *previous.estimates]
    assert {t.dtype for t in kept if t.is_floating_point() and t.ndim} == {wide}
    parameters = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    assert {p.dtype for p in module.parameters()} == {parameters}
    assert torch.isfinite(trainer.validate(module, make_datamodule(), verbose=False)[0]["val/tpauc"] * torch.ones(()))


@pytest.mark.parametrize("averaging", ["uniform", "polynomial"])
def test_mean_of_half_precision_weights_does_not_stand_still(averaging):
    steps = AfterSteps()
    stages = paper_stages(averaging=averaging)
    module, _ = fit(
        "bf16-true", staco2(gamma=math.inf), sgd(0.05), callbacks=[steps], trainer={"max_steps": 300}, stages=stages
    )
    expected = polynomial_mean(steps.weights) if averaging == "polynomial" else torch.stack(steps.weights).mean(0)
    assert_close(torch.cat([m.flatten() for m in module.training_state.average.mean]), expected, "trajectory32")
    assert torch.equal(module.backbone.weight, module.training_state.average.mean[0].bfloat16()), (
        "published in the model's dtype"
    )


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("method", [lambda: SONX(gamma=0.1, margin=1.0), PAUCI], ids=["SONX", "PAUCI"])
def test_mixed_precision_does_not_reuse_half_precision_copies_of_the_previous_weights(precision, method):
    """Autocast's cache would: it goes by parameter, whose content the step exchanges. Lightning switches it off."""
    scores = []

    class Spy(type(method())):
        def step(self, pos_scores, neg_scores, dual_neg_scores, index, previous=None):
            if previous is not None:
                scores.append((torch.cat([pos_scores, neg_scores]).detach(), torch.cat(previous)))
            return super().step(pos_scores, neg_scores, dual_neg_scores, index, previous)

    class Direct(Callback):
        expected = ()

        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            with torch.no_grad(), trainer.precision_plugin.forward_context():
                self.expected += (pl_module.algorithm_scores(batch.inputs),)

    algorithm, direct = method(), Direct()
    algorithm.__class__ = Spy
    fit(precision, algorithm, sgd(1.0), callbacks=[direct], score_activation="sigmoid", trainer={"max_steps": 4})
    for (current, previous), expected in zip(scores, direct.expected[1:], strict=True):
        assert torch.equal(current, expected)
        assert not torch.equal(current, previous), "the weights have moved"


class Overflow(nn.Module):
    """Infinite gradients in the chosen forward passes that are followed by a backward pass, or infinite activations."""

    def __init__(self, at, activations=False):
        super().__init__()
        self.at, self.calls, self.activations = at, 0, activations

    def forward(self, scores):
        if scores.requires_grad:
            self.calls += 1
            if self.at is None or self.calls in self.at:
                if self.activations:
                    return scores * math.inf
                scores.register_hook(lambda grad: grad * math.inf)
        return scores


def everything(module):
    """All that a step may change, but for what counts batches."""
    remembered = module.training_state.state_dict()
    parts = {
        "weights": [p.detach() for p in module.parameters()],
        "buffers": list(module.buffers()),
        "schedulers": [config.scheduler.state_dict() for config in module.trainer.lr_scheduler_configs],
        "algorithm": module.algorithm.state_dict(),
        "training": {name: remembered[name] for name in ("average", "memory", "previous") if name in remembered},
        "optimizer": module.trainer.optimizers[0].state_dict()["state"],
    }
    return flat(parts)


class Compare(Callback):
    """What was there before and after each step."""

    def __init__(self):
        self.before, self.changed, self.skipped, self.scales = {}, [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = everything(pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        after = everything(pl_module)
        self.changed.append(
            sorted(k for k in after if k not in self.before or not torch.equal(after[k], self.before[k]))
        )
        self.skipped.append(pl_module.training_state.step_skipped)
        self.scales.append(trainer.precision_plugin.scaler.get_scale())


@pytest.mark.parametrize(("clip", "fused"), [(None, False), (1.0, True)], ids=["free", "clipped, fused"])
@pytest.mark.parametrize(
    ("method", "at"),
    [
        pytest.param(lambda: staco2(gamma=math.inf), 5, id="STACO1"),
        pytest.param(staco2, 5, id="STACO2"),
        pytest.param(lambda: SONX(gamma=0.1), 5, id="SONX"),
        pytest.param(PAUCI, 8, id="PAUCI"),  # two backward passes a step: the eighth is step 5's own (counting from 1)
        pytest.param(PAUCI, 1, id="PAUCI, first step"),
        pytest.param(SOTA, 1, id="SOTA, first step"),
    ],
)
def test_a_skipped_step_changes_nothing(method, at, clip, fused):
    overflow, compare = Overflow({at}), Compare()
    net = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1), overflow)
    module, trainer = fit(
        "16-mixed",
        method(),
        # torch 2.14: fused SGD goes on from an uninitialised momentum if its very first step is skipped
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.0 if at == 1 else 0.9, fused=fused),
        net=net,
        callbacks=[compare],
        trainer={"max_steps": 9},
        score_activation="sigmoid",
        gradient_clip_val=clip,
        # the stage's end would change everything in the same hook
        stages=paper_stages(every_n_steps=100),
    )
    assert compare.skipped.count(True) == 1
    step = compare.skipped.index(True)
    assert step == (0 if at == 1 else 4)
    assert compare.changed[step] == []
    assert compare.scales[step] == 512.0
    for k, changed in enumerate(compare.changed):
        assert k == step or any(name.startswith("/weights") for name in changed), f"step {k} has moved"
    assert module.training_state.batches_seen == trainer.global_step == 9
    if module.training_state.average.averaged:
        assert module.training_state.average.count == 8


@pytest.mark.parametrize("activations", [False, True], ids=["gradients", "activations"])
def test_a_skipped_step_leaves_statistics_and_schedules_alone(activations):
    """Statistics of activations that overflowed are nan, and so would be every later validation."""
    torch.manual_seed(0)
    overflow, compare = Overflow({5}, activations), Compare()
    parts = [nn.Linear(DIM, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)]
    module, trainer = fit(
        "16-mixed",
        staco2(),
        sgd(0.02),
        net=nn.Sequential(parts[0], overflow, *parts[1:]),
        callbacks=[compare],
        trainer={"max_steps": 9},
        stages=paper_stages(every_n_steps=100),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=9),
        lr_scheduler_interval="step",
    )
    assert compare.skipped == [k == 4 for k in range(9)]
    assert compare.changed[4] == []
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 8
    assert all(torch.isfinite(b).all() for b in module.buffers())


def test_a_run_that_only_skips_is_stopped():
    """Otherwise it would go through its epochs and leave the weights that it began with."""
    net = nn.Sequential(nn.Linear(DIM, 1), Overflow(None))
    with pytest.raises(NonFiniteError, match=r"skipped \d+ steps in a row"):
        fit("16-mixed", staco2(), net=net, trainer={"max_steps": 400})


@pytest.mark.parametrize("fused", [False, True], ids=["ordinary", "fused"])
def test_a_gradient_scaler_waits_once_a_step(fused, monkeypatch):
    waits = []
    bare = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda self: (waits.append("item"), bare(self))[1])
    truth = torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: (waits.append("bool"), truth(self))[1])
    monkeypatch.setattr(torch.amp.GradScaler, "get_scale", lambda _: pytest.fail("get_scale waits"))
    seen = []

    class Watched(TPAUCModule):
        def training_step(self, batch, batch_idx):
            waits.clear()
            loss = super().training_step(batch, batch_idx)
            seen.append(list(waits))
            return loss

    module = Watched(nn.Linear(DIM, 1), staco2(), sgd(0.01, fused=fused))
    scaled_trainer("16-mixed", max_steps=4, max_epochs=-1).fit(module, make_datamodule())
    assert seen == [["bool"] if fused else ["item"]] * 4
