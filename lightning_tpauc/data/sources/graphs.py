"""Many small graphs, packed into a few long arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_tpauc.data.core.arrays import RowsDataset
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra

Indices = NDArray[np.int64]


class PackedGraphs:
    """The nodes of all graphs one after the other, and the same for their edges.

    A batch is gathered from four arrays. ``Batch.from_data_list``, in contrast, touches every graph in Python. Integer
    features that fit into a byte, as those of OGB's molecules do, are kept as bytes.

    Args:
        x: node features ``(nodes, F)``.
        edge_index: int64 ``(2, edges)``; nodes are numbered from 0 within their graph.
        edge_attr: edge features ``(edges, G)``.
        num_nodes: int64 ``(N,)``, nodes of each graph.
        num_edges: int64 ``(N,)``, edges of each graph.

    Raises:
        DataError: if the arrays' lengths disagree with the counts.

    Example:
        >>> import torch
        >>> graphs = PackedGraphs(torch.arange(5)[:, None], torch.tensor([[0, 1, 0], [1, 0, 1]]),
        ...                       torch.zeros(3, 1), torch.tensor([2, 1, 2]), torch.tensor([2, 0, 1]))
        >>> graphs.take(torch.tensor([2, 1])).x.flatten().tolist()
        [3, 4, 2]
    """

    def __init__(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, num_nodes: Tensor, num_edges: Tensor) -> None:
        nodes, edges = int(num_nodes.sum()), int(num_edges.sum())
        found = len(num_edges), len(x), edge_index.shape[1], len(edge_attr)
        if found != (len(num_nodes), nodes, edges, edges):
            msg = (
                f"Expected {nodes} nodes and {edges} edges, as the counts of {len(num_nodes)} graphs say, but got "
                f"{found[0]} counts of edges, {found[1]} nodes, {found[2]} edges and {found[3]} edge features."
            )
            raise DataError(msg)
        self.x, self.edge_attr = _narrow(x), _narrow(edge_attr)
        self.edge_index = edge_index
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self._first_node = num_nodes.cumsum(0) - num_nodes
        self._first_edge = num_edges.cumsum(0) - num_edges

    def __len__(self) -> int:
        return len(self.num_nodes)

    def take(self, index: Tensor) -> PackedGraphs:
        """The graphs ``index`` (int64, ``(M,)``) in that order, repetitions included."""
        num_nodes, num_edges = self.num_nodes[index], self.num_edges[index]
        nodes, edges = _runs(self._first_node[index], num_nodes), _runs(self._first_edge[index], num_edges)
        return PackedGraphs(
            self.x.index_select(0, nodes),
            self.edge_index.index_select(1, edges),
            self.edge_attr.index_select(0, edges),
            num_nodes,
            num_edges,
        )

    def joined(self) -> dict[str, Tensor]:
        """The fields of a PyG batch: all graphs as one unconnected graph.

        Returns:
            ``x``, ``edge_attr`` (integers as int64), ``edge_index`` (nodes numbered through), ``batch`` int64
            ``(nodes,)``, the graph of each node, and ``ptr`` int64 ``(N + 1,)``, the first node of each graph.
        """
        shift = self._first_node.repeat_interleave(self.num_edges)
        return {
            "x": _widen(self.x),
            "edge_index": self.edge_index + shift,
            "edge_attr": _widen(self.edge_attr),
            "batch": torch.arange(len(self)).repeat_interleave(self.num_nodes),
            "ptr": torch.cat([self._first_node, self.num_nodes.sum(0, keepdim=True)]),
        }


class GraphDataset(RowsDataset):
    """Labelled graphs. Items are PyG graphs; a whole batch is fetched by a few indexing calls.

    Args:
        graphs: N graphs.
        targets: N labels, 0 or 1; of several tasks ``(N, K)``, nan where nothing was measured.
        label_names: names of several tasks.

    Raises:
        DataError: if lengths differ.
        MissingExtraError: torch_geometric is not installed.

    Example:
        >>> import torch
        >>> graphs = PackedGraphs(torch.arange(3)[:, None], torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 1),
        ...                       torch.tensor([2, 1]), torch.tensor([2, 0]))
        >>> data = GraphDataset(graphs, [1, 0])
        >>> data[0]
        Data(x=[2, 1], edge_index=[2, 2], edge_attr=[2, 1], y=[1])
        >>> data.rows(np.array([1, 0])).num_graphs
        2
    """

    #: Number of each molecule's scaffold, where a data module knows it.
    scaffolds: NDArray[np.int64] | None = None

    def __init__(
        self,
        graphs: PackedGraphs,
        targets: Tensor | NDArray[Any] | Sequence[int],
        label_names: Sequence[str] | None = None,
    ) -> None:
        if len(graphs) != len(targets):
            msg = f"Expected one label per graph, but got {len(targets)} labels for {len(graphs)} graphs."
            raise DataError(msg)
        self.graphs = graphs
        labels = torch.as_tensor(targets)
        #: int64 tensor ``(N,)``, or float tensor ``(N, K)``.
        self.targets = labels.float() if labels.ndim == 2 else labels.long()
        self.label_names = label_names
        data = import_extra("torch_geometric.data", "graph")
        self._item_type, self._batch_type = data.Data, data.Batch

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        index = torch.arange(len(self))[row].reshape(1)  # raises IndexError past the end, as iteration needs
        graph = self.graphs.take(index)
        return self._item_type(
            x=_widen(graph.x), edge_index=graph.edge_index, edge_attr=_widen(graph.edge_attr), y=self.targets[index]
        )

    def rows(self, rows: Indices) -> Any:
        """The PyG ``Batch`` of the graphs ``rows``, with their targets as ``y``."""
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return self._batch_type(y=self.targets[index], **self.graphs.take(index).joined())

    def subset(self, index: Tensor) -> GraphDataset:
        """A copy of the graphs ``index`` (int64, ``(M,)``) alone."""
        part = GraphDataset(self.graphs.take(index), self.targets[index], self.label_names)
        part.scaffolds = None if self.scaffolds is None else self.scaffolds[index.numpy()]
        return part


def _runs(starts: Tensor, lengths: Tensor) -> Tensor:
    """``starts[0], starts[0] + 1, ..``, ``lengths[0]`` of them, then those of the next run."""
    position = torch.arange(int(lengths.sum()))
    return position + (starts - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)


def _narrow(features: Tensor) -> Tensor:
    if features.dtype == torch.int64 and (features.numel() == 0 or (features.min() >= 0 and features.max() < 256)):
        return features.to(torch.uint8)
    return features


def _widen(features: Tensor) -> Tensor:
    return features.long() if features.dtype == torch.uint8 else features
