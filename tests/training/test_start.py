"""Weights that were trained before compete with what a run makes of them for the best checkpoint."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*dataloader is not resumable",
    "ignore:Checkpoint directory",
    "ignore:The dirpath has changed",
)

F32 = torch.float32


def make_module(**kwargs):
    torch.manual_seed(0)
    algorithm = STACO(0.4, 0.7, dual_init="zeros", stage_restart="ones")
    return TPAUCModule(LinearScore(), algorithm, lambda p: torch.optim.SGD(p, lr=0.1), num_positives=NUM_POS, **kwargs)


def fit(module, folder, *callbacks, ckpt_path=None, **kwargs):
    saver = ModelCheckpoint(folder, monitor="val/tpauc", mode="max", save_last=True)
    options = {"precision": "32-true", "max_epochs": 2, "enable_checkpointing": True, **kwargs}
    trainer = make_trainer(callbacks=[saver, *callbacks], **options)
    trainer.fit(module, loader(make_batches(4, dtype=F32)[0]), eval_loader(F32), ckpt_path=ckpt_path)
    return trainer, saver


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Checkpoint and area of a run that trained well."""
    folder = tmp_path_factory.mktemp("good")
    trainer, _ = fit(make_module(), folder, max_epochs=6)
    path = folder / "good.ckpt"
    trainer.save_checkpoint(path)
    return path, trainer.lightning_module.training_state.best.value[0]


def published(path):
    return torch.load(path, weights_only=True)["state_dict"]["backbone.weight"]


def worse(**kwargs):
    """Climbs the loss instead of descending."""
    torch.manual_seed(0)
    algorithm = STACO(0.4, 0.7, dual_init="zeros", stage_restart="ones")
    return TPAUCModule(
        LinearScore(), algorithm, lambda p: torch.optim.SGD(p, lr=0.5, maximize=True), num_positives=NUM_POS, **kwargs
    )


@pytest.mark.parametrize("steps", [0, 2, -1])
def test_a_start_that_nothing_beats_is_the_best(good, steps, tmp_path):
    path, area = good
    trainer, saver = fit(worse(init_from=str(path)), tmp_path, num_sanity_val_steps=steps, check_val_every_n_epoch=2)
    assert float(trainer.callback_metrics["val/tpauc"]) < area
    assert float(saver.best_model_score) == pytest.approx(area, abs=1e-6)
    assert torch.equal(published(saver.best_model_path), published(path))
    assert trainer.num_sanity_val_steps == (float("inf") if steps == -1 else steps)


def test_a_start_that_is_beaten_is_not(tmp_path):
    trainer, saver = fit(worse(), tmp_path / "first", max_epochs=1)
    bad = saver.best_model_path
    trainer, saver = fit(make_module(init_from=bad), tmp_path / "second")
    assert float(saver.best_model_score) == pytest.approx(
        max(float(trainer.callback_metrics["val/tpauc"]), float(saver.best_model_score))
    )
    assert not torch.equal(published(saver.best_model_path), published(bad))


def test_a_fresh_model_is_no_candidate(tmp_path):
    _, saver = fit(worse(), tmp_path)
    assert "step=0" not in saver.best_model_path


def test_training_and_other_callbacks_take_no_notice(good, tmp_path):
    path, _ = good
    stopper = EarlyStopping("val/tpauc", mode="max", patience=9)
    module = worse(init_from=str(path))
    fit(module, tmp_path / "watched", stopper)
    unwatched = worse(init_from=str(path))
    trainer = make_trainer(precision="32-true", max_epochs=2)
    trainer.fit(unwatched, loader(make_batches(4, dtype=F32)[0]), eval_loader(F32))
    assert torch.equal(module.backbone.weight, unwatched.backbone.weight)
    assert stopper.best_score.item() < good[1]


def test_the_start_that_was_saved_is_one_to_resume_from(good, tmp_path):
    path, _ = good
    module = worse(init_from=str(path))
    _, saver = fit(module, tmp_path / "straight")
    assert "step=0" in saver.best_model_path
    resumed = worse(init_from=str(path))
    trainer, _ = fit(resumed, tmp_path / "resumed", ckpt_path=saver.best_model_path)
    assert trainer.global_step == 8
    assert trainer.current_epoch == 2
    assert torch.equal(resumed.backbone.weight, module.backbone.weight)


# ---------------------------------------------------------------- and runs that end without a validation


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": 3, "max_epochs": -1},
        {"max_epochs": 2, "check_val_every_n_epoch": 5},
        {"max_epochs": 1, "check_val_every_n_epoch": None, "val_check_interval": 100},
    ],
    ids=["less than an epoch", "fewer epochs than to a validation", "fewer batches than to a validation"],
)
@pytest.mark.parametrize("trained", [False, True], ids=["a new model", "one that was trained"])
def test_a_run_that_no_validation_would_see_holds_one_at_its_end(limits, trained, good, tmp_path):
    module = make_module(init_from=str(good[0]) if trained else None)
    before = module.backbone.weight.detach().clone()
    trainer, saver = fit(module, tmp_path, **limits)
    steps = trainer.global_step
    assert module.training_state.last_validated == steps == module.training_state.batches_seen
    area = float(trainer.validate(module, eval_loader(F32), verbose=False)[0]["val/tpauc"])
    assert module.training_state.best.value[0] == pytest.approx(area, abs=1e-6)
    assert module.operating_point.step == module.training_state.best.step
    assert torch.equal(published(saver.best_model_path), module.backbone.weight)
    if not trained:
        assert module.training_state.best.step == steps
        assert not torch.equal(module.backbone.weight, before)


def test_the_validation_at_the_end_takes_no_random_numbers(tmp_path):
    def train(**options):
        torch.manual_seed(7)
        fit(make_module(), tmp_path, max_steps=3, max_epochs=-1, **options)
        return torch.rand(3)

    assert torch.equal(train(), train(limit_val_batches=0))
