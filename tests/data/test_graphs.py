"""The container of molecules' graphs."""

import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_tpauc.data.molecules import GraphDataset, Graphs

pytestmark = pytest.mark.skipif(find_spec("torch_geometric") is None, reason="torch_geometric is not installed")


def make_graphs(count=12, seed=0):
    """Plain dictionaries of arrays, one per graph; some graphs have one node and no edge."""
    generator = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        nodes = int(generator.integers(1, 6))
        edges = int(generator.integers(0, 7)) if nodes > 1 else 0
        graphs.append(
            {
                "x": generator.integers(0, 120, (nodes, 9)),
                "edge_index": generator.integers(0, nodes, (2, edges)),
                "edge_attr": generator.integers(0, 6, (edges, 3)),
            }
        )
    return graphs


def pack(graphs):
    return Graphs(
        torch.from_numpy(np.concatenate([g["x"] for g in graphs])),
        torch.from_numpy(np.concatenate([g["edge_index"] for g in graphs], axis=1)),
        torch.from_numpy(np.concatenate([g["edge_attr"] for g in graphs])),
        torch.tensor([len(g["x"]) for g in graphs]),
        torch.tensor([g["edge_index"].shape[1] for g in graphs]),
    )


@pytest.mark.parametrize("chosen", [None, [8, 2, 3], [5, 5]])
def test_items_are_the_graphs_without_labels(chosen):
    graphs, labels = make_graphs(), torch.arange(12) % 3 // 2
    dataset = GraphDataset(pack(graphs), labels)
    if chosen is not None:
        dataset = dataset.subset(torch.tensor(chosen))
    chosen = chosen or list(range(12))
    dataset = pickle.loads(pickle.dumps(dataset))  # noqa: S301  # made in this line
    assert len(dataset) == len(chosen)
    assert dataset.targets.tolist() == [int(labels[k]) for k in chosen]
    for item, k in zip((dataset[row] for row in range(len(chosen))), chosen, strict=True):
        assert sorted(item.keys()) == ["edge_attr", "edge_index", "x"]
        for name, value in graphs[k].items():
            assert torch.equal(item[name], torch.from_numpy(value)), name
    with pytest.raises(IndexError):
        dataset[len(chosen)]
