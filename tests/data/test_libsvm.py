"""LIBSVM data modules."""

import numpy as np
import pytest
import torch

from lightning_tpauc.data import source_files as files
from lightning_tpauc.data.libsvm import LIBSVMDataModule
from lightning_tpauc.errors import DataError
from tests.helpers.tolerances import assert_close

RNG = np.random.default_rng(0)
X = np.round(RNG.normal(3.0, 2.0, (200, 3)), 3)
X[:, 2] = 5.0  # constant
Y = np.where(np.arange(200) % 4 == 1, 1, -1)


def write(path, x, labels):
    rows = (" ".join(f"{j + 1}:{value}" for j, value in enumerate(row)) for row in x)
    path.write_text("".join(f"{label} {row}\n" for label, row in zip(labels, rows, strict=True)))


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "train.txt", X[:150], Y[:150])
    write(tmp_path / "test.txt", X[150:], Y[150:])
    write(tmp_path / "all.txt", X, Y)
    return str(tmp_path)


def inputs_of(loader):
    return torch.cat([batch.inputs for batch in loader])


def module(root, *files, **kwargs):
    return LIBSVMDataModule(root, *files, **{"num_pos": 4, "num_neg": 6, "cache_dir": f"{root}/cache", **kwargs})


def ready(root, *files, **kwargs):
    datamodule = module(root, *files, **kwargs)
    datamodule.setup()
    return datamodule


def test_two_files(root):
    datamodule = ready(root, "train.txt", "test.txt", standardize=False)
    assert (datamodule.num_positives, datamodule.num_negatives) == (38, 112)
    assert_close(inputs_of(datamodule.test_dataloader()), X[150:], "float32")
    assert inputs_of(datamodule.predict_dataloader()).dtype == torch.float32
    targets = torch.cat([batch.target for batch in datamodule.test_dataloader()])
    assert targets.tolist() == (Y[150:] == 1).tolist()
    positives, _ = datamodule.scoring_dataloaders()
    assert_close(inputs_of(positives), X[:150][Y[:150] == 1], "float32")


def test_standardised_by_the_rows_that_train(root):
    datamodule = ready(root, "train.txt", "test.txt", val_fraction=0.2)
    positives, negatives = datamodule.scoring_dataloaders()
    train = torch.cat([inputs_of(positives), inputs_of(negatives)]).double()
    assert len(train) == 120
    assert_close(train.mean(dim=0), torch.zeros(3), "trajectory32")
    assert_close(train.std(dim=0, correction=0), [1.0, 1.0, 0.0], "trajectory32")
    raw = ready(root, "train.txt", "test.txt", val_fraction=0.2, standardize=False)
    rows = torch.cat([inputs_of(loader) for loader in raw.scoring_dataloaders()]).double()
    mean, deviation = rows.mean(dim=0), rows.std(dim=0, correction=0)
    deviation[2] = 1.0
    for name in ("val_dataloader", "test_dataloader", "predict_dataloader"):
        expected = (inputs_of(getattr(raw, name)()).double() - mean) / deviation
        assert_close(inputs_of(getattr(datamodule, name)()), expected, "trajectory32")


def test_removed_positives(root):
    datamodule = ready(root, "all.txt", test_fraction=0.25, remove_positives=0.5, standardize=False, num_pos=2)
    assert (datamodule.num_positives, datamodule.num_negatives) == (19, 112)
    targets = torch.cat([batch.target for batch in datamodule.test_dataloader()])
    assert (int(targets.sum()), len(targets)) == (6, 44)
    kept = inputs_of(datamodule.scoring_dataloaders()[0])
    original = torch.from_numpy(X[:150][Y[:150] == 1]).float()
    assert (kept[:, None] == original).all(dim=2).any(dim=1).all()
    same = ready(root, "all.txt", test_fraction=0.25, remove_positives=0.5, standardize=False, num_pos=2)
    other = ready(root, "all.txt", test_fraction=0.25, remove_positives=0.5, standardize=False, num_pos=2, split_seed=1)
    assert torch.equal(inputs_of(same.scoring_dataloaders()[0]), kept)
    assert not torch.equal(inputs_of(other.scoring_dataloaders()[0]), kept)


@pytest.mark.parametrize("negative_and_positive", [(-1, 1), (0, 1), (1, 2)])
def test_labels_are_mapped(tmp_path, negative_and_positive):
    write(tmp_path / "data.txt", X, np.where(Y == 1, *negative_and_positive[::-1]))
    assert ready(str(tmp_path), "data.txt").num_positives == 50


def test_a_class_against_the_rest(tmp_path):
    write(tmp_path / "data.txt", X, np.arange(200) % 5)
    assert ready(str(tmp_path), "data.txt", positive_label=3).num_positives == 40
    with pytest.raises(DataError, match=r"two labels in .*data.txt, but found \[0.0, 1.0, 2.0, 3.0"):
        ready(str(tmp_path), "data.txt")
    with pytest.raises(DataError, match=r"positive label 9 in .*Set `positive_label`"):
        ready(str(tmp_path), "data.txt", positive_label=9)


@pytest.mark.parametrize("wide", ["train.txt", "test.txt"])
def test_files_of_different_width(root, wide, tmp_path):
    with (tmp_path / wide).open("a") as file:
        file.write("1 7:2.5\n")
    datamodule = ready(root, "train.txt", "test.txt", standardize=False)
    assert next(iter(datamodule.train_dataloader())).inputs.shape == (10, 7)
    assert inputs_of(datamodule.test_dataloader()).shape[1] == 7


def test_a_test_run_alone_uses_the_training_rows_scale(root):
    fitted = ready(root, "train.txt", "test.txt", val_fraction=0.2)
    alone = module(root, "train.txt", "test.txt", val_fraction=0.2)
    alone.setup("test")
    assert torch.equal(inputs_of(alone.test_dataloader()), inputs_of(fitted.test_dataloader()))


def test_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"own.txt does not exist. Set `root` \(`--data.root DIR`\)"):
        ready(str(tmp_path), "own.txt")
    with pytest.raises(DataError, match=r"/ijcnn1.bz2 does not exist. .*or `--data.download true` to fetch"):
        ready(str(tmp_path), "ijcnn1.bz2")


def test_downloads_what_is_missing(root, tmp_path, monkeypatch):
    """Both files, in ``prepare_data`` alone; a file that is there stays as it is."""
    sources = {
        "train.txt": ("https://example.invalid", None),
        "test.txt": (f"file://{root}/test.txt", None),
    }
    monkeypatch.setattr(files, "SOURCES", sources)
    folder = tmp_path / "new" / "data"
    folder.mkdir(parents=True)
    write(folder / "train.txt", X[:50], Y[:50])
    datamodule = module(str(folder), "train.txt", "test.txt", download=True)
    with pytest.raises(DataError, match=r"test.txt does not exist. Set `root`"):
        datamodule.setup()
    datamodule.prepare_data()
    datamodule.setup()
    assert (datamodule.num_positives, datamodule.num_negatives) == (13, 37)
    assert len(inputs_of(datamodule.test_dataloader())) == 50
