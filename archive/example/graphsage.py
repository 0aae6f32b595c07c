"""GraphSAGE (Hamilton, Ying and Leskovec, 2017) with mean aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from archive.example.layers import EdgeSAGEConv
from handler.model.signature import EdgeInput


class GraphSAGE(nn.Module):
    """Layers of SAGEConv whose last output is the embedding, and a linear head where there are classes.

    Args:
        feature_dim, hidden_dim, embedding_dim: widths of the input, of what lies between, of the output.
        num_layers: at least 1.
        num_classes: 0 for embeddings only.
        edge_inputs: what it takes of each edge.
        edge_dim: number of edge features.
        dropout: share of each layer's inputs that training leaves out.
    """

    def __init__(
        self,
        feature_dim: int,
        hidden_dim: int,
        embedding_dim: int,
        num_layers: int,
        num_classes: int,
        edge_inputs: Sequence[EdgeInput] = (),
        edge_dim: int = 0,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        widths = [feature_dim, *[hidden_dim] * (num_layers - 1), embedding_dim]
        self.takes_edges = bool(edge_inputs)
        self.takes_weights = "edge_weight" in edge_inputs
        self.layers = nn.ModuleList(
            EdgeSAGEConv(width, next_width, weighted=self.takes_weights, edge_dim=edge_dim)
            if edge_inputs
            else SAGEConv(width, next_width)
            for width, next_width in pairwise(widths)
        )
        self.head = nn.Linear(embedding_dim, num_classes) if num_classes else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The embedding of every node, and with classes their logits.

        Args:
            x: float32 [num_nodes, feature_dim].
            edge_index: int64 [2, num_edges], from neighbour to node.
            edge_weight: float32 [num_edges], if it takes them.
            edge_attr: float32 [num_edges, edge_dim], if it takes them.
        """
        h = x
        for number, layer in enumerate(self.layers):
            h = self.dropout(torch.relu(h) if number else h)
            if self.takes_edges:
                h = layer(h, edge_index, edge_weight=edge_weight, edge_attr=edge_attr)
            else:
                h = layer(h, edge_index)
        if self.head is None:
            return h
        return h, self.head(self.dropout(torch.relu(h)))
