"""The inner loops that arrange sampled trees by hop, and that sum up what a normalising layer divides by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import borrowed, compiled
from handler.graph.overlay_layout import AddedArrays, BaseArrays
from handler.graph.row_reads import read_row, weight_of


@compiled
def arrange_by_hop(
    hop: NDArray[np.int8],
    parent: NDArray[np.int64],
    rank: NDArray[np.int32],
    ptr: NDArray[np.int64],
    hop_start: NDArray[np.int64],
    order: NDArray[np.int64],
    edge_order: NDArray[np.int64],
    edge_index: NDArray[np.int64],
    edge_rank: NDArray[np.int32],
    child_ptr: NDArray[np.int64],
) -> None:
    """Write all nodes of hop 0, then those of hop 1, and so on, each hop in the order of the trees.

    Children of one node stay side by side and come in the order of their parents, so that a node's edges
    are a range, and the edge of the i-th node that is no seed is the i-th.
    """
    num_seeds = len(ptr) - 1
    for place in range(len(hop)):
        hop_start[hop[place] + 1] += 1
    for depth in range(1, len(hop_start)):
        hop_start[depth] += hop_start[depth - 1]
    cursor = hop_start[:-1].copy()
    position = np.empty(len(hop), dtype=np.int64)
    for tree in range(num_seeds):
        for place in range(ptr[tree], ptr[tree + 1]):
            at = cursor[hop[place]]
            cursor[hop[place]] += 1
            position[place] = at
            order[at] = place
            if place > ptr[tree]:
                edge = place - tree - 1
                new = at - num_seeds
                above = position[parent[edge]]
                edge_order[new] = edge
                edge_index[0, new] = at
                edge_index[1, new] = above
                edge_rank[new] = rank[edge]
                child_ptr[above + 1] += 1
    for at in range(1, len(child_ptr)):
        child_ptr[at] += child_ptr[at - 1]


@compiled
def count_by_hop(hop: NDArray[np.int8], ptr: NDArray[np.int64], count: NDArray[np.int64]) -> None:
    """Add to `count` [num_hops + 1, num_seeds] the nodes of each tree at each hop."""
    for tree in range(len(ptr) - 1):
        for place in range(ptr[tree], ptr[tree + 1]):
            count[hop[place], tree] += 1


@compiled
def sum_samples(
    base: BaseArrays,
    added: AddedArrays,
    by_time: bool,
    weighted: bool,
    as_of: NDArray[np.float64],
    max_age: float,
    now: float,
    node: NDArray[np.int64],
    ptr: NDArray[np.int64],
    fanouts: NDArray[np.int64],
    total: NDArray[np.float32],
) -> None:
    """Write to `total` [num_fanouts, num_tree_nodes] the weights of each node's sample, or their number."""
    base, added = borrowed(base), borrowed(added)
    widest = fanouts.max()
    found = np.empty(widest, dtype=np.int64)
    for tree in range(len(ptr) - 1):
        latest = as_of[tree] if len(as_of) else np.inf
        earliest = (latest if latest < np.inf else now) - max_age
        for place in range(ptr[tree], ptr[tree + 1]):
            count = read_row(base, added, node[place], latest, earliest, by_time, widest, found)
            for layer in range(len(fanouts)):
                sampled = min(count, fanouts[layer])
                if not weighted:
                    total[layer, place] = sampled
                    continue
                summed = 0.0
                for step in range(sampled):
                    summed += weight_of(base, added, found[step])
                total[layer, place] = summed
