"""The layers of the example: SAGEConv, over what neighbours say, with or without what edges have.

Every layer is called alike, as `LayeredModel` asks: `((x_source, x_target), edge_index, edge_inputs)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import scatter

from handler.model.signature import EdgeInput


class SAGELayer(nn.Module):
    """The mean of the neighbours, whatever their edges have."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = SAGEConv(in_dim, out_dim)

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor, edge_inputs: list[Tensor]) -> Tensor:
        out: Tensor = self.conv(x, edge_index)
        return out


class EdgeSAGELayer(nn.Module):
    """The weighted mean of what neighbours say along their edges.

    A neighbour u of v says x(u), or with edge features e what GINEConv makes of them (Hu et al., 2020):
    relu(x(u) + W e(u, v)). With edge weights it counts as |w(u, v)| of the sum of |w| over the neighbours,
    and a negative weight turns its sign, so that only the ratios of weights matter, as in PinSAGE's
    importance pooling (Ying et al., 2018). Features come first, weights then.

    Args:
        edge_inputs: which there are, in the order in which they come.
        edge_dim: number of edge features.
    """

    def __init__(self, in_dim: int, out_dim: int, edge_inputs: Sequence[EdgeInput], edge_dim: int) -> None:
        super().__init__()
        self.weight_at = _place("edge_weight", edge_inputs)
        self.attr_at = _place("edge_attr", edge_inputs)
        self.conv = SAGEConv(in_dim, out_dim, aggr="sum" if self.weight_at >= 0 else "mean")
        self.lin_edge = nn.Linear(edge_dim, in_dim) if self.attr_at >= 0 else None

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor, edge_inputs: list[Tensor]) -> Tensor:
        target, num_targets = edge_index[1], x[1].size(0)
        said = x[0].index_select(0, edge_index[0])
        if self.lin_edge is not None:
            said = torch.relu(said + self.lin_edge(edge_inputs[self.attr_at]))
        if self.weight_at >= 0:
            weight = edge_inputs[self.weight_at]
            total = scatter(weight.abs(), target, dim=0, dim_size=num_targets, reduce="sum")
            said = said * (weight / total.clamp(min=1e-30)[target]).unsqueeze(1)
        # Each edge is now a source of its own.
        each = torch.arange(target.size(0), device=target.device)
        out: Tensor = self.conv((said, x[1]), torch.stack([each, target]))
        return out


def _place(name: EdgeInput, edge_inputs: Sequence[EdgeInput]) -> int:
    return list(edge_inputs).index(name) if name in edge_inputs else -1
