"""The inner loop that merges rows of a snapshot with what was added to them and removed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import compiled
from handler.graph.overlay_layout import AddedArrays, BaseArrays
from handler.graph.row_reads import live_degree, read_row


@compiled
def merge_changes(
    base: BaseArrays, added: AddedArrays, first: int, last: int, earliest: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The edges of nodes `first` to `last` as they are now, each row in its order.

    Args:
        earliest: older edges are left out.

    Returns:
        int64 [last - first], edges per node; and int64, the positions of the edges, row by row.
    """
    degree = np.empty(last - first, dtype=np.int64)
    num_edges = 0
    for place in range(last - first):
        degree[place] = live_degree(base, added, first + place)
        num_edges += degree[place]
    edge = np.empty(num_edges, dtype=np.int64)
    count = 0
    for place in range(last - first):
        degree[place] = read_row(
            base, added, first + place, np.inf, earliest, False, degree[place], edge[count:]
        )
        count += degree[place]
    return degree, edge[:count]
