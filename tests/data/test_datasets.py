"""Data sets as given, and their rows and labels."""

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from lightning_tpauc.data.examples import ArrayDataset, Examples, Given, as_dataset, fetcher_for
from lightning_tpauc.data.parts import PreparedData
from lightning_tpauc.errors import DataError
from tests.helpers.items import N, X, Y


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
    for wrong, words in (
        ((X, X, Y), "tuple of 3 arrays. Several inputs are a `TensorDataset`"),
        ({"x": X, "y": Y}, "dict with x, y"),
        ("a.csv", "str.* a file is read first, as by `pd.read_csv`"),
    ):
        with pytest.raises(DataError, match=rf"`val_dataset` to be a map-style .* got a {words}"):
            as_dataset(wrong, "val_dataset")
    for items in ([X[0], X[1]], [(X[0], 1), (X[1], 0)], {0: (X[0], 1)}, [X[:4], X[4:8], X[8:12]]):
        assert as_dataset(items, "train_dataset") is items


def predicted(dataset, known=None):
    """Labels, and inputs as a model gets them."""
    part = PreparedData({"predict": Examples(dataset, "predict", Given())}).predicted(known)
    return part.labels.tolist(), fetcher_for(part.dataset, entries=part.entries)(part.rows, 0)


PAIRS = [(X[row], 2 * X[row]) for row in range(N)]


def test_prediction_needs_no_labels():
    unknown = [-1] * N
    placeholder = TensorDataset(X, torch.full((N,), torch.nan))
    for dataset in (X, TensorDataset(X, Y), placeholder):
        for known in (None, "tensor"):
            found, inputs = predicted(dataset, known)
            assert found == unknown
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
