"""The file that predictions end up in, from one process and from several."""

import csv

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.errors import UnsupportedError
from tests.fixed import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*")

NUM = 23


def make_problem(dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(0)
    x = torch.randn(NUM, 3, generator=generator, dtype=dtype)
    return x, TPAUCModule(nn.Linear(3, 1, dtype=dtype), score_activation="sigmoid")


def make_data(x):
    return PosNegDataModule(predict_dataset=x, batch_size=4)


def read(path, dtype=torch.float32):
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"example_id", "score"}
    return [int(row["example_id"]) for row in rows], torch.tensor([float(row["score"]) for row in rows], dtype=dtype)


def predict(module, data, path, **kwargs):
    callback = PredictionWriter(None if path is None else str(path))
    trainer = make_trainer(**{"precision": "32-true", **kwargs}, callbacks=[callback])
    return trainer.predict(module, data, return_predictions=kwargs.get("strategy") is None), callback


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", torch.float32), ("64-true", torch.float64)])
def test_every_score_with_all_its_digits(tmp_path, precision, dtype):
    x, module = make_problem(dtype)
    outputs, _ = predict(module, make_data(x), tmp_path / "deep" / "scores.csv", precision=precision)
    ids, scores = read(tmp_path / "deep" / "scores.csv", dtype)
    assert ids == list(range(NUM))
    assert torch.equal(scores, torch.cat([output["score"] for output in outputs]))
    assert scores.min() < 0, "raw scores, not probabilities"


@pytest.mark.ddp
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_write_what_one_does(tmp_path, world):
    x, module = make_problem()
    predict(module, make_data(x), tmp_path / "one.csv")
    predict(module, make_data(x), tmp_path / "several.csv", devices=world, strategy="ddp_fork")
    assert (tmp_path / "several.csv").read_text() == (tmp_path / "one.csv").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["one.csv", "several.csv"]


def test_the_default_place_is_the_log_folder(tmp_path):
    x, module = make_problem()
    logger = CSVLogger(tmp_path)
    _, callback = predict(module, make_data(x), None, logger=logger)
    assert str(callback.path) == f"{logger.log_dir}/predictions.csv"
    assert read(callback.path)[0] == list(range(NUM))


def test_a_second_run_replaces_the_first(tmp_path):
    x, module = make_problem()
    callback = PredictionWriter(str(tmp_path / "scores.csv"))
    trainer = make_trainer(precision="32-true", callbacks=[callback])
    for rows in (NUM, 7):
        trainer.predict(module, make_data(x[:rows]))
        assert read(tmp_path / "scores.csv")[0] == list(range(rows))


def test_plain_loaders_are_numbered_in_one_process(tmp_path):
    x, module = make_problem()
    predict(module, DataLoader(TensorDataset(x), batch_size=4), tmp_path / "scores.csv")
    ids, scores = read(tmp_path / "scores.csv")
    assert ids == list(range(NUM))
    torch.testing.assert_close(scores, module(x).detach()[:, 0])


def test_plain_loaders_are_refused_in_several(tmp_path, monkeypatch):
    x, module = make_problem()
    monkeypatch.setattr("lightning_tpauc.prediction.world_size", lambda: 2)
    with pytest.raises(UnsupportedError, match="the batches do not say which examples they hold"):
        predict(module, DataLoader(TensorDataset(x), batch_size=4), tmp_path / "scores.csv")


def test_several_loaders_are_refused(tmp_path):
    x, module = make_problem()
    with pytest.raises(
        UnsupportedError, match=r"one data loader, but there are several. Predict on one after the othe"
    ):
        predict(module, [DataLoader(TensorDataset(x))] * 2, tmp_path / "scores.csv")
