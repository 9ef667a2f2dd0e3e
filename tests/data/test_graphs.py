import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_tpauc.data.examples import fetcher_for
from lightning_tpauc.data.molecules import GraphDataset, PackedGraphs
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra

needs_geometric = pytest.mark.skipif(find_spec("torch_geometric") is None, reason="torch_geometric is not installed")


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
    return PackedGraphs(
        torch.from_numpy(np.concatenate([g["x"] for g in graphs])),
        torch.from_numpy(np.concatenate([g["edge_index"] for g in graphs], axis=1)),
        torch.from_numpy(np.concatenate([g["edge_attr"] for g in graphs])),
        torch.tensor([len(g["x"]) for g in graphs]),
        torch.tensor([g["edge_index"].shape[1] for g in graphs]),
    )


def assert_same_fields(actual, expected):
    assert set(actual.keys()) == set(expected.keys())
    for name in expected.keys():  # noqa: SIM118  # a PyG graph iterates over pairs
        assert actual[name].dtype == expected[name].dtype, name
        assert torch.equal(actual[name], expected[name]), name


@needs_geometric
@pytest.mark.parametrize("rows", [[0], [3, 1, 7], [5, 5], list(range(12))])
def test_a_batch_equals_pygs_own(rows):
    graphs, labels = make_graphs(), torch.arange(12) % 2
    data = import_extra("torch_geometric.data", "graph")
    items = [data.Data(**{name: torch.from_numpy(value) for name, value in g.items()}) for g in graphs]
    batch = GraphDataset(pack(graphs), labels).rows(np.array(rows))
    expected = data.Batch.from_data_list([items[row] for row in rows])
    assert_same_fields(batch, expected)
    assert batch.num_graphs == len(rows)
    assert type(batch) is type(expected)


@needs_geometric
def test_items_are_the_graphs():
    graphs = make_graphs()
    dataset = GraphDataset(pack(graphs), [0, 1] * 6)
    assert len(dataset) == 12
    for i, item in enumerate(dataset):
        for name, value in graphs[i].items():
            assert torch.equal(item[name], torch.from_numpy(value)), name
        assert item.y.tolist() == [i % 2]
    with pytest.raises(IndexError):
        dataset[12]


@needs_geometric
def test_subset_copies_only_its_graphs():
    dataset = GraphDataset(pack(make_graphs()), torch.arange(12) % 3 // 2)
    subset = dataset.subset(torch.tensor([8, 2, 3]))
    assert subset.targets.tolist() == [1, 1, 0]
    assert_same_fields(subset.rows(np.array([0, 1, 2])), dataset.rows(np.array([8, 2, 3])))
    assert len(subset.graphs.x) == sum(len(make_graphs()[i]["x"]) for i in (8, 2, 3))


@needs_geometric
def test_fetched_in_one_go_and_across_processes():
    dataset = GraphDataset(pack(make_graphs()), torch.arange(12) % 2)
    fetch = pickle.loads(pickle.dumps(fetcher_for(dataset)))  # noqa: S301  # made one line above
    dataset_type = type(dataset)
    dataset_type.__getitem__, original = None, dataset_type.__getitem__
    try:
        batch = fetch(np.array([4, 9]), 0)
    finally:
        dataset_type.__getitem__ = original
    assert_same_fields(pickle.loads(pickle.dumps(batch)), dataset.rows(np.array([4, 9])))  # noqa: S301


def test_small_integers_take_one_byte_and_others_stay():
    graphs = make_graphs(2)
    packed = pack(graphs)
    assert packed.x.dtype == packed.edge_attr.dtype == torch.uint8
    graphs[0]["x"] = graphs[0]["x"] + 200
    graphs[1]["x"] = graphs[1]["x"] - 1000
    assert torch.equal(pack(graphs).x, torch.from_numpy(np.concatenate([g["x"] for g in graphs])))
    assert pack([{**g, "x": g["x"] / 2} for g in graphs]).joined()["x"].dtype == torch.float64


@pytest.mark.parametrize("name", ["x", "edge_index", "edge_attr", "num_nodes", "num_edges"])
def test_refuses_arrays_that_disagree(name):
    packed = pack(make_graphs())
    arrays = {k: getattr(packed, k) for k in ("x", "edge_index", "edge_attr", "num_nodes", "num_edges")}
    arrays[name] = arrays[name][:, 1:] if name == "edge_index" else arrays[name][1:]
    with pytest.raises(DataError, match=r"as the counts of \d+ graphs say, but got"):
        PackedGraphs(**arrays)
