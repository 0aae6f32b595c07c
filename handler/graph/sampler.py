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
from handler.graph.layer_kernels import sum_samples
from handler.graph.sampling import MAX_VISITS, Sampling
from handler.graph.tree_kernels import DRAWN, PERMUTED, PREFIX, WALKED, grow_trees

_NO_LIMIT = 2**62
_NO_TIMES = np.empty(0)
_NO_WEIGHTS = np.empty(0, dtype=np.float32)


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
            self._method = DRAWN if strategy == "random" else WALKED
        elif strategy == adjacency.ordering.strategy:
            self._method = PREFIX
        elif (permutation := adjacency.permutations.get(strategy)) is not None:  # type: ignore[arg-type]
            self._method = PERMUTED
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
        share = np.empty(capacity if self._method == WALKED else 0, dtype=np.float32)
        ptr = np.zeros(len(seeds) + 1, dtype=np.int64)
        num_trees = grow_trees(
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
            share[:num_edges] if self._method == WALKED else None,
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

    def sampled_degree(
        self,
        trees: SampledTrees,
        layer_fanouts: tuple[int, ...],
        as_of: NDArray[np.float64] | None = None,
        *,
        weighted: bool = False,
    ) -> NDArray[np.float32]:
        """For each layer the size of each tree node's sample, also of nodes that are not expanded.

        Args:
            as_of: as it was given to `trees`.
            weighted: the sum of the sample's edge weights instead.

        Returns:
            float32 [num_layers, num_tree_nodes].

        Raises:
            GraphInputError: neighbours are computed, not read, so that this would cost another sample of
                each; or there are no weights.
        """
        if self._method in {DRAWN, WALKED}:
            raise GraphInputError(
                f"a model that normalises by degrees cannot sample by `{self.sampling.strategy}`"
            )
        weight = self.adjacency.edge_weight if weighted else _NO_WEIGHTS
        if weight is None:
            raise GraphInputError("the graph has no edge weights to sum up")
        total = np.empty((len(layer_fanouts), len(trees.node)), dtype=np.float32)
        sum_samples(
            self._method,
            self.adjacency.indptr,
            self._permutation,
            self._time,
            weight,
            _NO_TIMES if as_of is None else as_of,
            trees.node,
            trees.ptr,
            np.array(layer_fanouts, dtype=np.int64),
            total,
        )
        return total
