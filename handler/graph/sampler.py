"""Samples by reading prefixes: a node's sample of size f is the first f of its ordered neighbours.

The sample of a seed is a tree by hop, in breadth-first order: a node met twice stands twice, so each
node but the seed has one edge, to its parent. The trees of many seeds lie one after another, which is
how PyG lays out the graphs of a `Batch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.graph.fanout import FanoutPlan
from handler.graph.kernels import compiled


@dataclass(frozen=True)
class Adjacency:
    """In-neighbours in sampling order, as compressed sparse rows.

    Args:
        indptr: int64 [num_nodes + 1], row offsets.
        indices: int32 or int64 [num_edges], node indices; row v holds v's in-neighbours, ordered.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]


@dataclass(frozen=True)
class SampledTrees:
    """The sampled trees of some seeds.

    Args:
        node: int64 [num_tree_nodes], node index of each tree node; a tree begins with its seed.
        hop: int8 [num_tree_nodes], distance from the seed.
        edge_index: int64 [2, num_tree_nodes - num_seeds], from child to parent, as positions in `node`;
            in the order of the children.
        edge_rank: int32 [num_tree_nodes - num_seeds], the child's place in its parent's ordered list.
        ptr: int64 [num_seeds + 1], where each tree begins in `node`.
    """

    node: NDArray[np.int64]
    hop: NDArray[np.int8]
    edge_index: NDArray[np.int64]
    edge_rank: NDArray[np.int32]
    ptr: NDArray[np.int64]

    @property
    def num_seeds(self) -> int:
        return len(self.ptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])


def sample_trees(adjacency: Adjacency, seeds: NDArray[np.int64], plan: FanoutPlan) -> SampledTrees:
    """Sample the tree of each seed.

    Args:
        seeds: int64 [num_seeds], node indices within the graph; repeats are sampled again.
    """
    capacity = len(seeds) * plan.max_tree_nodes
    # Reserved for the largest trees, but only what is written takes memory.
    node = np.empty(capacity, dtype=np.int64)
    hop = np.empty(capacity, dtype=np.int8)
    source = np.empty(capacity, dtype=np.int64)
    target = np.empty(capacity, dtype=np.int64)
    rank = np.empty(capacity, dtype=np.int32)
    ptr = np.zeros(len(seeds) + 1, dtype=np.int64)
    fanouts = np.array(plan.hop_fanouts, dtype=np.int64)
    _grow_trees(adjacency.indptr, adjacency.indices, seeds, fanouts, node, hop, source, target, rank, ptr)
    num_nodes, num_edges = int(ptr[-1]), int(ptr[-1]) - len(seeds)
    edge_index = np.empty((2, num_edges), dtype=np.int64)
    edge_index[0], edge_index[1] = source[:num_edges], target[:num_edges]
    return SampledTrees(node[:num_nodes], hop[:num_nodes], edge_index, rank[:num_edges], ptr)


def prefix_edge_index(adjacency: Adjacency, fanout: int) -> NDArray[np.int64]:
    """int64 [2, num_sampled]: every node's sample of size `fanout`, from neighbour to node."""
    degree = np.minimum(np.diff(adjacency.indptr), fanout)
    edge_index = np.empty((2, int(degree.sum())), dtype=np.int64)
    _read_prefixes(adjacency.indptr, adjacency.indices, fanout, edge_index)
    return edge_index


@compiled
def _grow_trees(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    seeds: NDArray[np.int64],
    fanouts: NDArray[np.int64],
    node: NDArray[np.int64],
    hop: NDArray[np.int8],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    rank: NDArray[np.int32],
    ptr: NDArray[np.int64],
) -> None:
    end = 0
    edge = 0
    for tree in range(len(seeds)):
        level_start = end
        node[end] = seeds[tree]
        hop[end] = 0
        end += 1
        for depth in range(len(fanouts)):
            level_end = end
            for parent in range(level_start, level_end):
                row_start = indptr[node[parent]]
                count = min(indptr[node[parent] + 1] - row_start, fanouts[depth])
                for place in range(count):
                    node[end] = indices[row_start + place]
                    hop[end] = depth + 1
                    source[edge] = end
                    target[edge] = parent
                    rank[edge] = place
                    edge += 1
                    end += 1
            level_start = level_end
        ptr[tree + 1] = end


@compiled
def _read_prefixes(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    fanout: int,
    edge_index: NDArray[np.int64],
) -> None:
    edge = 0
    for node in range(len(indptr) - 1):
        for position in range(indptr[node], min(indptr[node + 1], indptr[node] + fanout)):
            edge_index[0, edge] = indices[position]
            edge_index[1, edge] = node
            edge += 1
