"""The layer of the example where edges say something: SAGEConv over what neighbours say along them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter


class EdgeSAGEConv(MessagePassing):  # type: ignore[misc]  # PyG has no types
    """The weighted mean of what neighbours say along their edges.

    A neighbour u of v says x(u), or with edge features e what GINEConv makes of them (Hu et al., 2020):
    relu(x(u) + W e(u, v)). With edge weights it counts as |w(u, v)| of the sum of |w| over the neighbours,
    and a negative weight turns its sign, so that only the ratios of weights matter, as in PinSAGE's
    importance pooling (Ying et al., 2018). Features come first, weights then.

    Args:
        weighted: whether it takes edge weights.
        edge_dim: number of edge features that it takes, or 0.
    """

    def __init__(self, in_dim: int, out_dim: int, *, weighted: bool, edge_dim: int) -> None:
        super().__init__(aggr="sum" if weighted else "mean")
        self.lin_l = nn.Linear(in_dim, out_dim)
        self.lin_r = nn.Linear(in_dim, out_dim, bias=False)
        self.lin_edge = nn.Linear(edge_dim, in_dim) if edge_dim else None

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        source, target = (x, x) if isinstance(x, Tensor) else x
        share = None if edge_weight is None else self._share(edge_weight, edge_index[1], target.size(0))
        out = self.propagate(edge_index, x=(source, target), share=share, edge_attr=edge_attr)
        projected: Tensor = self.lin_l(out) + self.lin_r(target)
        return projected

    def _share(self, weight: Tensor, target: Tensor, num_targets: int) -> Tensor:
        total = scatter(weight.abs(), target, dim=0, dim_size=num_targets, reduce="sum")
        share: Tensor = weight / total.clamp(min=1e-30).index_select(0, target)
        return share

    def message(self, x_j: Tensor, share: Tensor | None, edge_attr: Tensor | None) -> Tensor:
        said = x_j
        if self.lin_edge is not None and edge_attr is not None:
            said = torch.relu(said + self.lin_edge(edge_attr))
        return said if share is None else said * share.unsqueeze(1)
