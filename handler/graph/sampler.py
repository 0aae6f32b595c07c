"""Samples trees of neighbours: by reading prefixes of ordered rows, or by drawing what is computed.

The sample of a seed is a tree by hop, in breadth-first order: a node met twice stands twice, so each
node but the seed has one edge, to its parent. The trees of many seeds lie one after another, which is
how PyG lays out the graphs of a `Batch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.adjacency import Adjacency
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeIds, RangeIds
from handler.graph.kernels import compiled
from handler.graph.sampling import MAX_VISITS, Sampling, draw_places, most_visited

_PREFIX, _PERMUTED, _DRAWN, _WALKED = range(4)
# So many seeds and nodes at a time, that what was fetched is still in the cache when it is read.
_FETCHED_SEEDS, _FETCHED_NODES = 32, 2048
_NO_LIMIT = 2**62
_NO_TIMES = np.empty(0)


@dataclass(frozen=True)
class TreeLimits:
    """How much one call may sample; what does not fit is left for another."""

    max_nodes: int = _NO_LIMIT
    max_edges: int = _NO_LIMIT


@dataclass(frozen=True)
class SampledTrees:
    """The sampled trees of some seeds.

    Args:
        node: int64 [num_tree_nodes], node index of each tree node; a tree begins with its seed.
        hop: int8 [num_tree_nodes], distance from the seed.
        edge_index: int64 [2, num_tree_nodes - num_seeds], from child to parent, as positions in `node`;
            in the order of the children.
        edge_rank: int32 [num_tree_nodes - num_seeds], the child's place in its parent's ordered list.
        edge: int64 [num_tree_nodes - num_seeds], position of each edge in the graph's arrays; -1 where
            there is no such edge, because a walk led there.
        ptr: int64 [num_seeds + 1], where each tree begins in `node`.
        share: float32 [num_tree_nodes - num_seeds], of the walks' visits; none where nothing walked.
    """

    node: NDArray[np.int64]
    hop: NDArray[np.int8]
    edge_index: NDArray[np.int64]
    edge_rank: NDArray[np.int32]
    edge: NDArray[np.int64]
    ptr: NDArray[np.int64]
    share: NDArray[np.float32] | None = None

    @property
    def num_seeds(self) -> int:
        return len(self.ptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])


class Sampler:
    """Samples one graph by one strategy.

    Args:
        ids: of the graph's nodes, by which walks are drawn.

    Raises:
        GraphInputError: the graph has no such ordering.
    """

    def __init__(
        self, adjacency: Adjacency, sampling: Sampling | None = None, ids: NodeIds | None = None
    ) -> None:
        self.adjacency = adjacency
        self.sampling = sampling or Sampling()
        strategy = self.sampling.strategy or adjacency.ordering.strategy
        self._by_time = strategy == "recent"
        self._permutation = np.empty(0, dtype=np.uint32)
        if strategy in {"random", "walk"}:
            self._method = _DRAWN if strategy == "random" else _WALKED
        elif strategy == adjacency.ordering.strategy:
            self._method = _PREFIX
        elif (permutation := adjacency.permutations.get(strategy)) is not None:  # type: ignore[arg-type]
            self._method = _PERMUTED
            self._permutation = permutation
        else:
            stored = ", ".join(f"`{name}`" for name in (adjacency.ordering.strategy, *adjacency.permutations))
            raise GraphInputError(f"the graph stores no ordering `{strategy}`, only {stored}")
        if self.sampling.num_walks * self.sampling.walk_length > MAX_VISITS:
            raise GraphInputError(f"num_walks times walk_length must be at most {MAX_VISITS}")
        self._id_parts = (ids or RangeIds(adjacency.num_nodes)).hash_parts()
        self._walks = np.array([self.sampling.num_walks, self.sampling.walk_length], dtype=np.int64)
        self._fetched = np.zeros(1, dtype=np.int64)
        self._time = _NO_TIMES if adjacency.edge_time is None else adjacency.edge_time

    @property
    def knows_time(self) -> bool:
        """Whether `as_of` has a meaning: neighbours come by time."""
        return self._by_time

    def trees(
        self,
        seeds: NDArray[np.int64],
        plan: FanoutPlan,
        as_of: NDArray[np.float64] | None = None,
        limits: TreeLimits = TreeLimits(),
    ) -> SampledTrees:
        """Sample the tree of each seed, as far as the limits let whole trees fit.

        Args:
            seeds: int64 [num_seeds], node indices within the graph; repeats are sampled again.
            as_of: float64 [num_seeds]: no edge later than that is used, at any hop; only where the
                neighbours come by time.

        Returns:
            The trees of the first seeds: of all, unless the next one would go beyond the limits.

        Raises:
            GraphInputError: there is an `as_of`, but the neighbours do not come by time.
        """
        if as_of is not None and not self._by_time:
            raise GraphInputError("as_of needs neighbors in `recent` order")
        capacity = min(len(seeds) * plan.max_tree_nodes, limits.max_nodes)
        # Reserved for the largest trees, but only what is written takes memory.
        node = np.empty(capacity, dtype=np.int64)
        hop = np.empty(capacity, dtype=np.int8)
        edge_columns = np.empty((3, capacity), dtype=np.int64)
        rank = np.empty(capacity, dtype=np.int32)
        share = np.empty(capacity if self._method == _WALKED else 0, dtype=np.float32)
        ptr = np.zeros(len(seeds) + 1, dtype=np.int64)
        num_trees = _grow_trees(
            self._method,
            self.adjacency.indptr,
            self.adjacency.indices,
            self._permutation,
            self._time,
            _NO_TIMES if as_of is None else as_of,
            *self._id_parts,
            np.uint64(self.sampling.seed),
            self._walks,
            seeds,
            plan.hop_fanout_array,
            capacity,
            limits.max_edges,
            node,
            hop,
            edge_columns,
            rank,
            share,
            ptr,
            self._fetched,
        )
        ptr = ptr[: num_trees + 1]
        num_nodes, num_edges = int(ptr[-1]), int(ptr[-1]) - num_trees
        return SampledTrees(
            node[:num_nodes],
            hop[:num_nodes],
            edge_columns[:2, :num_edges],
            rank[:num_edges],
            edge_columns[2, :num_edges],
            ptr,
            share[:num_edges] if self._method == _WALKED else None,
        )

    def edge_weight(self, trees: SampledTrees) -> NDArray[np.float32] | None:
        """float32 [num_edges]: share of the walks' visits, or the edges' own weights; none without."""
        if trees.share is not None:
            return trees.share
        weight = self.adjacency.edge_weight
        return None if weight is None else weight[trees.edge]

    def edge_attr(self, trees: SampledTrees) -> NDArray[np.float32] | None:
        """float32 [num_edges, edge_dim]: the edges' features; none without."""
        attr = self.adjacency.edge_attr
        if attr is None or trees.share is not None:
            return None
        return np.take(attr, trees.edge, axis=0).astype(np.float32, copy=False)


@compiled
def _not_later(
    time: NDArray[np.float64], permutation: NDArray[np.uint32], start: int, end: int, as_of: float
) -> int:
    """How many of a row's edges, which lie latest first, are later than `as_of`."""
    low, high = 0, end - start
    while low < high:
        middle = (low + high) // 2
        place = permutation[start + middle] if len(permutation) else middle
        if time[start + place] > as_of:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _find_edges(
    method: int,
    indptr: NDArray[np.int64],
    permutation: NDArray[np.uint32],
    time: NDArray[np.float64],
    latest: float,
    draw_seed: np.uint64,
    node: int,
    fanout: int,
    found: NDArray[np.int64],
    moved: NDArray[np.int64],
) -> tuple[int, int]:
    """Find a node's sampled edges: where they begin, if they are a prefix, and how many there are.

    The positions of others are written to `found`.
    """
    row, end = indptr[node], indptr[node + 1]
    first = row
    if latest < np.inf:
        first += _not_later(time, permutation, row, end, latest)
    count = min(end - first, fanout)
    if method == _PERMUTED:
        for place in range(count):
            found[place] = row + permutation[first + place]
    elif method == _DRAWN:
        draw_places(draw_seed, node, end - row, count, found, moved)
        for place in range(count):
            found[place] += row
    return first, count


@compiled
def _fetch_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    seeds: NDArray[np.int64],
    fanouts: NDArray[np.int64],
    frontier: NDArray[np.int64],
) -> int:
    """Bring what the trees of some seeds will read into the cache, many rows at once.

    Grown tree by tree, each read waits for the one before it. Here all trees go hop by hop, and the loops
    do nothing that depends on what they read: so the memory answers many reads at a time. `frontier`
    [2, capacity] bounds how much is fetched. The sum that is returned keeps the reads from being left out.
    """
    nodes, following = frontier[0], frontier[1]
    size = min(len(seeds), len(nodes))
    nodes[:size] = seeds[:size]
    total = 0
    last = len(indices) - 1
    for depth in range(len(fanouts)):
        for place in range(size):
            total += indptr[nodes[place] + 1]
        for place in range(size):
            start = indptr[nodes[place]]
            # A short row lies in one or two lines of the cache.
            total += indices[min(start, last)] + indices[min(start + fanouts[depth] - 1, last)]
        if depth + 1 == len(fanouts):
            break
        found = 0
        for place in range(size):
            start = indptr[nodes[place]]
            count = min(indptr[nodes[place] + 1] - start, fanouts[depth], len(following) - found)
            for step in range(count):
                following[found + step] = indices[start + step]
            found += count
        nodes, following, size = following, nodes, found
    return int(total)


@compiled
def _grow_trees(  # noqa: C901 - calls cost too much here
    method: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    permutation: NDArray[np.uint32],
    time: NDArray[np.float64],
    as_of: NDArray[np.float64],
    id_kind: int,
    ids: NDArray[np.int64],
    id_data: NDArray[np.uint8],
    id_offsets: NDArray[np.int64],
    draw_seed: np.uint64,
    walks: NDArray[np.int64],
    seeds: NDArray[np.int64],
    fanouts: NDArray[np.int64],
    max_nodes: int,
    max_edges: int,
    node: NDArray[np.int64],
    hop: NDArray[np.int8],
    edge_columns: NDArray[np.int64],
    rank: NDArray[np.int32],
    share: NDArray[np.float32],
    ptr: NDArray[np.int64],
    fetched: NDArray[np.int64],
) -> int:
    """Write whole trees until one does not fit; return how many fitted."""
    source, target, position = edge_columns[0], edge_columns[1], edge_columns[2]
    widest = fanouts.max() if len(fanouts) else 0
    found = np.empty(widest, dtype=np.int64)
    moved = np.empty((2, widest if method == _DRAWN else 0), dtype=np.int64)
    visits = np.empty(walks[0] * walks[1] if method == _WALKED else 0, dtype=np.int64)
    shares = np.empty(widest if method == _WALKED else 0, dtype=np.float32)
    frontier = np.empty((2, _FETCHED_NODES), dtype=np.int64)
    end = 0
    edge = 0
    for tree in range(len(seeds)):
        if tree % _FETCHED_SEEDS == 0 and method == _PREFIX and len(indices):
            fetched[0] += _fetch_rows(indptr, indices, seeds[tree : tree + _FETCHED_SEEDS], fanouts, frontier)
        level_start = end
        first = 0
        if end >= max_nodes:
            return tree
        node[end] = seeds[tree]
        hop[end] = 0
        end += 1
        for depth in range(len(fanouts)):
            level_end = end
            for parent in range(level_start, level_end):
                v = node[parent]
                if method == _WALKED:
                    count = most_visited(
                        indptr, indices, id_kind, ids, id_data, id_offsets, draw_seed,
                        walks[0], walks[1], v, fanouts[depth], visits, found, shares,
                    )  # fmt: skip
                elif method == _PREFIX and len(as_of) == 0:  # the usual case, without a call
                    first = indptr[v]
                    count = min(indptr[v + 1] - first, fanouts[depth])
                else:
                    latest = as_of[tree] if len(as_of) else np.inf
                    first, count = _find_edges(
                        method, indptr, permutation, time, latest, draw_seed, v, fanouts[depth], found, moved
                    )
                if end + count > max_nodes or edge + count > max_edges:
                    return tree
                for place in range(count):
                    if method == _WALKED:
                        node[end] = found[place]
                        position[edge] = -1
                        share[edge] = shares[place]
                    else:
                        at = first + place if method == _PREFIX else found[place]
                        node[end] = indices[at]
                        position[edge] = at
                    hop[end] = depth + 1
                    source[edge] = end
                    target[edge] = parent
                    rank[edge] = place
                    edge += 1
                    end += 1
            level_start = level_end
        ptr[tree + 1] = end
    return len(seeds)
