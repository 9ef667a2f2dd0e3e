"""Every hook of Lightning overridden without ``super()``: weights, checkpoints and what is logged stay as they are."""

import inspect
import math

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from lightning_tpauc import FiniteGuard, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, STACO
from lightning_tpauc.errors import UnsupportedError
from tests.helpers.problems import NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*`.*_dataloader`.*",
    "ignore:Checkpoint directory",
    "ignore:.*dataloader is not resumable",
    "ignore:The dirpath has changed",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:val/tpauc is 0",
)

STEPS, EPOCHS, F32 = 4, 2, torch.float32
ALGORITHMS = {
    "STACO1": lambda: STACO(dual_init="zeros", stage_restart="ones"),
    "STACO2": lambda: STACO(dual_init="zeros", stage_restart="ones", gamma=5.0),
    "PAUCI": lambda: PAUCI(),
}

#: What a hook that must return something, or do something, is overridden with; the others do nothing.
BODIES = {
    "configure_callbacks": lambda self: [Recorder()],
    "configure_optimizers": lambda self: torch.optim.SGD(self.parameters(), lr=0.1),
    "optimizer_step": lambda self, epoch, batch_idx, optimizer, closure: optimizer.step(closure=closure),
    "optimizer_zero_grad": lambda self, epoch, batch_idx, optimizer: optimizer.zero_grad(),
    "lr_scheduler_step": lambda self, scheduler, metric: scheduler.step(),
    "configure_gradient_clipping": lambda self, optimizer, value, algorithm: torch.nn.utils.clip_grad_norm_(
        [p for group in optimizer.param_groups for p in group["params"]], value
    ),
    "backward": lambda self, loss: loss.backward(),
    "forward": lambda self, inputs: self.backbone(inputs),
    "transfer_batch_to_device": lambda self, batch, device, dataloader_idx: batch,
    "on_before_batch_transfer": lambda self, batch, dataloader_idx: batch,
    "on_after_batch_transfer": lambda self, batch, dataloader_idx: batch,
    "train_dataloader": lambda self: loader(make_batches(STEPS, dtype=F32)[0]),
    "val_dataloader": lambda self: eval_loader(F32),
    "test_dataloader": lambda self: eval_loader(F32),
    "predict_dataloader": lambda self: eval_loader(F32),
    "on_validation_model_eval": lambda self: self.eval(),
    "on_validation_model_train": lambda self: self.train(),
    "on_validation_model_zero_grad": lambda self: self.zero_grad(),
    "on_test_model_eval": lambda self: self.eval(),
    "on_test_model_train": lambda self: self.train(),
    "on_predict_model_eval": lambda self: self.eval(),
    "predict_step": lambda self, batch, batch_idx: {"score": self(batch.inputs)},
}
STEP_HOOKS = ("forward", "validation_step", "test_step", "predict_step", "configure_callbacks", "configure_optimizers")
FURTHER = ("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping", "backward")
HOOKS = sorted(
    {name for kind in (ModelHooks, DataHooks, CheckpointHooks) for name, _ in inspect.getmembers(kind, callable)}
    & {name for name in dir(LightningModule) if not name.startswith("_") and name != "configure_sharded_model"}
    | {*STEP_HOOKS, *FURTHER}
)


class Recorder(Callback):
    pass


def decay(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)


def subclass(name, mixed_in=False, base=TPAUCModule):
    """A class whose hook ``name`` does no more than it must; of a class in front of ours, if ``mixed_in``."""
    calls = []
    body = BODIES.get(name, lambda self, *args, **kwargs: None)

    def hook(self, *args, **kwargs):
        calls.append(name)
        return body(self, *args, **kwargs)

    hook.__signature__ = inspect.signature(body)
    hook.__name__ = name
    if mixed_in:
        front = type("Front", (), {name: hook})
        return type("Mine", (front, base), {}), calls
    return type("Mine", (base,), {name: hook}), calls


#: What is compared are the last weights.
STAGES = {"every_n_steps": 3, "keep_best": False}


def quiet(**kwargs):
    return make_trainer(precision="32-true", **kwargs)


def make(kind, algorithm, **kwargs):
    torch.manual_seed(0)
    return kind(
        LinearScore(),
        ALGORITHMS[algorithm](),
        lambda p: torch.optim.SGD(p, lr=0.1),
        None if kwargs.pop("plain", False) else decay,
        lr_scheduler_interval="step",
        gradient_clip_val=0.05,
        score_activation="sigmoid" if algorithm == "PAUCI" else "identity",
        num_positives=NUM_POS,
        warmup=0.0,
        **kwargs,
    )


def train(module, folder, ckpt_path=None, epochs=EPOCHS):
    saver = ModelCheckpoint(folder, filename="{epoch}-{step}", every_n_train_steps=4, save_top_k=-1)
    trainer = quiet(max_epochs=epochs, callbacks=[saver, StageCallback(**STAGES)], enable_checkpointing=True)
    trainer.fit(module, loader(make_batches(STEPS, dtype=F32)[0]), eval_loader(F32), ckpt_path=ckpt_path)
    return trainer


def outcome(module, trainer, folder):
    """All that a run leaves: weights, metrics, and what its checkpoints publish and keep."""
    saved = {}
    for path in sorted(folder.glob("*.ckpt")):
        content = torch.load(path, weights_only=True)
        saved[path.name] = content["state_dict"], content["lightning_tpauc"], content["lightning_tpauc_rectangle"]
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
    return {"weight": module.backbone.weight.detach().clone(), "metrics": metrics, "saved": saved}


def assert_equal(first, second):
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)  # scores that were not seen are nan
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            # no step draws random numbers; who writes an optimizer does not say its rate before any schedule
            if name not in ("random_state", "base_lr"):
                assert_equal(first[name], second[name])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    elif isinstance(first, float) and math.isnan(first):  # what is not known yet
        assert math.isnan(second)
    else:
        assert first == second


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    found = {}
    for name in ALGORITHMS:
        for no_schedule in (False, True):
            folder = tmp_path_factory.mktemp("plain")
            module = make(TPAUCModule, name, plain=no_schedule)
            found[name, no_schedule] = outcome(module, train(module, folder), folder)
    return found


def test_the_runs_that_are_compared_clip_pull_and_estimate(plain, tmp_path):
    """Without any of the three, weights come out otherwise: the comparisons below would see what is missing."""
    for name in ("STACO2", "PAUCI"):
        module = make(TPAUCModule, name)
        module.gradient_clip_val = None
        train(module, tmp_path / name)
        assert not torch.equal(module.backbone.weight, plain[name, False]["weight"])
    assert not torch.equal(plain["STACO1", False]["weight"], plain["STACO2", False]["weight"])
    assert {"val/tpauc", "val/auroc"} <= plain["STACO1", False]["metrics"].keys()
    assert len(plain["STACO1", False]["saved"]) == 2


#: Where ours has a part, all methods are tried; elsewhere one is enough.
OURS = [name for name in HOOKS if getattr(TPAUCModule, name) is not getattr(LightningModule, name)]
CASES = [
    *((name, False, algorithm) for name in OURS for algorithm in ALGORITHMS),
    *((name, True, "STACO1") for name in OURS),
    *((name, False, "STACO2") for name in HOOKS if name not in OURS),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mixed_in", "algorithm"), CASES, ids=[f"{n}{'-in front' * m}-{a}" for n, m, a in CASES]
)
def test_a_hook_without_super_changes_nothing(name, mixed_in, algorithm, plain, tmp_path):
    no_schedule = name == "configure_optimizers"
    kind, calls = subclass(name, mixed_in)
    module = make(kind, algorithm, plain=no_schedule)
    trainer = train(module, tmp_path)
    expected = dict(plain[algorithm, no_schedule])
    assert_equal(outcome(module, trainer, tmp_path), expected)
    if name not in OURS:
        return
    # resumed after the first epoch, amid the second stage
    path = tmp_path / "epoch=0-step=4.ckpt"
    again = make(kind, algorithm, plain=no_schedule)
    trainer = train(again, tmp_path / "resumed", ckpt_path=path)
    assert trainer.global_step == again.batches_seen == STEPS * EPOCHS
    assert torch.equal(again.backbone.weight, expected["weight"])
    # tested by what was published
    fresh = make(kind, algorithm, plain=no_schedule)
    (result,) = quiet().test(fresh, eval_loader(F32), ckpt_path=path, verbose=False)
    assert torch.equal(fresh.backbone.weight, torch.load(path, weights_only=True)["state_dict"]["backbone.weight"])
    assert "test/tpauc" in result
    quiet().predict(fresh, eval_loader(F32))
    assert calls


def test_hooks_that_call_super_do_our_part_once(tmp_path, plain):
    done = []

    class Counting(TPAUCModule):
        def on_before_optimizer_step(self, optimizer):
            before = self.backbone.weight.grad.clone()
            super().on_before_optimizer_step(optimizer)
            done.append(not torch.equal(before, self.backbone.weight.grad))

    class Further(Counting):
        def on_before_optimizer_step(self, optimizer):
            super().on_before_optimizer_step(optimizer)

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)

    module = make(Further, "STACO2")
    trainer = train(module, tmp_path)
    assert all(done[1:])
    assert len(done) == STEPS * EPOCHS
    assert_equal(outcome(module, trainer, tmp_path), plain["STACO2", False])


def test_a_hook_without_super_finds_the_gradients_of_the_step(tmp_path):
    norms = []

    class Logging(TPAUCModule):
        def on_before_optimizer_step(self, optimizer):
            norms.append(float(self.backbone.weight.grad.norm()))

    train(make(Logging, "STACO1"), tmp_path)
    assert len(norms) == STEPS * EPOCHS
    assert max(norms) <= 0.05 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("kind", "parent"), [(TPAUCModule, LightningModule), (StageCallback, Callback), (FiniteGuard, Callback)]
)
def test_all_of_our_hooks_are_kept(kind, parent):
    """But for those that a subclass overrides because it wants something else."""
    hooks = {name for name in dir(kind) if name.startswith("on_") or name in HOOKS or name == "setup"}
    ours = {name for name in hooks if getattr(kind, name) is not getattr(parent, name)}
    kept = {name for name in ours if hasattr(getattr(kind, name), "duty")}
    assert ours - kept <= {"forward", "predict_step", "configure_optimizers"}
    assert len(kept) >= 4


# ---------------------------------------------------------------- callbacks of ours that are subclassed


CALLBACK_HOOKS = [
    (kind, name)
    for kind in (StageCallback, FiniteGuard)
    for name in vars(kind)
    if name == "setup" or name.startswith("on_")
]


@pytest.mark.parametrize(("kind", "name"), CALLBACK_HOOKS, ids=lambda value: getattr(value, "__name__", value))
def test_a_callback_hook_without_super_changes_nothing(kind, name, plain, tmp_path):
    calls = []
    mine = type("Mine", (kind,), {name: lambda self, *args, **kwargs: calls.append(name)})
    module = make(TPAUCModule, "STACO2")
    saver = ModelCheckpoint(tmp_path, filename="{epoch}-{step}", every_n_train_steps=4, save_top_k=-1)
    own = [mine(**STAGES)] if kind is StageCallback else [mine(), StageCallback(**STAGES)]
    trainer = quiet(max_epochs=EPOCHS, callbacks=[saver, *own], enable_checkpointing=True)
    trainer.fit(module, loader(make_batches(STEPS, dtype=F32)[0]), eval_loader(F32))
    assert_equal(outcome(module, trainer, tmp_path), plain["STACO2", False])
    assert calls or name == "on_exception"


# ---------------------------------------------------------------- the training step


@pytest.mark.parametrize(
    "result",
    [lambda loss: None, lambda loss: {"loss": loss, "more": 5}, lambda loss: {"more": 5}, lambda loss: loss * 7],
    ids=["None", "dict", "dict without loss", "another loss"],
)
def test_what_a_training_step_returns_is_its_own_business(result, plain, tmp_path):
    class Mine(TPAUCModule):
        def training_step(self, batch, batch_idx):
            return result(super().training_step(batch, batch_idx))

    module = make(Mine, "STACO2")
    trainer = train(module, tmp_path)
    assert_equal(outcome(module, trainer, tmp_path), plain["STACO2", False])


def test_a_training_step_of_ones_own_is_refused(tmp_path):
    class Own(TPAUCModule):
        def training_step(self, batch, batch_idx):
            return self(batch.inputs).mean()

    class Unpacks(TPAUCModule):
        def training_step(self, batch, batch_idx):
            inputs, target = batch
            return (self(inputs) - target).mean()

    for kind in (Own, Unpacks):
        words = rf"{kind.__name__}.training_step, which {kind.__name__} uses, did not call `super\(\).training_step\("
        with pytest.raises(UnsupportedError, match=words):
            train(make(kind, "STACO1"), tmp_path)


def test_a_training_step_that_calls_ours_twice_is_refused(tmp_path):
    class Twice(TPAUCModule):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            return super().training_step(batch, batch_idx)

    with pytest.raises(UnsupportedError, match=r"Twice.training_step called `super\(\).training_step\(...\)` 2 times"):
        train(make(Twice, "STACO1"), tmp_path)


def test_errors_of_a_training_step_stay_what_they_are(tmp_path):
    class Fails(TPAUCModule):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise KeyError(batch_idx)
            return super().training_step(batch, batch_idx)

    with pytest.raises(KeyError, match="2"):
        train(make(Fails, "STACO1"), tmp_path)


# ---------------------------------------------------------------- hooks that no subclass holds


def test_hooks_that_are_assigned_later_are_refused_by_name(tmp_path, monkeypatch):
    module = make(TPAUCModule, "STACO1")
    module.on_before_optimizer_step = lambda optimizer: None
    with pytest.raises(
        UnsupportedError, match=r"`TPAUCModule.on_before_optimizer_step` was replaced by .*<lambda>, so"
    ):
        train(module, tmp_path)
    stages = StageCallback()
    stages.on_train_start = print
    with pytest.raises(UnsupportedError, match=r"`StageCallback.on_train_start` was replaced by print, so"):
        quiet(callbacks=[stages]).fit(make(TPAUCModule, "STACO1"), loader(make_batches(2, dtype=F32)[0]))
    module = make(TPAUCModule, "STACO1")
    module.configure_callbacks = list
    with pytest.raises(UnsupportedError, match="The callbacks of TPAUCModule did not prepare this training"):
        quiet().fit(module, loader(make_batches(2, dtype=F32)[0]))
    monkeypatch.setattr(TPAUCModule, "on_save_checkpoint", lambda self, checkpoint: None)
    with pytest.raises(UnsupportedError, match=r"`TPAUCModule.on_save_checkpoint` was replaced"):
        train(make(TPAUCModule, "STACO1"), tmp_path)
