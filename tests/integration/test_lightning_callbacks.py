"""Every callback that Lightning ships works in a training of ours, or is refused by its name."""

import json
from pathlib import Path

import lightning.pytorch.callbacks as shipped
import pytest
import torch
from lightning.fabric.utilities.spike import TrainingSpikeException
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import UnsupportedError
from tests.helpers.problems import bare_trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tmp_cwd")]

EPOCHS = 3


class StopError(Exception):
    pass


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


# ---------------------------------------------------------------- those that watch: each does its work


def logged(trainer):
    trainer.logger.finalize("success")
    return Path(trainer.logger.log_dir, "metrics.csv").read_text()


class Counting(Callback):
    count = 0

    def on_train_batch_end(self, *_):
        self.count += 1


def callback():
    counting = Counting()
    trainer, module = train(counting)
    assert counting.count == trainer.global_step > 0
    return module


def checkpoint():
    class Saver(shipped.Checkpoint):
        def on_train_end(self, trainer, pl_module):
            trainer.save_checkpoint("mine.ckpt")

    _, module = train(Saver(), enable_checkpointing=True)
    loaded = TPAUCModule.load_from_checkpoint("mine.ckpt", backbone=torch.nn.Linear(64, 1))
    assert torch.equal(loaded.backbone.weight, module.backbone.weight)
    return module


def device_stats_monitor():
    trainer, module = train(shipped.DeviceStatsMonitor(cpu_stats=True), logger=CSVLogger("."))
    assert "DeviceStatsMonitor.on_train_batch_start" in logged(trainer)
    return module


def early_stopping():
    stopping = shipped.EarlyStopping("val/tpauc", mode="max", patience=EPOCHS)
    _, module = train(stopping)
    assert 0 < float(stopping.best_score) <= 1
    assert stopping.wait_count < EPOCHS
    return module


def lambda_callback():
    seen = []
    _, module = train(shipped.LambdaCallback(on_validation_end=lambda *_: seen.append(1)))
    assert len(seen) == EPOCHS + 1, "the check before training, and every epoch"
    return module


def learning_rate_monitor():
    trainer, module = train(shipped.LearningRateMonitor(), logger=CSVLogger("."))
    assert "lr-DampedAdam" in logged(trainer)
    return module


def model_checkpoint():
    saver = shipped.ModelCheckpoint("saved", monitor="val/tpauc", mode="max")
    trainer, module = train(saver, enable_checkpointing=True)
    loaded = TPAUCModule.load_from_checkpoint(saver.best_model_path, backbone=torch.nn.Linear(64, 1))
    value = trainer.validate(loaded, trainer.datamodule, verbose=False)[0]["val/tpauc"]
    assert value == pytest.approx(float(saver.best_model_score))
    return module


def on_exception_checkpoint():
    class Fail(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 4:
                raise StopError

    saver = shipped.OnExceptionCheckpoint(".", filename="broken")
    with pytest.raises(StopError):
        train(saver, Fail(), enable_checkpointing=True)
    seed_everything(1, verbose=False)
    module = TPAUCModule(torch.nn.Linear(64, 1), STACO(min_tpr=0.5, max_fpr=0.5))
    trainer = bare_trainer(max_epochs=EPOCHS)
    data = DigitsDataModule(val_fraction=0.25, num_pos=32, num_neg=96)
    trainer.fit(module, data, ckpt_path="broken.ckpt")
    return module


def summary(kind):
    def check(capsys, caplog):
        with caplog.at_level("INFO"):
            _, module = train(kind(max_depth=2), enable_model_summary=True)
        assert "65" in capsys.readouterr().out + caplog.text, "parameters of the linear model"
        return module

    return check


def bar(kind):
    def check():
        shown = kind()
        trainer, module = train(shown, enable_progress_bar=True)
        assert "val/tpauc" in shown.get_metrics(trainer, module)
        return module

    return check


def prediction_writer():
    class Writer(shipped.BasePredictionWriter):
        count = 0

        def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
            self.count += len(prediction["score"])

    writer = Writer("batch")
    trainer, module = train(writer)
    trainer.predict(module, DigitsDataModule())
    assert writer.count == 450
    return module


def spike_detection():
    class Watch(shipped.SpikeDetection):
        losses = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            self.losses += 1

    watch = Watch(warmup=1, atol=100.0)
    trainer, module = train(watch)
    assert watch.losses == trainer.global_step
    with pytest.raises(TrainingSpikeException):
        train(shipped.SpikeDetection(warmup=1, rtol=0.0, atol=None, window=2))
    assert json.loads(Path("skip_batches.json").read_text())
    return module


def throughput_monitor():
    monitor = shipped.ThroughputMonitor(batch_size, window_size=2)
    trainer, module = train(monitor, logger=CSVLogger("."))
    assert "train/device/samples_per_sec" in logged(trainer)
    return module


def timer():
    timed = shipped.Timer(duration={"hours": 1})
    _, module = train(timed)
    assert timed.time_elapsed("train") > 0
    return module


WATCHING = {
    "BasePredictionWriter": prediction_writer,
    "Callback": callback,
    "Checkpoint": checkpoint,
    "DeviceStatsMonitor": device_stats_monitor,
    "EarlyStopping": early_stopping,
    "LambdaCallback": lambda_callback,
    "LearningRateMonitor": learning_rate_monitor,
    "ModelCheckpoint": model_checkpoint,
    "ModelSummary": summary(shipped.ModelSummary),
    "OnExceptionCheckpoint": on_exception_checkpoint,
    "ProgressBar": bar(shipped.ProgressBar),
    "RichModelSummary": summary(shipped.RichModelSummary),
    "RichProgressBar": bar(shipped.RichProgressBar),
    "SpikeDetection": spike_detection,
    "ThroughputMonitor": throughput_monitor,
    "Timer": timer,
    "TQDMProgressBar": bar(shipped.TQDMProgressBar),
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
    assert not set(WATCHING) & set(REFUSED)
    # a release that has more fails here: try it, and say on docs/lightning.md what it does
    assert set(shipped.__all__) <= set(WATCHING) | set(REFUSED)


@pytest.mark.parametrize("name", [name for name in WATCHING if hasattr(shipped, name)])
def test_works_and_leaves_the_training_as_it_is(name, weights, request):
    if name.startswith("Rich"):
        pytest.importorskip("rich")
    check = WATCHING[name]
    needs = check.__code__.co_varnames[: check.__code__.co_argcount]
    module = check(*(request.getfixturevalue(fixture) for fixture in needs))
    assert torch.equal(module.backbone.weight, weights)


@pytest.mark.parametrize("name", [name for name in REFUSED if hasattr(shipped, name)])
def test_is_refused_by_name_with_the_remedy(name):
    make, remedy = REFUSED[name]
    given = make()
    with pytest.raises(UnsupportedError, match=rf"{type(given).__name__}.*{remedy}"):
        train(given)
