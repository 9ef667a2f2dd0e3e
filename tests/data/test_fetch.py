"""From rows to inputs."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_tpauc.data.examples import fetcher_for
from lightning_tpauc.extras import import_extra
from tests.helpers.items import BatchedItems, Items, N, X, Y, pair

ROWS = np.array([7, 3, 50])
EXPECTED = X[torch.from_numpy(ROWS)]


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
