"""Where labels are found, and what is accepted."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.arrays import ArrayDataset
from lightning_tpauc.data.targets import binary_labels, find_targets, label_of_item, stored_targets
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra
from tests.data.items import Items, N, X, Y, mapping, pair

LABELS = Y.numpy().astype(np.int8)


def unreadable(row):
    raise AssertionError(row)


@pytest.mark.parametrize(
    ("dataset", "targets"),
    [
        pytest.param(Items(unreadable), Y, id="explicit tensor"),
        pytest.param(Items(unreadable), LABELS.tolist(), id="explicit list"),
        pytest.param(Items(unreadable, flags=Y), "flags", id="attribute by name"),
        pytest.param(Items(lambda row: {"flag": Y[row]}), "flag", id="key by name"),
        pytest.param(Items(unreadable, targets=LABELS.tolist()), None, id="targets"),
        pytest.param(Items(unreadable, labels=Y[:, None].numpy()), None, id="labels"),
        pytest.param(Items(unreadable, y=Y.float()), None, id="y"),
        pytest.param(Items(pair, targets=[0, 1, 2]), None, id="an attribute of another length"),
        pytest.param(Items(pair, labels=lambda: 0), None, id="an attribute that is no array"),
        pytest.param(TensorDataset(X, Y), None, id="TensorDataset"),
        pytest.param(TensorDataset(X, X, Y[:, None].long()), None, id="TensorDataset of three"),
        pytest.param(ArrayDataset(X, Y), None, id="ArrayDataset"),
        pytest.param(Items(pair), None, id="tuples"),
        pytest.param(Items(lambda row: (X[row], X[row], Y[row : row + 1])), None, id="tuples of three"),
        pytest.param(Items(mapping), None, id="mappings"),
        pytest.param(
            ConcatDataset([TensorDataset(X[:20], Y[:20]), Items(unreadable, 40, labels=Y[20:])]), None, id="concat"
        ),
        pytest.param(ConcatDataset([TensorDataset(X[:20], Y[:20]), TensorDataset(X[20:], Y[20:])]), None, id="concat2"),
        pytest.param(ConcatDataset([Items(pair, 0), Items(pair)]), None, id="concat of items"),
    ],
)
def test_finds_labels(dataset, targets):
    found = find_targets(dataset, targets)
    assert found.dtype == np.int8
    assert np.array_equal(found, LABELS)


@pytest.mark.parametrize("indices", [[4, 2, 7, 7], np.array([4, 2, 7, 7]), torch.tensor([4, 2, 7, 7])])
@pytest.mark.parametrize("inner", [TensorDataset(X, Y), Items(unreadable, targets=Y), Items(pair)])
def test_looks_through_subsets(inner, indices):
    assert find_targets(Subset(inner, indices)).tolist() == [0, 1, 1, 1]
    assert find_targets(Subset(Subset(inner, indices), [1, 0])).tolist() == [1, 0]


def test_explicit_labels_come_before_stored_ones():
    assert find_targets(TensorDataset(X, Y), ~Y).tolist() == (1 - LABELS).tolist()
    assert find_targets(Items(pair, targets=Y, other=~Y), "other").tolist() == (1 - LABELS).tolist()


@pytest.mark.skipif(find_spec("torch_geometric") is None, reason="torch_geometric is not installed")
def test_graph_datasets():
    data = import_extra("torch_geometric.data", "graph")

    class Graphs(data.InMemoryDataset):
        def __init__(self):
            super().__init__()
            graphs = [data.Data(x=torch.ones(2 + i % 3, 1), y=Y[i : i + 1].long()) for i in range(N)]
            self.data, self.slices = self.collate(graphs)

    assert find_targets(Graphs()).tolist() == LABELS.tolist()
    assert find_targets(Graphs()[10:20]).tolist() == LABELS[10:20].tolist()
    assert find_targets(Subset(Graphs(), [2, 3])).tolist() == [1, 0]
    # a list of graphs: one pass over the items
    assert find_targets([Graphs()[i] for i in range(8)]).tolist() == LABELS[:8].tolist()


def test_one_pass_reads_every_item_once():
    asked = []
    find_targets(Items(lambda row: (asked.append(row), Y[row])))
    assert asked == list(range(N))


def test_stored_labels_are_not_searched_in_items():
    assert stored_targets(Items(unreadable)) is None
    assert stored_targets(Subset(Items(unreadable), [0])) is None


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 1],
        [False, True, True],
        np.array([0.0, 1.0, 1.0]),
        torch.tensor([[0], [1], [1]]),
        torch.tensor([0, 1, 1], dtype=torch.bfloat16).float(),
        [torch.tensor([0]), torch.tensor([1]), torch.tensor([1])],
        [np.array(0), np.array(1), np.array(1)],
        np.array([0, 1, 1], dtype=np.uint8),
    ],
)
def test_accepted_labels(values):
    assert binary_labels(values).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-1, 1, 1], r"`labels`, but found -1, 1. Pass 0/1 labels, for instance `targets=\(y > 0\)`"),
        ([1, 2, 2], r"found 1, 2. Pass 0/1 labels, for instance `targets=\(y > 1\)`"),
        ([-1.0, 0.0], r"found -1.0, 0.0. .*`targets=\(y > -1.0\)`"),
        (
            [0, 1, 2, 3, 4, 5, 6],
            r"found 0, 1, 2, 3, 4, .... Choose the positive class, for instance `targets=\(y == 1\)`",
        ),
        ([0.5, 0.5], r"found 0.5. Choose"),
        ([0.0, float("nan"), 1.0], r"1 of 3 are nan. Drop unlabelled examples first, .*Subset"),
        (np.zeros((3, 2)), r"one label per example in `labels`, but got shape \(3, 2\). .*labels\[:, 0\]"),
        (np.array(1), r"but got shape \(\)"),
        (["a", "b"], r"numbers as labels in `labels`, but got dtype <U1. Map them to 0 and 1"),
    ],
)
def test_refused_labels(values, message):
    with pytest.raises(DataError, match=message):
        binary_labels(values, "labels")


def test_refuses_another_number_of_labels():
    with pytest.raises(DataError, match="each of the 60 items of `val_dataset`, but got 3 labels"):
        find_targets(Items(pair), [0, 1, 1], "val_dataset")


@pytest.mark.parametrize(
    ("item", "key", "message"),
    [
        (torch.zeros(3), None, r"a Tensor, looked for any of targets, labels, y"),
        ({"x": 1}, None, r"a dict"),
        ({"label": 1}, "flag", r"looked for 'flag'"),
        ((torch.zeros(3),), None, r"a tuple.*Pass `targets=array_of_labels`"),
    ],
)
def test_says_where_it_looked(item, key, message):
    with pytest.raises(DataError, match=message):
        label_of_item(item, key)
