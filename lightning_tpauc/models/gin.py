"""Graph Isomorphism Network, the backbone of the paper's molecule experiments."""

from typing import Any, Literal

from torch import Tensor, nn

from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_choice


class GIN(nn.Module):
    """Graph Isomorphism Network on OGB's atom features (Xu et al. 2018), sized as in the paper.

    The paper says: "Graph Isomorphism Network (GIN) as the backbone model, which has 5 mean-pooling layers with 64
    hidden units and 0.5 dropout rate". That is read as five GIN layers that sum over neighbours, as GIN does by
    definition, and the mean over a graph's atoms at the end. GIN has no edge features, so bonds count as edges alone by
    default; ``edge_features=True`` adds embedded bond features to the messages (GINE, Hu et al. 2019), which is what
    OGB's example code calls GIN. Layer k is

        h_v <- MLP((1 + eps) h_v + sum_{u in N(v)} h_u),    with eps learnt, or
        h_v <- MLP((1 + eps) h_v + sum_{u in N(v)} relu(h_u + e_uv))    with edge features,

    where the MLP has one hidden layer of twice the width, followed by batch normalisation, ReLU (not after the last
    layer) and dropout.

    Args:
        hidden_features: width of all layers.
        num_layers: number of GIN layers.
        dropout: probability of zeroing a unit while training, in [0, 1).
        pooling: how atoms become one vector per molecule: ``"mean"``, ``"sum"`` or ``"max"``.
        edge_features: whether messages use OGB's bond features.
        num_labels: number of labels, K; every one gets a score of its own.

    Raises:
        ArgumentError: ``pooling`` is unknown.
        MissingExtraError: torch_geometric or ogb is not installed.

    Example:
        >>> model = GIN(hidden_features=8, num_layers=2)
        >>> import torch
        >>> from torch_geometric.data import Batch
        >>> x = torch.zeros(3, 9, dtype=torch.int64)  # two molecules, of two atoms and of one
        >>> model(Batch(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), ptr=torch.tensor([0, 2, 3]),
        ...             batch=torch.tensor([0, 0, 1]))).shape
        torch.Size([2])
    """

    def __init__(
        self,
        hidden_features: int = 64,
        num_layers: int = 5,
        dropout: float = 0.5,
        pooling: Literal["mean", "sum", "max"] = "mean",
        edge_features: bool = False,
        num_labels: int = 1,
    ) -> None:
        super().__init__()
        check_choice(pooling, "pooling", ("mean", "sum", "max"))
        geometric = import_extra("torch_geometric.nn", "graph")
        encoders = import_extra("ogb.graphproppred.mol_encoder", "graph")
        width = hidden_features
        self.edge_features = edge_features
        self.atoms = encoders.AtomEncoder(width)
        self.bonds = nn.ModuleList(encoders.BondEncoder(width) for _ in range(num_layers if edge_features else 0))
        layer = geometric.GINEConv if edge_features else geometric.GINConv
        self.layers = nn.ModuleList(layer(_mlp(width), train_eps=True) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(num_layers))
        self.dropout = nn.Dropout(dropout)
        self.pool = getattr(geometric, f"global_{'add' if pooling == 'sum' else pooling}_pool")
        self.head = nn.Linear(width, num_labels)

    def forward(self, inputs: Any) -> Tensor:
        """Map a ``torch_geometric.data.Batch`` of N molecules to scores ``(N,)``, or ``(N, num_labels)`` with several.

        It has OGB's integer features: ``x`` int64 (atoms, 9), ``edge_index`` int64 (2, edges), and ``edge_attr`` int64
        (edges, 3) if ``edge_features``.
        """
        hidden: Tensor = self.atoms(inputs.x)
        last = len(self.layers) - 1
        for k, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            extra = (self.bonds[k](inputs.edge_attr),) if self.edge_features else ()
            hidden = norm(layer(hidden, inputs.edge_index, *extra))
            hidden = self.dropout(hidden if k == last else hidden.relu())
        # The number of graphs is known on the host; without it the pooling would read it back from the device.
        return self.head(self.pool(hidden, inputs.batch, size=inputs.num_graphs)).squeeze(1)


def _mlp(width: int) -> nn.Sequential:
    """The map inside a GIN layer: one hidden layer of twice the width."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width))
