"""Training leaves the weights that validated best, also after a kill."""

import warnings

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from tests.helpers.problems import bare_trainer, noisy_labels


class Recorder(Callback):
    """Copies the weights that each validation sees, and its value."""

    def __init__(self):
        self.seen = []

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            weights = [p.detach().clone() for p in pl_module.parameters()]
            areas = tuple(float(trainer.callback_metrics[f"val/{name}"]) for name in ("tpauc", "auroc"))
            self.seen.append((areas, weights))


def problem():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(30, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    return PosNegDataModule(noisy_labels(160, 30, 1.5, 1.2, seed=2), num_pos=8, num_neg=24, val_fraction=0.4), net


def train(algorithm, recorder, keep_best=True, max_epochs=12):
    data, net = problem()
    module = TPAUCModule(net, algorithm, lambda p: torch.optim.Adam(p, lr=0.05))
    callbacks = [StageCallback(keep_best=keep_best), recorder]
    trainer = bare_trainer(max_epochs=max_epochs, callbacks=callbacks, num_sanity_val_steps=0)
    trainer.fit(module, data)
    return trainer, module, data


def test_the_line_of_the_best_weights_names_what_chose_them(caplog):
    """Where every area was 0, the whole area chose."""
    recorder = Recorder()
    with caplog.at_level("INFO"):
        train(STACO(), recorder)
        best = max(value for value, _ in recorder.seen)
        assert f"validated best: val/tpauc {best[0]:.4f} after" in caplog.text
        caplog.clear()
        recorder = Recorder()
        train(STACO(min_tpr=0.99, max_fpr=0.001), recorder)
    areas = [value for value, _ in recorder.seen]
    assert all(area == 0.0 for area, _ in areas)
    best = max(areas)
    assert best != areas[-1]
    assert f"validated best: val/auroc {best[1]:.4f}, as val/tpauc was always 0, after" in caplog.text


@pytest.mark.parametrize("algorithm", [STACO, CrossEntropy])
def test_the_model_holds_the_weights_of_the_best_validation(algorithm):
    recorder = Recorder()
    trainer, module, data = train(algorithm(), recorder)
    values = [value for value, _ in recorder.seen]
    best = values.index(max(values))
    assert best < len(values) - 1  # the network is past its best, or this test shows nothing
    assert all(torch.equal(p, w) for p, w in zip(module.parameters(), recorder.seen[best][1], strict=True))
    assert trainer.validate(module, data, verbose=False)[0]["val/tpauc"] == pytest.approx(values[best][0])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [STACO, CrossEntropy])
def test_training_itself_is_the_same_without(algorithm):
    kept, left = Recorder(), Recorder()
    train(algorithm(), kept)
    _, module, _ = train(algorithm(), left, keep_best=False)
    for (one, weights), (other, others) in zip(kept.seen, left.seen, strict=True):
        assert one == other
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    assert all(torch.equal(p, w) for p, w in zip(module.parameters(), left.seen[-1][1], strict=True))


def test_a_run_without_validation_says_what_is_missing(caplog):
    x, y = noisy_labels(200, 3, 1.0)
    for data, is_missing in [
        (PosNegDataModule((x, y)), True),
        (PosNegDataModule((x, y), (x[y == 0], y[y == 0])), True),
        (PosNegDataModule((x, y), val_fraction=0.3), False),
    ]:
        caplog.clear()
        module = TPAUCModule(torch.nn.Linear(3, 1))
        with caplog.at_level("INFO"), warnings.catch_warnings(action="ignore"):
            bare_trainer(max_epochs=1).fit(module, data)
        assert ("No validation gave a value" in caplog.text) is is_missing is (module.threshold is None)


@pytest.mark.parametrize("monitor", [None, "val/tpauc"])
def test_a_checkpoint_of_other_weights_than_the_model_is_left_with_is_named(tmp_path, caplog, monitor):
    x, y = noisy_labels(200, 3, 1.0)
    torch.manual_seed(0)
    module = TPAUCModule(torch.nn.Linear(3, 1), optimizer=lambda p: torch.optim.SGD(p, lr=3.0))
    saving = ModelCheckpoint(tmp_path, filename="a", monitor=monitor, mode="max" if monitor else "min")
    trainer = bare_trainer(max_epochs=8, callbacks=[saving], enable_checkpointing=True)
    with caplog.at_level("INFO"):
        trainer.fit(module, PosNegDataModule((x, y), val_fraction=0.3, num_pos=4, num_neg=8))
    assert module.training_state.best.step < module.training_state.batches_seen
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]["backbone.weight"]
    assert torch.equal(saved, module.backbone.weight) is (monitor is not None)
    assert "ModelCheckpoint saves them if it has monitor" in caplog.text
