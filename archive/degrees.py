"""How many nodes of a graph have how many in-neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.graph.adjacency import Adjacency

_BLOCK_NODES = 1 << 20


@dataclass(frozen=True)
class Degrees:
    """The distribution of the in-degree.

    Args:
        degree: int64 [num_distinct], the degrees that occur, ascending.
        count: int64 [num_distinct], how many nodes have it.
    """

    degree: NDArray[np.int64]
    count: NDArray[np.int64]

    @property
    def isolated(self) -> int:
        """How many nodes have no in-neighbour."""
        return int(self.count[0]) if self.degree[0] == 0 else 0

    def quantile(self, share: float) -> int:
        """The lowest degree that at least this share of the nodes does not exceed."""
        ends = np.cumsum(self.count)
        return int(self.degree[np.searchsorted(ends, share * ends[-1])])


def count_degrees(adjacency: Adjacency) -> Degrees:
    """The in-degrees of a graph, in a memory that does not grow with its nodes.

    Few degrees are distinct: k of them need k * (k - 1) / 2 edges at least.
    """
    degree = count = np.empty(0, dtype=np.int64)
    for start in range(0, adjacency.num_nodes, _BLOCK_NODES):
        block = np.diff(adjacency.indptr[start : start + _BLOCK_NODES + 1])
        found, times = np.unique(block, return_counts=True)
        merged, place = np.unique(np.concatenate([degree, found]), return_inverse=True)
        sums = np.zeros(len(merged), dtype=np.int64)
        np.add.at(sums, place, np.concatenate([count, times]))
        degree, count = merged, sums
    return Degrees(degree, count)
