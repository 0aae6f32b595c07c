"""What of a graph could not be read: nothing may be answered as though it were not there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.graph.ids import NodeId
from handler.graph.sampler import SampledTrees


@dataclass(frozen=True)
class Unread:
    """Which nodes of a graph are there in name only.

    Args:
        why: what to tell of it.
        ids: of those that were asked for; whether the graph has them may not be known.
        nodes: bool [num_nodes], whose features and ids are made up.
        rows: bool [num_nodes], whose edges should be there and are not.
        row_of_each: whether also the rows of nodes that are not expanded are needed.
    """

    why: str
    ids: frozenset[NodeId]
    nodes: NDArray[np.bool_]
    rows: NDArray[np.bool_]
    row_of_each: bool

    def touched(self, trees: SampledTrees, num_hops: int) -> NDArray[np.bool_]:
        """Bool [num_seeds]: whose trees need what is not there; such a tree may lack parts of its own."""
        # Guests come after all other nodes, and of them everything is known.
        node = np.minimum(trees.node, len(self.nodes))
        unread = np.append(self.nodes, np.False_)[node]
        no_row = np.append(self.rows, np.False_)[node]
        unread |= no_row if self.row_of_each else no_row & (trees.hop < num_hops)
        found: NDArray[np.bool_] = np.logical_or.reduceat(unread, trees.ptr[:-1])
        return found
