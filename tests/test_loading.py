"""Checkpoints that are loaded to evaluate, and what a later training or saving makes of them."""

import math

import pytest
import torch
from lightning.pytorch import Callback

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.errors import CheckpointError
from tests.fixed import NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer
from tests.tolerances import assert_close

STEPS = 6


def staco(**kwargs):
    return STACO(**{"dual_init": "zeros", "stage_restart": "ones", **kwargs})


def make_module(algorithm=None, lr=0.1, **kwargs):
    return TPAUCModule(
        LinearScore(),
        algorithm or staco(),
        optimizer=lambda p: torch.optim.SGD(p, lr=lr),
        num_positives=NUM_POS,
        **kwargs,
    )


def fit(module, seed=1, steps=STEPS, callbacks=(), **kwargs):
    trainer = make_trainer(callbacks=list(callbacks))
    trainer.fit(module, loader(make_batches(steps, seed=seed)[0]), **kwargs)
    return trainer


@pytest.fixture
def saved(tmp_path):
    """A finished run's checkpoint and its weights, the average."""
    module = make_module()
    trainer = fit(module)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    return tmp_path / "first.ckpt", module.backbone.weight.detach().clone()


def load(how, path, algorithm=None):
    if how == "load_from_checkpoint":
        return TPAUCModule.load_from_checkpoint(
            path, backbone=LinearScore(), algorithm=algorithm or staco(), num_positives=NUM_POS
        )
    module = make_module(algorithm)
    getattr(make_trainer(), how)(module, eval_loader(), ckpt_path=path)
    return module


class FirstWeights(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.weights = pl_module.backbone.weight.detach().clone()
            self.count = pl_module.iterates.count


def check_that_a_new_run_starts_from(module, weights):
    first = FirstWeights()
    fit(module, callbacks=[first])
    assert_close(first.weights, weights, "float32")
    assert first.count == 0
    assert module.batches_seen == STEPS


@pytest.mark.parametrize("how", ["load_from_checkpoint", "validate", "test"])
def test_a_run_after_an_evaluation_starts_from_the_evaluated_weights(saved, how):
    path, average = saved
    module = load(how, path)
    assert_close(module.backbone.weight.detach(), average, "float32")  # a module is loaded before it is made double
    assert module.batches_seen == 0
    check_that_a_new_run_starts_from(module, average)


class Fail(Callback):
    """Lets a run fail after its checkpoint was loaded and before training starts."""

    def on_fit_start(self, trainer, pl_module):
        raise KeyError


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_resume_that_failed_before_training_started_leaves_nothing_to_a_new_run(saved, evaluates):
    path, average = saved
    module = make_module()
    with pytest.raises(KeyError):
        make_trainer(callbacks=[Fail()]).fit(module, loader(make_batches(STEPS)[0]), ckpt_path=path)
    if evaluates:
        make_trainer().validate(module, eval_loader(), ckpt_path=path)
    else:
        module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    check_that_a_new_run_starts_from(module, average)


def test_another_method_may_train_what_was_evaluated(saved):
    path, average = saved
    module = load("validate", path, CrossEntropy())
    first = FirstWeights()
    fit(module, callbacks=[first])
    assert_close(first.weights, average, "float32")


def test_the_first_run_after_an_evaluation_takes_init_from(saved, tmp_path):
    path, average = saved
    other = make_module()
    trainer = fit(other, seed=5)
    trainer.save_checkpoint(tmp_path / "other.ckpt")
    module = make_module(init_from=str(path))
    make_trainer().validate(module, eval_loader(), ckpt_path=tmp_path / "other.ckpt")
    assert_close(module.backbone.weight.detach(), other.backbone.weight.detach(), "float32")
    first = FirstWeights()
    fit(module, callbacks=[first])
    assert_close(first.weights, average, "float32")


def test_a_second_run_goes_on_where_the_first_ended_and_not_from_init_from(saved):
    path, average = saved
    module = make_module(init_from=str(path))
    fit(module, seed=3)
    after = module.backbone.weight.detach().clone()
    assert not torch.equal(after, average)
    first = FirstWeights()
    fit(module, seed=4, callbacks=[first])
    assert torch.equal(first.weights, after)


def test_what_is_saved_after_loading_other_weights_are_these(saved, tmp_path):
    path, average = saved
    module = make_module()
    trainer = fit(module, seed=7)
    assert not torch.equal(module.backbone.weight.detach(), average)
    trainer.validate(module, eval_loader(), ckpt_path=path)
    trainer.save_checkpoint(tmp_path / "second.ckpt")
    second = torch.load(tmp_path / "second.ckpt", weights_only=True)
    assert_close(second["state_dict"]["backbone.weight"], average, "float32")
    with pytest.raises(CheckpointError, match="holds no state of lightning_tpauc"):
        fit(make_module(), ckpt_path=tmp_path / "second.ckpt")


def test_weights_that_are_changed_after_training_are_saved_as_they_are(tmp_path):
    module = make_module()
    trainer = fit(module)
    with torch.no_grad():
        module.backbone.weight.fill_(7.0)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(state["backbone.weight"], module.backbone.weight.detach())


def test_a_resumed_run_keeps_the_dual_step_sizes_whatever_the_factory_says(saved):
    path, _ = saved
    scales = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            scales.append((pl_module.algorithm.step_scale, trainer.optimizers[0].param_groups[0]["lr"]))

    module = make_module(lr=0.01)
    trainer = make_trainer(max_epochs=2, callbacks=[Watch()])
    trainer.fit(module, loader(make_batches(STEPS)[0]), ckpt_path=path)
    assert scales == [(1.0, 0.1)] * STEPS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"algorithm": staco(surrogate="logistic")},
            r"`surrogate` was changed \(its kind, margin or scale\) since",
        ),
        ({"algorithm": staco(margin=0.6)}, r"`surrogate` was changed \(its kind, margin or scale\) since"),
        ({"score_activation": "sigmoid"}, "`score_activation` was changed from 'identity' to 'sigmoid' since"),
    ],
    ids=["surrogate", "margin", "activation"],
)
def test_other_losses_are_refused_when_training_goes_on(saved, change, words):
    path, _ = saved
    with pytest.raises(CheckpointError, match=words):
        make_trainer(max_epochs=2).fit(make_module(**change), loader(make_batches(STEPS)[0]), ckpt_path=path)
    make_trainer().validate(make_module(**change), eval_loader(), ckpt_path=path)


def test_surrogates_that_another_machine_rounds_otherwise_are_the_same(saved):
    """exp and log are right to the last bit but one, and their last one depends on the processor."""
    path, _ = saved
    checkpoint = torch.load(path, weights_only=True)
    written = checkpoint["lightning_tpauc"]["objective"]["surrogate"]
    assert max(written) > 0
    checkpoint["lightning_tpauc"]["objective"]["surrogate"] = [math.nextafter(value, math.inf) for value in written]
    torch.save(checkpoint, path)
    module = make_module()
    make_trainer(max_epochs=2).fit(module, loader(make_batches(STEPS)[0]), ckpt_path=path)
    assert module.batches_seen == 2 * STEPS
