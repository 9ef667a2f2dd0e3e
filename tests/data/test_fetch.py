"""From rows to inputs."""

import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.examples import ArrayDataset, fetcher_for
from lightning_tpauc.extras import import_extra
from tests.helpers.items import BatchedItems, Items, N, X, Y, mapping, noisy, pair

ROWS = np.array([7, 3, 50])
EXPECTED = X[torch.from_numpy(ROWS)]


@pytest.mark.parametrize(
    "dataset",
    [
        X,
        X.numpy(),
        ArrayDataset(X, Y),
        TensorDataset(X, Y),
        TensorDataset(X),
        Items(pair),
        Items(lambda row: [X[row], Y[row]]),
        Items(lambda row: X[row]),
        Items(lambda row: X[row].numpy()),
        BatchedItems(pair),
        Subset(TensorDataset(X.flip(0), Y), list(range(N))[::-1]),
        Subset(Subset(TensorDataset(X, Y), range(N)), torch.arange(N)),  # type: ignore[arg-type]  # works all the same
        Subset(Items(lambda row: pair(N - 1 - row)), list(range(N))[::-1]),
        ConcatDataset([TensorDataset(X[:20], Y[:20]), Items(lambda row: pair(row + 20), 40)]),
        [pair(row) for row in range(N)],
    ],
)
def test_inputs_without_labels(dataset):
    fetch = fetcher_for(dataset)
    assert torch.equal(fetch(ROWS, 0), EXPECTED)


def test_fetchers_travel_to_workers():
    for dataset in (ArrayDataset(X, Y), Items(pair), Subset(TensorDataset(X, Y), range(N))):
        again = pickle.loads(pickle.dumps(fetcher_for(dataset)))  # noqa: S301  # from ourselves
        assert torch.equal(again(ROWS, 0), EXPECTED)


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, 2 * X, Y),
        Items(lambda row: (X[row], 2 * X[row], Y[row])),
        Items(lambda row: [X[row], 2 * X[row], Y[row]]),
        ConcatDataset([TensorDataset(X[:20], 2 * X[:20], Y[:20]), TensorDataset(X[20:], 2 * X[20:], Y[20:])]),
    ],
)
def test_several_inputs(dataset):
    inputs = fetcher_for(dataset)(ROWS, 0)
    assert type(inputs) is tuple
    first, second = inputs
    assert torch.equal(first, EXPECTED)
    assert torch.equal(second, 2 * EXPECTED)


def test_mappings_lose_their_label():
    inputs = fetcher_for(Items(mapping))(ROWS, 0)
    assert set(inputs) == {"x", "twice"}
    assert torch.equal(inputs["x"], EXPECTED)


def test_batched_reading_is_used():
    inner = BatchedItems(pair)
    fetcher_for(inner)(ROWS, 0)
    assert inner.asked == [7, 3, 50]
    fetcher_for(Subset(inner, list(range(10, N))))(np.array([2, 0]), 0)
    assert inner.asked == [12, 10]


@pytest.mark.skipif(find_spec("torch_geometric") is None, reason="torch_geometric is not installed")
def test_graphs():
    data = import_extra("torch_geometric.data", "graph")

    def graph(row):
        return data.Data(x=X[row].repeat(1 + row % 3, 1), y=Y[row : row + 1])

    for dataset in (Items(graph), Items(lambda row: (graph(row), Y[row])), [graph(row) for row in range(N)]):
        batch = fetcher_for(dataset)(ROWS, 0)
        assert isinstance(batch, data.Batch)
        assert batch.num_graphs == 3
        assert torch.equal(batch.x[batch.ptr[:-1]], EXPECTED)
    inputs = fetcher_for(Items(lambda row: (graph(row), X[row], Y[row])))(ROWS, 0)
    assert type(inputs) is tuple
    assert inputs[0].num_graphs == 3
    nested = fetcher_for(Items(lambda row: {"graph": graph(row), "x": X[row]}))(ROWS, 0)
    assert nested["graph"].num_graphs == 3
    assert torch.equal(nested["x"], EXPECTED)


def test_augmentations_depend_on_the_item_and_the_step():
    fetch = fetcher_for(Items(noisy), seed=5)
    reference = fetch(ROWS, 2)
    torch.rand(3)
    assert torch.equal(fetch(ROWS, 2), reference)
    assert torch.equal(fetch(ROWS[1:], 2), reference[1:])  # as on another rank
    assert torch.equal(fetch(ROWS[::-1], 2), reference.flip(0))
    assert not torch.isclose(fetch(ROWS, 3), reference)[:, 1:].any()
    assert not torch.isclose(fetcher_for(Items(noisy), seed=6)(ROWS, 2), reference)[:, 1:].any()
