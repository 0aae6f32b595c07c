"""Which layers can be exported in which formats: the table of the tests, and of `docs/layers.md`."""

from __future__ import annotations

from torch import Tensor, nn

FEATURE_DIM, EDGE_DIM = 6, 3


class Stack(nn.Module):
    """Two layers."""

    def __init__(self, first: nn.Module, second: nn.Module, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first
        self.between = nn.ReLU() if between is None else between
        self.second = second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.between(self.first(x, edge_index)), edge_index)


class WeightedStack(Stack):
    """Two layers that take a weight of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = self.between(self.first(x, edge_index, edge_weight))
        return self.second(h, edge_index, edge_weight)


class AttributedStack(Stack):
    """Two layers that take features of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.between(self.first(x, edge_index, edge_attr=edge_attr))
        return self.second(h, edge_index, edge_attr=edge_attr)
