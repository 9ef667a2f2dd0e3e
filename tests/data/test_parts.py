"""Data sets as given, and their rows and labels."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from lightning_tpauc.data.arrays import ArrayDataset
from lightning_tpauc.data.parts import TrainingPart, as_dataset, evaluated_part
from lightning_tpauc.errors import DataError
from tests.data.items import Items, N, X, Y, pair


def test_pairs_of_arrays_become_data_sets():
    for data in ((X, Y), (X.numpy(), Y.numpy())):
        assert isinstance(as_dataset(data, "train_dataset"), ArrayDataset)
    for data in (None, X, Items(pair), TensorDataset(X, Y), [(1, 0), (2, 1)]):
        assert as_dataset(data, "train_dataset") is data


def test_refuses_streams_and_emptiness():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(DataError, match=r"`test_dataset` to be a map-style data set .* but got a Stream"):
        as_dataset(Stream(), "test_dataset")
    with pytest.raises(DataError, match=r"`val_dataset` to have examples, but got 0. Pass None"):
        as_dataset(X[:0], "val_dataset")


def test_training_rows_by_class():
    labels = Y.numpy().astype(np.int8)
    part = TrainingPart(labels)
    assert part.by_class[0].tolist() == [2 + 5 * k for k in range(12)]
    assert len(part.by_class[1]) == 48
    assert len(part.held_out) == 0
    rows = np.arange(10, N)
    part = TrainingPart(labels, rows, np.arange(10))
    assert part.by_class[0].tolist() == [12 + 5 * k for k in range(10)]
    assert sorted(np.concatenate(part.by_class)) == rows.tolist()


def test_the_fingerprint_tells_training_sets_apart():
    labels = Y.numpy().astype(np.int8)
    reference = TrainingPart(labels).fingerprint
    assert reference == TrainingPart(labels.copy()).fingerprint == "09cdcef81cede3eb"
    others = [
        TrainingPart(np.append(labels, 0).astype(np.int8)),
        TrainingPart(np.roll(labels, 1)),
        TrainingPart(labels, np.arange(20)),
    ]
    assert len({reference, *(other.fingerprint for other in others)}) == 4


def test_evaluated_parts():
    part = evaluated_part(Items(pair), None, "val_dataset")
    assert part.labels.tolist() == Y.int().tolist()
    assert part.rows.tolist() == list(range(N))
    # labels given as an array belong to the training set
    assert evaluated_part(Items(pair), ~Y, "test_dataset").labels.tolist() == Y.int().tolist()
    assert evaluated_part(Items(pair, flag=~Y), "flag", "test_dataset").labels.tolist() == (~Y).int().tolist()


def test_prediction_needs_no_labels():
    assert evaluated_part(X, None, "predict_dataset").labels.tolist() == [-1] * N
    assert evaluated_part(TensorDataset(X, Y), None, "predict_dataset").labels.tolist() == Y.int().tolist()
    placeholder = TensorDataset(X, torch.full((N,), torch.nan))
    assert evaluated_part(placeholder, None, "predict_dataset").labels.tolist() == [-1] * N
