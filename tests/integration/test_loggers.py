"""Weights & Biases (offline) and MLflow (local) show what a run logs, the picture included; so do several at once."""

import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_tpauc import DigitsDataModule, ROCFigure, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import bare_trainer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("tmp_cwd")]


def train(logger):
    pytest.importorskip("matplotlib").use("agg")
    seed_everything(0, verbose=False)
    module = TPAUCModule(torch.nn.Linear(64, 1), STACO(min_tpr=0.5, max_fpr=0.5))
    trainer = bare_trainer(
        max_epochs=3, logger=logger, callbacks=[ROCFigure()], log_every_n_steps=1, enable_checkpointing=True
    )
    trainer.fit(module, DigitsDataModule(val_fraction=0.25, num_pos=32, num_neg=96))
    return trainer


@pytest.mark.slow
def test_mlflow(tmp_cwd):
    mlflow = pytest.importorskip("mlflow")
    from lightning.pytorch.loggers import MLFlowLogger

    logger = MLFlowLogger(
        tracking_uri="sqlite:///runs.db", artifact_location=str(tmp_cwd / "artifacts"), log_model=True
    )
    trainer = train(logger)
    client = mlflow.tracking.MlflowClient("sqlite:///runs.db")
    run = client.get_run(logger.run_id)
    assert run.data.metrics["val/tpauc"] == pytest.approx(float(trainer.callback_metrics["val/tpauc"]))
    history = client.get_metric_history(logger.run_id, "val/tpauc")
    assert [point.step for point in history] == sorted({point.step for point in history})
    assert len(history) == 3
    assert run.data.params["algorithm/min_tpr"] == "0.5"
    pictures = client.list_artifacts(logger.run_id, "val/roc")
    assert len(pictures) == 3
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_wandb_offline(tmp_cwd, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_cwd))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_cwd / "cache"))
    logger = WandbLogger(save_dir=str(tmp_cwd), offline=True, project="tpauc")
    trainer = train(logger)
    summary = dict(logger.experiment.summary)
    config = dict(logger.experiment.config)
    wandb.finish()
    assert summary["val/tpauc"] == pytest.approx(float(trainer.callback_metrics["val/tpauc"]))
    assert any(name.startswith("train/") for name in summary)
    assert "val/roc" in summary
    assert "STACO" in str(config)
    assert list(tmp_cwd.glob("wandb/offline-run-*/*.wandb"))


def test_several_loggers_at_once_show_the_same(tmp_cwd):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    table, board = CSVLogger("table"), TensorBoardLogger("board")
    trainer = train([table, board])
    board.finalize("success")
    with Path(table.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["val/tpauc"]]
    events = event_accumulator.EventAccumulator(board.log_dir)
    events.Reload()
    assert set(events.Tags()["images"]) == {"val/roc", "val/scores"}
    shown = {event.step: event.value for event in events.Scalars("val/tpauc")}
    assert shown == {int(row["step"]): pytest.approx(float(row["val/tpauc"]), abs=1e-6) for row in rows}
    assert len(shown) == 3
    assert shown[max(shown)] == pytest.approx(float(trainer.callback_metrics["val/tpauc"]))
    assert "min_tpr: 0.5" in Path(table.log_dir, "hparams.yaml").read_text(encoding="utf-8")
