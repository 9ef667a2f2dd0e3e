"""Data modules of files with labels of several tasks."""

import csv
import gzip

import numpy as np
import pytest
import torch

from lightning_tpauc.data.medmnist import CHEST_LABELS, MedMNISTDataModule
from lightning_tpauc.data.molecules import OGBMoleculesDataModule, SMILESDataModule
from lightning_tpauc.models import GIN, MLP
from tests.data.test_molecules import needs_graph, number_of_carbons, targets_of
from tests.helpers.fake_ogb import make_molecules, write_ogb

RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1"]
COLUMNS = ["alpha", "beta", "gamma"]


def rows(count=240):
    """(SMILES, labels as text): the number of carbons of the tail tells the row."""
    generator = np.random.default_rng(0)
    for k in range(count):
        labels = ["1" if chance < 0.2 else "0" if chance < 0.7 else "" for chance in generator.random(3)]
        yield "C" * (1 + k) + RINGS[k % 4 if k % 3 else 0], labels


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rings.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["smiles", *COLUMNS])
        writer.writerows([smiles, *labels] for smiles, labels in rows())
    return path


def smiles_module(file, columns=tuple(COLUMNS), **kwargs):
    folder = str(file.parent)
    return SMILESDataModule(
        file.name, columns, root=folder, cache_dir=folder, **{"num_pos": 12, "num_neg": 16, "batch_size": 500, **kwargs}
    )


def as_floats(labels):
    return [float(label) if label else float("nan") for label in labels]


# ---------------------------------------------------------------- SMILES


@needs_graph
def test_molecules_with_several_labels(file):
    datamodule = smiles_module(file, split="random", fractions=(0.6, 0.2, 0.2))
    datamodule.prepare_data()
    datamodule.setup(None)
    assert datamodule.label_names == tuple(COLUMNS)
    labelled = [labels for _, labels in rows() if any(labels)]
    assert len(datamodule.molecules.targets) == len(labelled)
    by_line = {line: as_floats(labels) for line, (_, labels) in enumerate(rows(), 2)}
    for line, own in zip(datamodule.molecules.lines.tolist(), datamodule.molecules.targets, strict=True):
        assert torch.equal(own.nan_to_num(nan=-1.0), torch.tensor(by_line[line]).nan_to_num(nan=-1.0))
    (val,), (test,) = datamodule.val_dataloader(), datamodule.test_dataloader()
    for name, batch in (("val", val), ("test", test)):
        part = getattr(datamodule.build_datasets(None), name)
        y = part.dataset.targets[part.indices]
        assert torch.equal(batch.target, torch.where(y.isnan(), -1.0, y).long())
        assert ((batch.target == 1).any(0) & (batch.target == 0).any(0)).all()
    batch = next(iter(datamodule.train_dataloader()))
    assert "y" not in batch.inputs
    scores = GIN(hidden_features=8, num_layers=2, num_labels=3)(batch.inputs)
    assert [part.shape for part in batch.split(scores)[:2]] == [(3, batch.num_pos), (3, batch.num_neg)]
    assert number_of_carbons(datamodule.build_datasets(None).train[0]) > 0


# ---------------------------------------------------------------- OGB


SPLIT = {"train": [*range(60)], "valid": [*range(60, 80)], "test": [*range(80, 100)]}


@pytest.fixture
def ogb(tmp_path):
    written = make_molecules(100, 12)
    for molecule in written[::9]:
        molecule["y"][[2, 7, 11]] = np.nan
    write_ogb(tmp_path, "ogbg-moltox21", written, SPLIT)
    return written


@needs_graph
@pytest.mark.parametrize("task", [None, [7, 2, 11]])
def test_several_tasks_of_ogb(tmp_path, ogb, task):
    datamodule = OGBMoleculesDataModule(root=str(tmp_path), task=task, num_pos=24, num_neg=10)
    datamodule.setup(None)
    columns = range(12) if task is None else task
    assert datamodule.label_names == tuple(map(str, columns))
    for name, part in (("train", "train"), ("val", "valid"), ("test", "test")):
        expected = np.array([ogb[row]["y"] for row in SPLIT[part]])[:, list(columns)]
        expected = expected[~np.isnan(expected).all(axis=1)]
        assert np.array_equal(targets_of(getattr(datamodule.build_datasets(None), name)), expected, equal_nan=True)
    counts = [sum(ogb[row]["y"][k] == 1 for row in SPLIT["train"]) for k in columns]
    assert datamodule.num_positives == tuple(counts)


@needs_graph
def test_names_of_ogbs_tasks(tmp_path, ogb):
    names = [f"NR-{k}" for k in range(12)]
    mapping = tmp_path / "ogbg_moltox21" / "mapping" / "mol.csv.gz"
    mapping.parent.mkdir()
    with gzip.open(mapping, "wt") as out:
        out.write(",".join([*names, "smiles", "mol_id"]) + "\n")
    datamodule = OGBMoleculesDataModule(root=str(tmp_path), task=[3, 1])
    assert datamodule.build_datasets(None).train.dataset.label_names == ["NR-3", "NR-1"]


# ---------------------------------------------------------------- MedMNIST


def write_chest(folder, num_labels=14, count=120):
    generator = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "val", "test"):
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (generator.random((count, num_labels)) < 0.2).astype(np.uint8)
    np.savez(folder / "chestmnist.npz", **arrays)
    return arrays


@pytest.mark.parametrize("augment", [False, True])
def test_the_labels_of_chestmnist(tmp_path, augment):
    arrays = write_chest(tmp_path)
    datamodule = MedMNISTDataModule(
        "chestmnist", str(tmp_path), augment=augment, num_pos=56, num_neg=20, batch_size=500
    )
    datamodule.setup("fit")
    assert datamodule.label_names == CHEST_LABELS
    assert datamodule.num_positives == tuple(arrays["train_labels"].sum(0).tolist())
    (batch,) = datamodule.val_dataloader()
    assert np.array_equal(batch.target, arrays["val_labels"])
    batch = next(iter(datamodule.train_dataloader()))
    assert batch.inputs.shape == (76, 1, 28, 28)
    scores = MLP(784, num_labels=14)(batch.inputs.flatten(1))
    assert batch.split(scores)[1].shape == (14, 20)
