"""Where labels are found, and what is accepted."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.examples import ArrayDataset
from lightning_tpauc.data.labels import binary_labels, find_targets, label_names
from lightning_tpauc.errors import DataError
from tests.helpers.items import Items, N, X, Y, mapping, pair

LABELS = Y.numpy().astype(np.int8)


def unreadable(row):
    raise AssertionError(row)


@pytest.mark.parametrize(
    ("dataset", "targets"),
    [
        pytest.param(Items(unreadable), Y, id="explicit tensor"),
        pytest.param(Items(unreadable), LABELS.tolist(), id="explicit list"),
        pytest.param(Items(pair, flags=Y), "flags", id="attribute by name"),
        pytest.param(Items(lambda row: {"flag": Y[row]}), "flag", id="key by name"),
        pytest.param(Items(pair, labels=Y[:, None].numpy()), None, id="labels"),
        pytest.param(Items(pair, targets=[0, 1, 2]), None, id="an attribute of another length"),
        pytest.param(Items(pair, labels=lambda: 0), None, id="an attribute that is no array"),
        pytest.param(TensorDataset(X, Y), None, id="TensorDataset"),
        pytest.param(ArrayDataset(X, Y), None, id="ArrayDataset"),
        pytest.param(Items(pair), None, id="tuples"),
        pytest.param(Items(lambda row: (X[row], X[row], Y[row : row + 1])), None, id="tuples of three"),
        pytest.param(Items(mapping), None, id="mappings"),
        pytest.param(
            ConcatDataset([TensorDataset(X[:20], Y[:20]), Items(lambda row: pair(row + 20), 40, labels=Y[20:])]),
            None,
            id="concat",
        ),
    ],
)
def test_finds_labels(dataset, targets):
    found = find_targets(dataset, targets)
    assert found.dtype == np.int8
    assert np.array_equal(found, LABELS)


@pytest.mark.parametrize("indices", [[4, 2, 7, 7], np.array([4, 2, 7, 7]), torch.tensor([4, 2, 7, 7])])
@pytest.mark.parametrize("inner", [TensorDataset(X, Y), Items(pair, targets=Y), Items(pair)])
def test_looks_through_subsets(inner, indices):
    assert find_targets(Subset(inner, indices)).tolist() == [0, 1, 1, 1]
    assert find_targets(Subset(Subset(inner, indices), [1, 0])).tolist() == [1, 0]


def test_explicit_labels_come_before_stored_ones():
    assert find_targets(TensorDataset(X, Y), ~Y).tolist() == (1 - LABELS).tolist()
    assert find_targets(Items(pair, targets=Y, other=~Y), "other").tolist() == (1 - LABELS).tolist()


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 1],
        torch.tensor([[0], [1], [1]]),
        np.ma.array([0, 1, 1]),
        torch.tensor([0, 1, 1], dtype=torch.bfloat16),
        torch.tensor([0, 1, 1]).to_sparse(),
        (torch.tensor(0), torch.tensor(1.0, requires_grad=True), torch.tensor([1])),
        [[0], [1], [1]],
    ],
)
def test_accepted_labels(values):
    assert binary_labels(values).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-1, 1, 1], r"`labels`, but found -1, 1. Choose the positive class: `targets=\(y == 1\)`"),
        (
            [0, 1, 2, 3, 4, 5, 6],
            r"found 0, 1, 2, 3, 4, .... Choose the positive class: `targets=\(y == 6\)`.*OneVsRest\(classes\)",
        ),
        ([0.0, float("nan"), 1.0], r"1 of 3 are nan. Drop unlabelled examples first, .*Subset"),
        (np.zeros((3, 2, 2)), r"one label per example in `labels`, .* but got shape \(3, 2, 2\). .*labels\[:, 0\]"),
        (np.array([[0, 1], [-1, 2]]), r"in `labels`, but found -1 in column 0. Pass 0 and 1, and nan where"),
        (
            pd.DataFrame({"a": ["no", None], "b": [None, "no"]}),
            r"found object 'no' in column 'a'. Pass 0 and 1, and nan",
        ),
        (pd.Series([0, None, 1], dtype="Int64"), "1 of 3 are nan"),
        (pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])), "found datetime64"),
        (pd.DataFrame({"a": [0, 1], "b": [1, -1]}), r"-1 in column 'b'\. Pass 0 and 1, and nan"),
        (["b", "a", "b"], r"found <U1 'b', 'a'. Choose the positive class: `targets=\(y == 'a'\)`"),
    ],
)
def test_refused_labels(values, message):
    with pytest.raises(DataError, match=message):
        binary_labels(values, "labels")


def tables():
    """Columns of pandas with the labels [0, 1, 1], in rows that are labelled in another order."""
    column = pd.Series([0, 1, 1], index=[2, 0, 1])
    yield from (column, column.to_frame(), pd.Index(column), column.astype("category"), column.astype("Int64"))
    yield from (column.astype("boolean"), column.astype(object), column.astype(bool), column.astype("Float64"))


def test_columns_are_read_in_their_order():
    for column in tables():
        assert binary_labels(column).tolist() == [0, 1, 1]
        assert find_targets(Items(lambda row: (X[row], [0, 1, 1][row]), 3, targets=column)).tolist() == [0, 1, 1]


def test_refuses_another_number_of_labels():
    with pytest.raises(DataError, match="each of the 60 items of `val_dataset`, but got 3 labels"):
        find_targets(Items(pair), [0, 1, 1], "val_dataset")


# ------------------------------------------------------------------ labels that are kept, and those of the items


def flip(label):
    return 1 - label


@pytest.mark.parametrize(
    "kept",
    [Y.int(), Y.int().tolist(), LABELS.astype(np.int64)[:, None]],
    ids=["tensor", "list", "column of an array"],
)
@pytest.mark.parametrize("name", ["targets", "labels", "y"])
def test_a_target_transform_is_applied(name, kept):
    """As in torchvision, whose items have transformed labels while `targets` has them as they are in the files."""
    dataset = Items(lambda row: (X[row], flip(int(Y[row]))), target_transform=flip, **{name: kept})
    assert find_targets(dataset).tolist() == (1 - LABELS).tolist()
    assert find_targets(dataset, name).tolist() == (1 - LABELS).tolist()
    assert find_targets(Subset(dataset, [2, 3])).tolist() == [0, 1]
    assert find_targets(ConcatDataset([dataset, dataset])).tolist() == [*(1 - LABELS), *(1 - LABELS)]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(N)), lambda d: ConcatDataset([d])])
@pytest.mark.parametrize("name", ["targets", "label"])
@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda row: (X[row], 1 - int(Y[row])), "1"),
        (lambda row: {"x": X[row], "label": 1 - int(Y[row])}, "1"),
        (lambda row: (X[row], "no"), "'no'"),
    ],
)
def test_kept_labels_that_are_not_those_of_the_items(make, shown, name, wrap):
    dataset = wrap(Items(make, **{name: Y}))
    message = f"`val_dataset` keeps other labels than its items have: 0 for item 0, which itself has {shown}. Pass"
    with pytest.raises(DataError, match=message):
        find_targets(dataset, None, "val_dataset")
    # whoever gives an array has decided
    assert find_targets(dataset, Y).tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda row: X[row],
        lambda row: {"x": X[row]},
        lambda row: (X[row], [int(not Y[row]), int(Y[row])]),
        lambda row: (X[row], torch.tensor([0, int(Y[row]), row])),
        lambda row: (X[row], float(Y[row])),
    ],
    ids=["no label", "mapping without one", "one-hot", "several tasks", "float"],
)
def test_items_that_do_not_contradict(make):
    assert find_targets(Items(make, targets=Y)).tolist() == LABELS.tolist()


# ------------------------------------------------------------------ labels of several tasks

NAN = float("nan")
TASKS = [[1, 0, -1], [0, -1, 1], [-1, -1, -1], [0, 1, 0]]


def given(missing):
    return [[missing if label < 0 else label for label in row] for row in TASKS]


@pytest.mark.parametrize(
    "values",
    [
        np.array(given(None), dtype=object),
        np.array(given(NAN), dtype=np.float32)[:, None],
        torch.tensor(given(NAN)),
        tuple(map(tuple, given(None))),
        np.ma.array(TASKS, mask=np.array(TASKS) < 0),
    ],
)
def test_labels_of_several_tasks(values):
    found = binary_labels(values)
    assert found.dtype == np.int8
    assert found.tolist() == TASKS


def test_columns_of_a_table_are_several_tasks():
    table = pd.DataFrame(given(NAN), columns=["a", "b", "c"], index=[5, 0, 7, 1])
    for kind in (table, table.astype("Int64"), table.astype(object), table.astype("boolean"), table.astype("Float64")):
        assert binary_labels(kind).tolist() == TASKS
        dataset = ArrayDataset(torch.zeros(4, 2), kind)
        assert find_targets(dataset).tolist() == TASKS
        assert label_names(dataset, None, 3) == ("a", "b", "c")
        assert label_names(Subset(dataset, [0, 1]), None, 3) == ("a", "b", "c")
        assert label_names(Items(pair), kind, 3) == ("a", "b", "c")
        assert label_names(Items(pair, 4, targets=kind), None, 3) == ("a", "b", "c")
        assert label_names(Items(pair, 4, flags=kind), "flags", 3) == ("a", "b", "c")
