"""Every callback that Lightning ships works in a training of ours, or is refused by its name."""

import json
from pathlib import Path

import lightning.pytorch.callbacks as shipped
import pytest
import torch
from lightning.fabric.utilities.spike import TrainingSpikeException
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import CSVLogger

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import UnsupportedError
from tests.helpers.problems import bare_trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tmp_cwd")]

EPOCHS = 3


def train(*callbacks, **options):
    """A short training, its Trainer and its module."""
    seed_everything(0, verbose=False)
    module = TPAUCModule(torch.nn.Linear(64, 1), STACO(min_tpr=0.5, max_fpr=0.5))
    defaults = {"max_epochs": EPOCHS, "log_every_n_steps": 1}
    trainer = bare_trainer(callbacks=list(callbacks), **{**defaults, **options})
    trainer.fit(module, DigitsDataModule(val_fraction=0.25, num_pos=32, num_neg=96))
    return trainer, module


@pytest.fixture(scope="module")
def weights():
    """What the same training leaves without further callbacks."""
    return train()[1].backbone.weight.detach().clone()


def batch_size(batch):
    return batch.num_pos + batch.num_neg + batch.num_dual_neg if hasattr(batch, "num_pos") else len(batch.target)


# ---------------------------------------------------------------- those that watch


def logged(trainer):
    trainer.logger.finalize("success")
    return Path(trainer.logger.log_dir, "metrics.csv").read_text()


def test_many_at_once_do_their_work_and_leave_the_training_as_it_is(weights):
    seen = []
    stopping = shipped.EarlyStopping("val/tpauc", mode="max", patience=EPOCHS)
    saver = shipped.ModelCheckpoint("saved", monitor="val/tpauc", mode="max")
    monitor = shipped.ThroughputMonitor(batch_size, window_size=2)
    timed = shipped.Timer(duration={"hours": 1})
    several = [
        stopping,
        saver,
        monitor,
        timed,
        shipped.LearningRateMonitor(),
        shipped.DeviceStatsMonitor(cpu_stats=True),
    ]
    several.append(shipped.LambdaCallback(on_validation_end=lambda *_: seen.append(1)))
    trainer, module = train(*several, logger=CSVLogger("."), enable_checkpointing=True)
    assert torch.equal(module.backbone.weight, weights)
    text = logged(trainer)
    for name in ("DeviceStatsMonitor.on_train_batch_start", "lr-DampedAdam", "train/device/samples_per_sec"):
        assert name in text
    assert len(seen) == EPOCHS + 1, "the check before training, and every epoch"
    assert 0 < float(stopping.best_score) <= 1
    assert timed.time_elapsed("train") > 0
    loaded = TPAUCModule.load_from_checkpoint(saver.best_model_path, backbone=torch.nn.Linear(64, 1))
    value = trainer.validate(loaded, trainer.datamodule, verbose=False)[0]["val/tpauc"]
    assert value == pytest.approx(float(saver.best_model_score))


@pytest.mark.parametrize("kind", ["ProgressBar", "RichProgressBar", "TQDMProgressBar"])
def test_bars_and_summaries(kind, weights, capsys, caplog):
    if kind.startswith("Rich"):
        pytest.importorskip("rich")
    shown = getattr(shipped, kind)()
    summary = shipped.RichModelSummary if kind.startswith("Rich") else shipped.ModelSummary
    with caplog.at_level("INFO"):
        trainer, module = train(shown, summary(), enable_progress_bar=True, enable_model_summary=True)
    assert "val/tpauc" in shown.get_metrics(trainer, module)
    assert "65" in capsys.readouterr().out + caplog.text, "parameters of the linear model"
    assert torch.equal(module.backbone.weight, weights)


def test_writers_and_spikes(weights):
    class Writer(shipped.BasePredictionWriter):
        count = 0

        def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            self.count += len(prediction["score"])

    writer = Writer("batch")
    trainer, module = train(writer, shipped.SpikeDetection(warmup=1, atol=100.0))
    trainer.predict(module, DigitsDataModule())
    assert writer.count == 450
    assert torch.equal(module.backbone.weight, weights)
    with pytest.raises(TrainingSpikeException):
        train(shipped.SpikeDetection(warmup=1, rtol=0.0, atol=None, window=2))
    assert json.loads(Path("skip_batches.json").read_text())


TRIED = {
    *("BasePredictionWriter", "Callback", "Checkpoint", "DeviceStatsMonitor", "EarlyStopping", "LambdaCallback"),
    *("LearningRateMonitor", "ModelCheckpoint", "ModelSummary", "OnExceptionCheckpoint", "ProgressBar"),
    *("RichModelSummary", "RichProgressBar", "SpikeDetection", "ThroughputMonitor", "Timer", "TQDMProgressBar"),
}


class Unfreezing(shipped.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        pass

    def finetune_function(self, pl_module, epoch, optimizer):
        pass


#: Each with what its message names.
REFUSED = {
    "BackboneFinetuning": (shipped.BackboneFinetuning, "init_from"),
    "BaseFinetuning": (Unfreezing, "init_from"),
    "BatchSizeFinder": (shipped.BatchSizeFinder, "num_pos"),
    "EMAWeightAveraging": (shipped.EMAWeightAveraging, "StageCallback"),
    "GradientAccumulationScheduler": (lambda: shipped.GradientAccumulationScheduler({0: 2}), "num_pos"),
    "LearningRateFinder": (shipped.LearningRateFinder, "short runs"),
    "ModelPruning": (lambda: shipped.ModelPruning("l1_unstructured", amount=0.5), "torch.nn.utils.prune"),
    "StochasticWeightAveraging": (lambda: shipped.StochasticWeightAveraging(1e-2), "StageCallback"),
    "WeightAveraging": (shipped.WeightAveraging, "StageCallback"),
}


def test_none_is_forgotten():
    # a release that has more fails here: try it, and say on docs/lightning.md what it does
    assert set(shipped.__all__) <= TRIED | set(REFUSED)


@pytest.mark.parametrize("name", [name for name in REFUSED if hasattr(shipped, name)])
def test_is_refused_by_name_with_the_remedy(name):
    make, remedy = REFUSED[name]
    given = make()
    with pytest.raises(UnsupportedError, match=rf"{type(given).__name__}.*{remedy}"):
        train(given)
