"""The forward that is served: each layer computes only the nodes that the next one needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayeredModel(nn.Module):
    """Runs a stack of convolutions on sampled trees; made to be scripted by TorchScript.

    Layer l of L computes the nodes of hops 0 to L - l from those of hops 0 to L - l + 1 (PyG calls this
    trimming): on two hops of ten that is a tenth of the arithmetic of every layer over every node, with
    the same result.

    Args:
        convs: PyG convolutions that take `((x_src, x_dst), edge_index)`; a ReLU stands between them.
        head: from the embedding, after a ReLU, to logits.
        layer_fanouts: for each layer, how many of a node's sampled neighbours it aggregates.
    """

    def __init__(self, convs: nn.ModuleList, head: nn.Module, layer_fanouts: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = convs
        self.head = head
        self.fanouts = list(layer_fanouts)
        self.num_layers = len(layer_fanouts)

    def forward(self, x: Tensor, edge_index: Tensor, hop: Tensor, edge_rank: Tensor) -> tuple[Tensor, Tensor]:
        """Embedding and logits of the seeds, in the order of their trees.

        Args:
            x: float32 [num_tree_nodes, feature_dim].
            edge_index: int64 [2, num_edges], from child to parent.
            hop: integer [num_tree_nodes], distance from the seed.
            edge_rank: integer [num_edges], the child's place among its parent's neighbours.
        """
        h = x
        src, dst = edge_index[0], edge_index[1]
        for layer, conv in enumerate(self.convs):
            if layer > 0:
                h = torch.relu(h)
            computed = hop < self.num_layers - layer
            place = computed.to(torch.long).cumsum(0) - 1  # of each computed node, among them
            kept = computed.nonzero().view(-1)
            used = computed[dst] & (edge_rank < self.fanouts[layer])
            layer_edges = torch.stack([src[used], place[dst[used]]])
            h = conv((h, h.index_select(0, kept)), layer_edges)
            # Now the computed nodes are all there is.
            inner = computed[src] & computed[dst]
            src, dst, edge_rank, hop = place[src[inner]], place[dst[inner]], edge_rank[inner], hop[kept]
        return h, self.head(torch.relu(h))
