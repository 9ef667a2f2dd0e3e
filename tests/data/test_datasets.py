"""Data sets as given, and their rows and labels."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from lightning_tpauc.data.examples import ArrayDataset, as_dataset, fetcher_for
from lightning_tpauc.data.parts import Examples, Given, PreparedData, TrainingPart
from lightning_tpauc.errors import DataError
from tests.helpers.items import Items, N, X, Y, pair


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


def test_arrays_that_are_no_items():
    assert isinstance(as_dataset([X.numpy(), Y.numpy()], "train_dataset"), ArrayDataset)
    with pytest.raises(DataError, match=r"`train_dataset` is a tuple of 3 arrays. Pass a data set: `TensorDataset"):
        as_dataset((X, X, Y), "train_dataset")
    with pytest.raises(DataError, match=r"`val_dataset` is a dict with 'x', 'y', not a data set. Pass one of its"):
        as_dataset({"x": X, "y": Y}, "val_dataset")
    for items in ([X[0], X[1]], [(X[0], 1), (X[1], 0)], {0: (X[0], 1)}, [X[:4], X[4:8], X[8:12]]):
        assert as_dataset(items, "train_dataset") is items


def test_training_rows_by_class():
    labels = Y.numpy().astype(np.int8)
    rows = np.arange(10, N)
    part = TrainingPart(labels, rows, np.arange(10))
    assert part.by_class[0].tolist() == [12 + 5 * k for k in range(10)]
    assert sorted(np.concatenate(part.by_class)) == rows.tolist()


def test_the_fingerprint_tells_training_sets_apart():
    labels = Y.numpy().astype(np.int8)
    reference = TrainingPart(labels).fingerprint
    assert reference == TrainingPart(labels.copy()).fingerprint
    others = [
        TrainingPart(np.append(labels, 0).astype(np.int8)),
        TrainingPart(np.roll(labels, 1)),
        TrainingPart(labels, np.arange(20)),
    ]
    assert len({reference, *(other.fingerprint for other in others)}) == 4


def predicted(dataset, known=None):
    """Labels, and inputs as a model gets them."""
    part = PreparedData({"predict": Examples(dataset, "predict", Given())}).predicted(lambda: known)
    return part.labels.tolist(), fetcher_for(part.dataset, entries=part.entries)(part.rows, 0)


PAIRS = [(X[row], 2 * X[row]) for row in range(N)]


def test_prediction_needs_no_labels():
    unknown = [-1] * N
    placeholder = TensorDataset(X, torch.full((N,), torch.nan))
    for dataset, labels in ((X, unknown), (TensorDataset(X, Y), Y.int().tolist()), (placeholder, unknown)):
        for known in (None, "tensor"):
            found, inputs = predicted(dataset, known)
            assert found == labels
            assert torch.equal(inputs, X)


@pytest.mark.parametrize("dataset", [TensorDataset(X, 2 * X), PAIRS, [list(pair) for pair in PAIRS]])
def test_unlabelled_tuples_to_predict_on_keep_all_their_entries(dataset):
    labels, inputs = predicted(dataset, ["tensor", "tensor"])
    assert labels == [-1] * N
    assert torch.equal(inputs[0], X)
    assert torch.equal(inputs[1], 2 * X)
    with pytest.raises(DataError, match=r"last of the 2 entries of the items of `predict_dataset` is a label"):
        predicted(dataset)


@pytest.mark.parametrize("dataset", [TensorDataset(X, 2 * X, Y), [(*PAIRS[row], int(Y[row])) for row in range(N)]])
def test_labelled_tuples_to_predict_on_lose_their_label(dataset):
    _, inputs = predicted(dataset, ["tensor", "tensor"])
    assert torch.equal(inputs[1], 2 * X)
    assert len(inputs) == 2
    for known in (None, "tensor", ["tensor"] * 4, {"keys": ["x"]}):
        with pytest.raises(DataError, match="the 3 entries of the items"):
            predicted(dataset, known)


def test_single_entries_are_no_labels():
    for dataset in (TensorDataset(X), [(x,) for x in X], [[x] for x in X]):
        assert torch.equal(predicted(dataset, "tensor")[1], X)
        assert torch.equal(fetcher_for(dataset)(np.arange(N), 0), X)


def test_the_layout_of_a_training_set():
    def of(dataset):
        return Examples(dataset, "train", Given()).first_layout(dataset)

    assert of(X) == of(TensorDataset(X, Y)) == of(Items(pair)) == "tensor"
    assert of(TensorDataset(X, X, Y)) == ["tensor", "tensor"]
    assert of([((X[0], "word"), 1)]) == ["tensor", "words"]
    assert of([{"x": 1, "label": 0}]) == {"keys": ["x"]}
