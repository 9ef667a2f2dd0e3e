"""TPAUCModule in front of somebody's LightningModule: what is theirs stays theirs."""

import contextlib
import inspect
import re
import warnings
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.core import hooks as lightning_hooks
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
from tests.helpers.paths import ROOT
from tests.helpers.problems import DIM, NUM_POS, eval_loader, loader, make_batches, make_trainer, noisy_labels


class Theirs(LightningModule):
    """A backbone and a head, hooks of its own, and an optimizer."""

    def __init__(self, features: int = 1):
        super().__init__()
        self.backbone = nn.Linear(DIM, features)
        self.head = nn.Linear(features, 1)
        self.called: list[object] = []

    def forward(self, inputs):
        return self.head(self.backbone(inputs))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def configure_callbacks(self):
        return [TheirCallback(), StageCallback(every_n_steps=7)]

    def on_fit_start(self):
        self.called.append("on_fit_start")

    def on_before_optimizer_step(self, optimizer):
        self.called.append("on_before_optimizer_step")

    def on_save_checkpoint(self, checkpoint):
        checkpoint["theirs"] = 5

    def on_load_checkpoint(self, checkpoint):
        self.called.append(checkpoint["theirs"])


class TheirCallback(Callback):
    pass


class Ours(TPAUCModule, Theirs):
    pass


def algorithm(**kwargs):
    return STACO(dual_init="zeros", stage_restart="ones", **kwargs)


@pytest.mark.parametrize("features", [1, 3])
def test_their_forward_scores_though_they_call_a_part_of_it_backbone(features):
    module = Ours(features=features, algorithm=algorithm())
    inputs = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(inputs), Theirs.forward(module, inputs))
    assert module.raw_scores(inputs).shape == (5,)


def test_their_hooks_run_beside_ours(tmp_path):
    batches, _ = make_batches(3)
    module = Ours(algorithm=algorithm(), num_positives=NUM_POS)
    trainer = make_trainer()
    trainer.fit(module, loader(batches))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert module.called == ["on_fit_start", *["on_before_optimizer_step"] * 3]
    assert any(isinstance(callback, TheirCallback) for callback in trainer.callbacks)
    assert [c.every_n_steps for c in trainer.callbacks if isinstance(c, StageCallback)] == [7]
    assert module.training_state.average.count == 3
    again = Ours.load_from_checkpoint(tmp_path / "a.ckpt", algorithm=algorithm())
    assert again.called == [5]


@pytest.mark.parametrize("name", ["algorithm", "threshold", "warmup", "base_lr"])
def test_an_attribute_that_both_need_is_refused(name):
    class Named(Theirs):
        def __init__(self):
            super().__init__()
            setattr(self, name, nn.Linear(1, 1))

    class Both(TPAUCModule, Named):
        pass

    with pytest.raises(ArgumentError, match=f"Both mixes TPAUCModule into a class that has `{name}` already"):
        Both(algorithm=algorithm())


def test_a_cycle_never_raises_the_dual_step_sizes():
    def cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)

    scales = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            scales.append(pl_module.algorithm.step_scale)

    module = TPAUCModule(
        nn.Linear(DIM, 1),
        algorithm(),
        lambda p: torch.optim.SGD(p, lr=0.01),
        cycle,
        lr_scheduler_interval="step",
        num_positives=NUM_POS,
    )
    make_trainer(callbacks=[Watch()]).fit(module, loader(make_batches(8)[0]))
    assert len(scales) == 8
    assert 0.9 < max(scales) <= 1.0 + 1e-12
    assert min(scales) < 0.1


# ---------------------------------------------------------------- hooks that manual optimization leaves out


class WithHooks(Theirs):
    """Warms up, clips by value, and steps a scheduler by hooks of automatic optimization."""

    def __init__(self):
        super().__init__()
        self.rates: list[float] = []
        self.largest: list[float] = []

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

    def on_before_zero_grad(self, optimizer):
        self.called.append("on_before_zero_grad")

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        self.called.append("optimizer_zero_grad")
        optimizer.zero_grad(set_to_none=False)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=1e-3, gradient_clip_algorithm="value")

    def lr_scheduler_step(self, scheduler, metric):
        self.called.append("lr_scheduler_step")

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (batch_idx + 1) / 4
        self.rates.append(optimizer.param_groups[0]["lr"])
        before = [p.detach().clone() for p in self.parameters()]
        optimizer.step(closure=optimizer_closure)
        change = max(float((a - b).detach().abs().max()) for a, b in zip(before, self.parameters(), strict=True))
        self.largest.append(change / optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("mixed_in", [True, False], ids=["mixed in", "own"])
def test_their_optimizer_hooks_are_called(mixed_in):
    names = ("optimizer_step", "optimizer_zero_grad", "on_before_zero_grad", "lr_scheduler_step")
    hooks = {name: vars(WithHooks)[name] for name in (*names, "configure_gradient_clipping")}
    bases = (TPAUCModule, WithHooks) if mixed_in else (TPAUCModule, Theirs)
    kind = type("Both", bases, {} if mixed_in else hooks)
    calls, scales = [], []

    class Watch(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            calls.append(optimizer)
            scales.append(pl_module.algorithm.step_scale)

    module = kind(algorithm=algorithm(), num_positives=NUM_POS)
    module.rates, module.largest = [], []
    trainer = make_trainer(callbacks=[Watch()])
    trainer.fit(module, loader(make_batches(4)[0]))
    steps = 4
    assert module.rates == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert scales == pytest.approx([1.0, 0.25, 0.5, 0.75])  # the dual variables' steps follow that schedule
    assert max(module.largest) == pytest.approx(1e-3)
    expected = {"on_before_zero_grad", "optimizer_zero_grad", *(["lr_scheduler_step"] if mixed_in else [])}
    assert {name: module.called.count(name) for name in expected} == dict.fromkeys(expected, steps)
    assert calls == trainer.optimizers * steps
    assert trainer.global_step == steps


@pytest.mark.parametrize(("steps", "words"), [(0, "took 0 optimizer steps"), (2, "took 2 optimizer steps")])
def test_another_number_of_steps_is_refused(steps, words):
    class Odd(TPAUCModule):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            for _ in range(steps):
                optimizer.step(closure=optimizer_closure)

    module = Odd(nn.Linear(DIM, 1), algorithm(), num_positives=NUM_POS)
    with pytest.raises(UnsupportedError, match=rf"Odd.optimizer_step {words}"):
        make_trainer().fit(module, loader(make_batches(2)[0]))


# ---------------------------------------------------------------- what is not called


class WithMetrics(Theirs):
    def validation_step(self, batch, batch_idx):
        self.log("val/theirs", 1.0)

    def test_step(self, batch, batch_idx):
        self.log("test/theirs", 1.0)

    def on_validation_epoch_end(self):
        self.log("val/their_end", 1.0)


def test_their_metrics_are_listed_once_by_name():
    class Both(TPAUCModule, WithMetrics):
        pass

    words = (
        r"Both does not call WithMetrics.validation_step, WithMetrics.test_step, WithMetrics.on_validation_epoch_end, "
        r"nor .* there, `WithMetrics.on_validation_epoch_end\(self, ...\)`, with `\(batch.inputs, batch.target\)`"
    )
    with pytest.warns(TPAUCWarning, match=words):
        make_trainer().validate(Both(algorithm=algorithm()), eval_loader(), verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TPAUCWarning)
        make_trainer().validate(Both(algorithm=algorithm()), eval_loader(), verbose=False)


# ---------------------------------------------------------------- hooks without super


def fit(cls, **options):
    module = cls(nn.Linear(DIM, 1), algorithm(), num_positives=NUM_POS)
    trainer = make_trainer(**options)
    trainer.fit(module, loader(make_batches(3, dtype=torch.float64)[0]))
    return module, trainer


def test_a_training_step_that_takes_no_step_is_refused():
    class Mine(TPAUCModule):
        def training_step(self, batch, batch_idx):
            return self.raw_scores(batch.inputs).mean()

    with pytest.raises(UnsupportedError, match=r"Mine.training_step took 0 steps for a batch: it must call `super"):
        fit(Mine)


@pytest.mark.parametrize("result", [None, {"loss": torch.zeros(()), "more": 1}], ids=["nothing", "a mapping"])
def test_what_a_training_step_returns_is_its_own_business(result):
    class Mine(TPAUCModule):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            return result

    torch.manual_seed(0)
    ours = fit(TPAUCModule)[0].backbone.weight
    torch.manual_seed(0)
    assert torch.equal(fit(Mine)[0].backbone.weight, ours)


def test_callbacks_that_a_subclass_leaves_out_are_missed():
    class Mine(TPAUCModule):
        def configure_callbacks(self):
            return []

    module = Mine(nn.Linear(DIM, 1), algorithm(), num_positives=NUM_POS)
    with pytest.raises(UnsupportedError, match="let `configure_callbacks` return those of"):
        make_trainer().fit(module, loader(make_batches(1)[0]))


def test_a_run_resumes_bit_for_bit_though_the_hooks_of_its_checkpoints_lack_super(tmp_path):
    class Mine(TPAUCModule):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = 5

        def on_load_checkpoint(self, checkpoint):
            self.found = checkpoint["mine"]

    class Stopped(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "a.ckpt")
                raise KeyboardInterrupt

    def run(*callbacks, ckpt_path=None):
        torch.manual_seed(0)
        module = Mine(nn.Linear(3, 1), STACO(gamma=2.0), lambda p: torch.optim.Adam(p, lr=0.05))
        data = PosNegDataModule(noisy_labels(200, 3, 0.3), num_pos=8, num_neg=16, val_fraction=0.3)
        trainer = make_trainer(max_epochs=3, callbacks=list(callbacks))
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            trainer.fit(module, data, ckpt_path=ckpt_path)
        return module, trainer

    straight, trainer = run()
    run(Stopped())
    torch.manual_seed(7)
    resumed, _ = run(ckpt_path=tmp_path / "a.ckpt")
    assert trainer.global_step > 8
    assert resumed.found == 5
    assert resumed.threshold == straight.threshold
    assert torch.equal(resumed.backbone.weight, straight.backbone.weight)


# ---------------------------------------------------------------- in which order, and from where


def test_the_other_order_is_refused():
    words = r"In class Both Theirs comes before TPAUCModule.* class Both\(TPAUCModule, Theirs\)"
    with pytest.raises(UnsupportedError, match=words):

        class Both(Theirs, TPAUCModule):
            pass


@pytest.fixture
def twin():
    return pytest.importorskip("pytorch_lightning")


def test_classes_of_the_twin_package_are_refused(twin):
    class TwinModule(twin.LightningModule):
        def forward(self, inputs):
            return inputs.sum(1)

    with pytest.raises(UnsupportedError, match=r"A base of Both comes from the package `pytorch_lightning`, .*Import"):

        class Both(TPAUCModule, TwinModule):
            pass

    class OwnCallback(twin.Callback):
        pass

    for callback in (twin.callbacks.EarlyStopping("val/tpauc"), OwnCallback()):
        name = type(callback).__name__
        words = rf"{name} comes from the package `pytorch_lightning`, .* from `lightning.pytorch`, and nothing from"
        with pytest.raises(UnsupportedError, match=words):
            make_trainer(callbacks=[callback]).fit(
                TPAUCModule(nn.Linear(DIM, 1), algorithm(), num_positives=NUM_POS), loader(make_batches(1)[0])
            )


# ---------------------------------------------------------------- optimizers of another kind


class SAM(torch.optim.SGD):
    """Sharpness-aware: evaluates the loss at weights that it has moved."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=0.05)
        with torch.enable_grad():
            closure()
        super().step()


def trained(make_optimizer, gamma=5.0, schedule=None, backbone=None):
    torch.manual_seed(0)
    module = TPAUCModule(
        backbone() if backbone is not None else nn.Linear(DIM, 1),
        algorithm(gamma=gamma),
        make_optimizer,
        schedule,
        num_positives=NUM_POS,
        gradient_clip_val=0.1,
        lr_scheduler_interval="step",
    )
    trainer = make_trainer(callbacks=[StageCallback(every_n_steps=3)])
    trainer.fit(module, loader(make_batches(5)[0]))
    return module


def test_optimizers_that_evaluate_by_themselves_are_refused():
    with pytest.raises(UnsupportedError, match=r"SAM evaluates the loss by itself.* use another optimizer"):
        trained(lambda p: SAM(p, lr=0.1))


class Embedded(nn.Module):
    """One learned score for each of a few values of the first input, and a linear one for the rest."""

    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(9, 1, sparse=sparse)

    def forward(self, inputs):
        return self.table((inputs[:, 0].clamp(-2, 2) * 2 + 4).long()).squeeze(1)


def test_sparse_gradients_train_as_dense_ones_do():
    for gamma in (5.0, float("inf")):
        sparse, dense = (
            trained(lambda p: torch.optim.SGD(p, lr=0.1), gamma, backbone=partial(Embedded, sparse))
            for sparse in (True, False)
        )
        assert torch.equal(sparse.backbone.table.weight, dense.backbone.table.weight)


# ---------------------------------------------------------------- which hooks are called


X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(200) % 5 == 0).long()
#: What ours stands in place of; all else of theirs is called.
REPLACED = {*(f"{kind}_step" for kind in ("training", "validation", "test", "predict"))}
REPLACED |= {"on_validation_epoch_end", "on_test_epoch_end"}
KINDS = (lightning_hooks.ModelHooks, lightning_hooks.DataHooks, lightning_hooks.CheckpointHooks)
HOOKS = [name for kind in KINDS for name, hook in vars(kind).items() if inspect.isfunction(hook)]
HOOKS += ["configure_callbacks", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad"]
HOOKS += ["lr_scheduler_step", "backward", "clip_gradients"]
#: The second is an old name of `configure_model`, beside which Lightning refuses it.
NOT_HERE = re.compile(r"_|.*dataloader|configure_sharded_model")


class PlainData(LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=50)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Complete(LightningModule):
    """Trains with cross-entropy."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        return self.net(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1].float())

    def validation_step(self, batch, batch_idx):
        pass

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def recording(calls):
    """:class:`Complete` with all of Lightning's hooks, which note their names in a set."""

    def noting(name):
        original = getattr(Complete, name)

        def hook(self, *args, **kwargs):
            calls.add(name)
            return original(self, *args, **kwargs)

        return hook

    names = [name for name in (*HOOKS, *vars(Complete)) if not NOT_HERE.match(name) and name != "forward"]
    return type("Recording", (Complete,), {name: noting(name) for name in names})


def run_everything(cls, data):
    """Train, resume, validate, test and predict."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=2, **quiet)
    trainer.fit(cls(), data)
    other = Trainer(max_epochs=3, **quiet)
    other.fit(module := cls(), data, ckpt_path=trainer.checkpoint_callback.best_model_path)
    for evaluate in (other.validate, other.test, other.predict):
        evaluate(module, data)


@pytest.mark.filterwarnings("ignore")
def test_all_hooks_are_called_but_those_that_are_replaced(tmp_cwd):
    alone, mixed_in = set(), set()
    run_everything(recording(alone), PlainData())

    class Ours(TPAUCModule, recording(mixed_in)):
        pass

    parts = {f"{part}_dataset": (X, Y) for part in ("val", "test", "predict")}
    run_everything(Ours, PosNegDataModule((X, Y), **parts, num_pos=8, num_neg=24))
    assert len(alone) > 50
    assert alone > REPLACED
    assert alone - mixed_in == REPLACED
    assert mixed_in <= alone


def test_the_page_lists_what_is_replaced():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\| replaced by ours \| (.*?) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == REPLACED
