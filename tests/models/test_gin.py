from importlib.util import find_spec

import pytest
import torch

from lightning_tpauc.extras import import_extra
from lightning_tpauc.models import GIN
from tests.helpers.fitting import count_parameters
from tests.helpers.tolerances import assert_close

needs_graph = pytest.mark.skipif(
    find_spec("torch_geometric") is None or find_spec("ogb") is None, reason="the extra `graph` is not installed"
)
# OGB's vocabularies: atomic number, chirality, degree, charge, hydrogens, radicals, hybridisation, aromatic, ring.
ATOM_SIZES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
BOND_SIZES = (5, 6, 2)


def random_graphs(count, generator):
    """Chains of 2 to 9 atoms with some extra bonds, both directions of each."""
    data = import_extra("torch_geometric.data", "graph")
    graphs = []
    for _ in range(count):
        atoms = int(torch.randint(2, 10, (), generator=generator))
        pairs = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
        pairs = torch.cat([pairs, torch.tensor([[0], [atoms - 1]])], dim=1)
        x = torch.stack([torch.randint(0, size, (atoms,), generator=generator) for size in ATOM_SIZES], dim=1)
        bonds = torch.stack([torch.randint(0, k, (pairs.shape[1],), generator=generator) for k in BOND_SIZES], dim=1)
        edges, features = torch.cat([pairs, pairs.flip(0)], dim=1), torch.cat([bonds, bonds])
        graphs.append(data.Data(x=x, edge_index=edges, edge_attr=features))
    return graphs


def batch_of(graphs):
    return import_extra("torch_geometric.data", "graph").Batch.from_data_list(graphs)


def by_hand(model, graph):
    """The score of one graph in evaluation mode, atom by atom and bond by bond."""
    hidden = [
        sum(table(graph.x[v, k]) for k, table in enumerate(model.atoms.atom_embedding_list))
        for v in range(len(graph.x))
    ]
    last = len(model.layers) - 1
    for k, (layer, norm) in enumerate(zip(model.layers, model.norms, strict=True)):
        total = [(1 + layer.eps) * h for h in hidden]
        for e, (source, sink) in enumerate(graph.edge_index.T.tolist()):
            message = hidden[source]
            if model.edge_features:
                tables = model.bonds[k].bond_embedding_list
                message = (message + sum(t(graph.edge_attr[e, j]) for j, t in enumerate(tables))).relu()
            total[sink] = total[sink] + message
        hidden = [norm(layer.nn(t[None]))[0] for t in total]
        if k != last:
            hidden = [h.relu() for h in hidden]
    return model.head(sum(hidden) / len(hidden))[0]


@needs_graph
@pytest.mark.parametrize("edge_features", [False, True])
def test_scores_equal_a_loop_over_atoms_and_bonds(edge_features):
    torch.manual_seed(0)
    graphs = random_graphs(4, torch.Generator().manual_seed(1))
    model = GIN(hidden_features=6, num_layers=3, edge_features=edge_features).double()
    for layer in model.layers:
        torch.nn.init.uniform_(layer.eps)
    model(batch_of(graphs))  # gives the normalisations statistics other than 0 and 1
    model.eval()
    expected = torch.stack([by_hand(model, graph) for graph in graphs])
    assert_close(model(batch_of(graphs)), expected, "float64")


@needs_graph
def test_the_default_is_the_papers_size():
    d = 64
    mlp = d * 2 * d + 2 * d + 2 * (2 * d) + 2 * d * d + d
    layer = mlp + 1 + 2 * d  # eps and the normalisation
    assert count_parameters(GIN()) == sum(ATOM_SIZES) * d + 5 * layer + d + 1
    assert count_parameters(GIN(edge_features=True)) == sum(ATOM_SIZES) * d + 5 * (layer + sum(BOND_SIZES) * d) + d + 1
    assert GIN().dropout.p == 0.5


@needs_graph
@pytest.mark.parametrize(("pooling", "factor"), [("mean", 1.0), ("max", 1.0), ("sum", 2.0)])
def test_pooling(pooling, factor):
    torch.manual_seed(0)
    (graph,) = random_graphs(1, torch.Generator().manual_seed(2))
    atoms = len(graph.x)
    twice = graph.clone()  # two unconnected copies in one graph
    twice.x, twice.edge_index = graph.x.repeat(2, 1), torch.cat([graph.edge_index, graph.edge_index + atoms], dim=1)
    model = GIN(hidden_features=8, num_layers=2, pooling=pooling).double().eval()
    one, two = model(batch_of([graph, twice])) - model.head.bias
    assert_close(two, factor * one, "float64")
