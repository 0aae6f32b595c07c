"""The forward that is served: each layer computes only the nodes that the next one needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayeredModel(nn.Module):
    """Runs a stack of layers on sampled neighbourhoods; made to be scripted by TorchScript.

    Layer l of L computes the nodes of hops 0 to L - l from those of hops 0 to L - l + 1 (PyG calls this
    trimming): on two hops of ten that is a tenth of the arithmetic of every layer over every node, with
    the same result.

    Args:
        layers: each is called as `((x_source, x_target), edge_index, edge_inputs)`; a ReLU stands between
            them.
        head: from the embedding, after a ReLU, to logits.
        layer_fanouts: for each layer, how many of a node's sampled neighbours it aggregates.
        dropout: of the inputs of each layer and of the head, for training; none where it is served.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        head: nn.Module,
        layer_fanouts: tuple[int, ...],
        dropout: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.head = head
        self.fanouts = list(layer_fanouts)
        self.num_layers = len(layer_fanouts)
        self.dropout = nn.Identity() if dropout is None else dropout

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        hop: Tensor,
        edge_rank: Tensor,
        edge_input: Tensor | None = None,
        second_edge_input: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embedding and logits of the seeds, in their order.

        Args:
            x: float32 [num_sampled_nodes, feature_dim].
            edge_index: int64 [2, num_edges], from child to parent.
            hop: integer [num_sampled_nodes], distance from the nearest seed.
            edge_rank: integer [num_edges], the child's place among its parent's neighbours.
            edge_input, second_edge_input: float32 [num_edges] or [num_edges, edge_dim], what the layers
                take of each edge, in their order.
        """
        h = x
        src, dst = edge_index[0], edge_index[1]
        edge_inputs: list[Tensor] = []
        if edge_input is not None:
            edge_inputs.append(edge_input)
        if second_edge_input is not None:
            edge_inputs.append(second_edge_input)
        for number, layer in enumerate(self.layers):
            if number > 0:
                h = torch.relu(h)
            h = self.dropout(h)
            computed = hop < self.num_layers - number
            place = computed.to(torch.long).cumsum(0) - 1  # of each computed node, among them
            kept = computed.nonzero().view(-1)
            used = computed[dst] & (edge_rank < self.fanouts[number])
            layer_edges = torch.stack([src[used], place[dst[used]]])
            h = layer((h, h.index_select(0, kept)), layer_edges, [each[used] for each in edge_inputs])
            # Now the computed nodes are all there is.
            inner = computed[src] & computed[dst]
            src, dst, edge_rank, hop = place[src[inner]], place[dst[inner]], edge_rank[inner], hop[kept]
            edge_inputs = [each[inner] for each in edge_inputs]
        return h, self.head(self.dropout(torch.relu(h)))
