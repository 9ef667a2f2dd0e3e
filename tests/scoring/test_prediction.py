"""The file that predictions end up in, from one process and from several."""

import csv

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from lightning_tpauc import PosNegDataModule, PredictionWriter, TPAUCModule
from lightning_tpauc.errors import ArgumentError, TPAUCWarning, UnsupportedError
from tests.helpers.problems import make_trainer

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
def test_every_score_with_all_its_digits(tmp_path, precision, dtype, caplog):
    x, module = make_problem(dtype)
    outputs, _ = predict(module, make_data(x), tmp_path / "deep" / "scores.csv", precision=precision)
    ids, scores = read(tmp_path / "deep" / "scores.csv", dtype)
    assert ids == list(range(NUM))
    assert torch.equal(scores, torch.cat([output["score"] for output in outputs]))
    assert scores.min() < 0, "raw scores, not probabilities"
    assert "scores.csv: no decisions, the model has no threshold" in caplog.text


@pytest.mark.ddp
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_write_what_one_does(tmp_path, world):
    x, module = make_problem()
    predict(module, make_data(x), tmp_path / "one.csv")
    predict(module, make_data(x), tmp_path / "several.csv", devices=world, strategy="ddp_fork")
    assert (tmp_path / "several.csv").read_text() == (tmp_path / "one.csv").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["one.csv", "several.csv"]


def test_the_default_place_is_the_log_folder(tmp_path):
    (x, module), logger = make_problem(), CSVLogger(tmp_path)
    _, callback = predict(module, make_data(x), None, logger=logger)
    assert str(callback.path) == f"{logger.log_dir}/predictions.csv"
    assert read(callback.path)[0] == list(range(NUM))


# ---------------------------------------------------------------- loaders that take examples in another order


class ByLength:
    """A batch sampler without a sampler: longest first, as for padded text."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


def check(module, x, path, rows):
    """The file's two columns are those of one forward pass over the rows, sorted."""
    ids, scores = read(path)
    assert ids == sorted(rows)
    torch.testing.assert_close(scores, module(x[ids]).detach()[:, 0])


SOME = [17, 3, 22, 8, 9]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"shuffle": True, "batch_size": 4}, range(NUM)),
        ({"shuffle": True, "batch_size": 4, "num_workers": 2}, range(NUM)),
        ({"shuffle": True, "batch_size": 4, "drop_last": True}, range(NUM)),  # Lightning keeps the rest of predictions
        ({"sampler": SubsetRandomSampler(SOME), "batch_size": 2}, SOME),
        ({"sampler": SubsetRandomSampler(list(torch.tensor(SOME))), "batch_size": 2}, SOME),
        ({"sampler": SubsetRandomSampler(list(np.array(SOME))), "batch_size": 2}, SOME),
        ({"sampler": range(NUM - 1, 5, -1), "batch_size": 4}, range(6, NUM)),
        # Lightning puts the loader's own sampler, which takes all in order, into such a batch sampler
        ({"batch_sampler": BatchSampler(SubsetRandomSampler(SOME), 2, drop_last=True)}, range(NUM)),
        ({"batch_sampler": ByLength([[5, 1, 9], [2], [20, 3]])}, [5, 1, 9, 2, 20, 3]),
        ({"batch_sampler": ByLength([torch.tensor([5, 1]), torch.tensor([2])])}, [5, 1, 2]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.filterwarnings("ignore:.*custom batch sampler.*")
def test_rows_carry_the_positions_that_the_loader_took(tmp_path, options, rows):
    x, module = make_problem()
    loader = DataLoader(TensorDataset(x), **options)
    predict(module, loader, tmp_path / "scores.csv")
    check(module, x, tmp_path / "scores.csv", rows)


def test_an_example_that_is_taken_twice_has_one_row(tmp_path):
    x, module = make_problem()
    loader = DataLoader(TensorDataset(x), batch_size=3, sampler=[4, 2, 4, 4, 7])
    with pytest.warns(TPAUCWarning, match="2 predictions came for examples that had one already"):
        predict(module, loader, tmp_path / "scores.csv")
    check(module, x, tmp_path / "scores.csv", [2, 4, 7])


def test_no_batch_is_a_file_without_rows(tmp_path):
    _, module = make_problem()
    predict(module, DataLoader(Stream([]), batch_size=4), tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_text() == "example_id,score\n"


class Names(dict, Dataset):
    """Examples under names instead of numbers."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: DataLoader(Stream(x), batch_size=4, num_workers=2), "several workers take turns"),
        (lambda x: DataLoader(TensorDataset(x), batch_size=None, shuffle=True), "the loader makes no batches"),
        (
            lambda x: DataLoader(TensorDataset(x), batch_size=4, collate_fn=lambda items: default_collate(items[:2])),
            "holds 2 scores, but .* 4 examples",
        ),
        (lambda x: DataLoader(Names({"a": x[0], "b": x[1]}), sampler=["b", "a"], batch_size=2), r"as \['b', 'a'\]"),
    ],
    ids=["stream, 2 workers", "shuffled, no batches", "lossy collate_fn", "names"],
)
def test_batches_of_unknown_examples_are_refused(tmp_path, make, message):
    x, module = make_problem()
    with pytest.raises(UnsupportedError, match=message):
        predict(module, make(x), tmp_path / "scores.csv")
    assert not (tmp_path / "scores.csv").exists()


@pytest.mark.ddp
@pytest.mark.parametrize("own", [False, True], ids=["Lightning's sampler", "every process takes all"])
@pytest.mark.filterwarnings("ignore:.*predictions came for examples that had one.*")
def test_several_processes_predict_on_a_plain_loader(tmp_path, own):
    x, module = make_problem()
    loader = DataLoader(TensorDataset(x), batch_size=4, shuffle=True)
    predict(module, loader, tmp_path / "scores.csv", devices=2, strategy="ddp_fork", use_distributed_sampler=not own)
    check(module, x, tmp_path / "scores.csv", range(NUM))


def test_several_loaders_are_refused_before_the_first_batch(tmp_path):
    x, module = make_problem()
    module.predict_step = lambda *_: pytest.fail("predicted for nothing")
    with pytest.raises(UnsupportedError, match=r"one data loader, but there are several. Predict on each"):
        predict(module, [DataLoader(TensorDataset(x))] * 2, tmp_path / "scores.csv")


def test_a_folder_is_refused_before_anything_is_predicted(tmp_path):
    x, module = make_problem()
    module.predict_step = lambda *_: pytest.fail("predicted for nothing")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ArgumentError, match=r"can't be written to `path`, '.*folder.csv': it is a folder"):
        predict(module, make_data(x), tmp_path / "folder.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"can't be written to `path`, '.*file/p.csv': .*(Not a dir|File exists)"):
        predict(module, make_data(x), tmp_path / "file" / "p.csv")
    for name in ("p.parquet", "p.csv.gz", "p", str(tmp_path)):
        with pytest.raises(ArgumentError, match=r"`path` to end in \.csv, .* but got"):
            PredictionWriter(name)


def test_a_full_disk_leaves_the_earlier_file_whole(tmp_path, monkeypatch):
    x, module = make_problem()
    path = tmp_path / "scores.csv"
    predict(module, make_data(x[:5]), path)
    before = path.read_text()

    class Full:
        def __init__(self, file, **_):
            self.file = file

        def writerow(self, row):
            self.file.write("example_id")
            self.file.flush()

        def writerows(self, rows):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning_tpauc.scoring.prediction.csv.writer", Full)
    with pytest.raises(OSError, match="No space left"):
        predict(module, make_data(x), path)
    assert [one.name for one in tmp_path.iterdir()] == ["scores.csv"]
    assert path.read_text() == before


# ---------------------------------------------------------------- what users call the rows


def written(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


NAMES = [f'P{k}, "the {k}th"' if k == 5 else f"P{NUM - k}" for k in range(NUM)]


@pytest.mark.parametrize("how", ["list", "array", "index", "index by name", "column", "pair", "numbers", "dates"])
def test_rows_are_called_what_users_call_them(tmp_path, how):
    pandas = pytest.importorskip("pandas")
    x, module = make_problem()
    table = pandas.DataFrame(x.numpy(), columns=list("abc"))
    names = pandas.Index(NAMES, name="patient")
    dates = pandas.date_range("2026-01-01", periods=NUM)
    data, expected = {
        "list": (PosNegDataModule(predict_dataset=x, ids=NAMES, batch_size=4), NAMES),
        "array": (PosNegDataModule(predict_dataset=x.numpy(), ids=np.array(NAMES), batch_size=4), NAMES),
        "index": (PosNegDataModule(predict_dataset=table.set_axis(names)), NAMES),
        "index by name": (PosNegDataModule(predict_dataset=table.set_axis(names), ids="patient"), NAMES),
        "column": (PosNegDataModule(predict_dataset=table.assign(patient=NAMES), ids="patient"), NAMES),
        "pair": (
            PosNegDataModule(predict_dataset=(table.assign(patient=NAMES), np.zeros(NUM)), ids="patient"),
            NAMES,
        ),
        "numbers": (PosNegDataModule(predict_dataset=table[::-1]), [str(k) for k in range(NUM)][::-1]),
        "dates": (PosNegDataModule(predict_dataset=table.set_axis(dates)), dates.strftime("%Y-%m-%dT%H:%M:%S")),
    }[how]
    predict(module, data, tmp_path / "scores.csv")
    rows = written(tmp_path / "scores.csv")
    assert list(rows[0]) == ["example_id", "id", "score"]
    assert [row["id"][:19] if how == "dates" else row["id"] for row in rows] == list(expected)
    assert [int(row["example_id"]) for row in rows] == list(range(NUM))
    with torch.no_grad():
        scores = module.raw_scores(x.flip(0) if how == "numbers" else x)
    torch.testing.assert_close(torch.tensor([float(row["score"]) for row in rows]), scores)


def test_a_table_that_counts_its_rows_has_no_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, module = make_problem()
    predict(module, PosNegDataModule(predict_dataset=pandas.DataFrame(x.numpy())), tmp_path / "scores.csv")
    assert list(written(tmp_path / "scores.csv")[0]) == ["example_id", "score"]
