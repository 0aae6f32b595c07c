"""What mutations of one graph look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GraphShape:
    """What a graph knows of its nodes and edges.

    Args:
        id_type: of node ids.
        feature_dim: number of features of a node; 0 without any.
        has_weight, has_time: whether edges have them.
        attr_dim: number of features of an edge.
    """

    id_type: Literal["int", "str"]
    feature_dim: int
    has_weight: bool
    has_time: bool
    attr_dim: int
