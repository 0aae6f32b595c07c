"""GraphSAGE (Hamilton, Ying and Leskovec, 2017) with mean aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from archive.example.layers import EdgeSAGELayer, SAGELayer
from handler.model.signature import EdgeInput


class NoClasses(nn.Module):
    """The head of a model that gives embeddings only: logits of width 0."""

    def forward(self, h: Tensor) -> Tensor:
        return h[:, :0]


class GraphSAGE(nn.Module):
    """Layers of SAGEConv whose last output is the embedding, and a linear head where there are classes.

    Args:
        feature_dim, hidden_dim, embedding_dim: widths of the input, of what lies between, of the output.
        num_layers: at least 1.
        num_classes: 0 for embeddings only.
        edge_inputs: what it takes of each edge, in this order.
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
        self.layers = nn.ModuleList(
            EdgeSAGELayer(width, next_width, edge_inputs, edge_dim)
            if edge_inputs
            else SAGELayer(width, next_width)
            for width, next_width in pairwise(widths)
        )
        self.head: nn.Module = nn.Linear(embedding_dim, num_classes) if num_classes else NoClasses()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        edge_indices: Sequence[Tensor],
        edge_inputs: Sequence[Sequence[Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embedding and logits of every node.

        Args:
            x: float32 [num_nodes, feature_dim].
            edge_indices: for each layer, int64 [2, num_sampled], the neighbours that it aggregates.
            edge_inputs: for each layer, what the model takes of these edges: float32 [num_sampled] or
                [num_sampled, edge_dim].
        """
        h = x
        for number, layer in enumerate(self.layers):
            if number:
                h = torch.relu(h)
            h = self.dropout(h)
            h = layer((h, h), edge_indices[number], list(edge_inputs[number]) if edge_inputs else [])
        return h, self.head(self.dropout(torch.relu(h)))
