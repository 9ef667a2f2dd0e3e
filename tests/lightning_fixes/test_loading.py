"""Checkpoints that are loaded to evaluate, and what a later training or saving makes of them."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import CheckpointError
from tests.helpers.problems import DIM, NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer
from tests.helpers.tolerances import assert_close

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
            self.count = pl_module.training_state.average.count


def check_that_a_new_run_starts_from(module, weights):
    first = FirstWeights()
    fit(module, callbacks=[first])
    assert_close(first.weights, weights, "float32")
    assert first.count == 0
    assert module.training_state.batches_seen == STEPS


@pytest.mark.parametrize("how", ["load_from_checkpoint", "validate", "test"])
def test_a_run_after_an_evaluation_starts_from_the_evaluated_weights(saved, how):
    path, average = saved
    module = load(how, path)
    assert_close(module.backbone.weight.detach(), average, "float32")  # a module is loaded before it is made double
    assert module.training_state.batches_seen == 0
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
            "was written with another surrogate",
        ),
        ({"score_activation": "sigmoid"}, "written with another score_activation: identity, but now sigmoid"),
    ],
    ids=["surrogate", "activation"],
)
def test_other_losses_are_refused_when_training_goes_on(saved, change, words):
    path, _ = saved
    with pytest.raises(CheckpointError, match=words):
        make_trainer(max_epochs=2).fit(make_module(**change), loader(make_batches(STEPS)[0]), ckpt_path=path)
    make_trainer().validate(make_module(**change), eval_loader(), ckpt_path=path)


# ---------------------------------------------------------------- weights of other files


def wide(**kwargs):
    return TPAUCModule(
        nn.Sequential(nn.Linear(DIM, 3), nn.Tanh(), nn.Linear(3, 1)), staco(), num_positives=NUM_POS, **kwargs
    )


@pytest.mark.parametrize("what", ["module", "backbone", "compiled"])
def test_init_from_takes_a_state_dict(tmp_path, what):
    torch.manual_seed(7)
    source = wide()
    compiled = torch.compile(source.backbone, backend="eager")
    holder = {"module": source, "backbone": source.backbone, "compiled": compiled}[what]
    torch.save(holder.state_dict(), tmp_path / "w.pt")
    module, seen = wide(init_from=str(tmp_path / "w.pt")), []

    class First(Callback):
        def on_train_start(self, trainer, pl_module):
            seen.extend(p.detach().clone() for p in pl_module.parameters())

    fit(module, callbacks=[First()])
    for found, expected in zip(seen, source.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing"])
def test_load_from_checkpoint_compares_check_sums(saved, tmp_path, damage):
    path, average = saved
    content = bytearray(path.read_bytes())
    content[content.index(average.numpy().tobytes())] ^= 1
    content = content[: {"flipped": len(content), "cut": len(content) // 2}.get(damage, 0)]
    if damage != "missing":
        (tmp_path / "damaged.ckpt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^(The checkpoint .* is not whole: its|There is no checkpoint) [^\n]*$"):
        load("load_from_checkpoint", tmp_path / "damaged.ckpt")
    with path.open("rb") as file:  # what is no path is read as ever
        assert torch.equal(load("load_from_checkpoint", file).backbone.weight, average.float())
    with pytest.raises(TypeError, match="cannot be called on an instance"):
        make_module().load_from_checkpoint(path)


def other_files():
    weights = nn.Linear(2, 1).state_dict()
    return {
        "weights": (lambda file: torch.save(weights, file), "is no checkpoint of Lightning: it holds the keys"),
        "model": (lambda file: torch.save(nn.Linear(2, 1), file), "which only `weights_only=False` reads"),
        "npz": (lambda file: np.savez(file, a=1), "torch can't read .*"),
        "text": (
            lambda file: file.write(b"text"),
            "is not whole: its content can.t be read",
        ),
    }


@pytest.mark.parametrize("how", ["load_from_checkpoint", "test"])
@pytest.mark.parametrize("kind", list(other_files()))
def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path, kind, how):
    write, words = other_files()[kind]
    with (tmp_path / "other.ckpt").open("wb") as file:
        write(file)
    with pytest.raises(CheckpointError, match=rf"^[^\n]*{words}[^\n]*$"):
        load(how, tmp_path / "other.ckpt")


def test_another_trainer_that_evaluated_saves_weights_and_the_first_one_still_all(tmp_path):
    module = make_module()
    trained, evaluated = fit(module), make_trainer()
    evaluated.validate(module, eval_loader())
    evaluated.save_checkpoint(tmp_path / "weights.ckpt")
    held = torch.load(tmp_path / "weights.ckpt", weights_only=True)
    assert torch.equal(held["state_dict"]["backbone.weight"], module.backbone.weight.detach())
    with pytest.raises(CheckpointError, match=r"^The checkpoint to resume from holds no state"):
        fit(make_module(), ckpt_path=tmp_path / "weights.ckpt")
    trained.save_checkpoint(tmp_path / "all.ckpt")
    straight, resumed = make_module(), make_module()
    for continued, path in ((straight, None), (resumed, tmp_path / "all.ckpt")):
        make_trainer(max_epochs=2).fit(continued, loader(make_batches(STEPS)[0]), ckpt_path=path)
    assert torch.equal(straight.backbone.weight, resumed.backbone.weight)


def test_weights_that_do_not_fit_are_one_line(tmp_path):
    path = tmp_path / "a.ckpt"
    fit(wide()).save_checkpoint(path)
    wider = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1))
    deeper = nn.Sequential(nn.Linear(DIM, 3), nn.Tanh(), nn.Linear(3, 1), nn.BatchNorm1d(1))
    with pytest.raises(RuntimeError, match=rf"size mismatch for backbone.0.weight: .*\[3, {DIM}\].*\[4, {DIM}\].*"):
        TPAUCModule.load_from_checkpoint(path, backbone=wider, algorithm=staco())
    lacks = r"\['backbone.3.bias', 'backbone.3.num_batches_tracked', [^\n]*\] do not fit. Use the model that [^\n]*$"
    with pytest.raises(CheckpointError, match=lacks):
        fit(TPAUCModule(deeper, staco(), num_positives=NUM_POS, init_from=str(path)))
