"""Samples trees of neighbours: by reading prefixes of ordered rows, or by drawing what is computed.

The sample of a seed is a tree by hop, in breadth-first order: a node met twice stands twice, so each
node but the seed has one edge, to its parent. The trees of many seeds lie one after another, which is
how PyG lays out the graphs of a `Batch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.adjacency import Adjacency
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeIds, RangeIds
from handler.graph.layer_kernels import count_by_hop, sum_samples
from handler.graph.ordering import Strategy
from handler.graph.overlay import Overlay
from handler.graph.overlay_arrays import base_arrays, no_changes, take_edges
from handler.graph.overlay_layout import AddedArrays
from handler.graph.row_reads import DRAWN, ORDERED, WALKED
from handler.graph.sampling import MAX_VISITS, Sampling
from handler.graph.tree_kernels import grow_trees

_NO_LIMIT = 2**62
_NO_TIMES = np.empty(0)
_COMPUTED = {"random": DRAWN, "walk": WALKED}


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

    def count_by_hop(self, num_hops: int) -> NDArray[np.int64]:
        """int64 [num_hops + 1, num_seeds]: nodes of each tree, of which none is deeper, at each hop."""
        count = np.zeros((num_hops + 1, self.num_seeds), dtype=np.int64)
        count_by_hop(self.hop, self.ptr, count)
        return count


class Sampler:
    """Samples one graph by one strategy.

    Args:
        ids: of the graph's nodes, by which walks are drawn.
        overlay: changes to the graph, kept in the order that `sampled_order` names.
        max_edge_age: edges whose time is longer ago do not count.
        now: the time from which ages count where there is no `as_of`; seconds since 1970.

    Raises:
        GraphInputError: the graph has no such ordering, or does not know the age of what is computed.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        sampling: Sampling | None = None,
        ids: NodeIds | None = None,
        *,
        overlay: Overlay | None = None,
        max_edge_age: float | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.adjacency = adjacency
        self.sampling = sampling or Sampling()
        order = sampled_order(adjacency, self.sampling)
        self._by_time = self.sampling.strategy not in _COMPUTED and order == "recent"
        self._method = _COMPUTED.get(self.sampling.strategy or "", ORDERED)
        if self.sampling.num_walks * self.sampling.walk_length > MAX_VISITS:
            raise GraphInputError(f"num_walks times walk_length must be at most {MAX_VISITS}")
        if max_edge_age is not None and self._method != ORDERED:
            raise GraphInputError(
                f"`{self.sampling.strategy}` cannot tell how old an edge is; the graph has a max_edge_age"
            )
        self._overlay = overlay
        self._static = no_changes()
        self._base = (
            base_arrays(adjacency, ids or RangeIds(adjacency.num_nodes), adjacency.permutations.get(order))
            if overlay is None
            else overlay.base
        )
        self._walks = np.array([self.sampling.num_walks, self.sampling.walk_length], dtype=np.int64)
        self._fetched = np.zeros(1, dtype=np.int64)
        self._max_age = np.inf if max_edge_age is None else float(max_edge_age)
        self._now = now or time.time

    @property
    def _added(self) -> AddedArrays:
        # Without changes the reads that look for them are saved.
        overlay = self._overlay
        return self._static if overlay is None or overlay.is_empty else overlay.arrays

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
            self._base,
            self._added,
            self._by_time,
            _NO_TIMES if as_of is None else as_of,
            self._max_age,
            self._now(),
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
        return None if weight is None else take_edges(weight, self._added.edges["weight"][1:], trees.edge)

    def edge_attr(self, trees: SampledTrees) -> NDArray[np.float32] | None:
        """float32 [num_edges, edge_dim]: the edges' features; none without."""
        attr = self.adjacency.edge_attr
        if attr is None or trees.share is not None:
            return None
        added = attr[:0] if self._overlay is None else self._overlay.attr[1:]
        return take_edges(attr, added, trees.edge).astype(np.float32, copy=False)

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
        if self._method != ORDERED:
            raise GraphInputError(
                f"a model that normalises by degrees cannot sample by `{self.sampling.strategy}`"
            )
        if weighted and self.adjacency.edge_weight is None:
            raise GraphInputError("the graph has no edge weights to sum up")
        total = np.empty((len(layer_fanouts), len(trees.node)), dtype=np.float32)
        sum_samples(
            self._base,
            self._added,
            self._by_time,
            weighted,
            _NO_TIMES if as_of is None else as_of,
            self._max_age,
            self._now(),
            trees.node,
            trees.ptr,
            np.array(layer_fanouts, dtype=np.int64),
            total,
        )
        return total


def sampled_order(adjacency: Adjacency, sampling: Sampling) -> Strategy:
    """The order of rows from which a strategy samples: its own, or of what is computed the graph's.

    Raises:
        GraphInputError: the graph stores no such order.
    """
    own = adjacency.ordering.strategy
    strategy = own if sampling.strategy is None or sampling.strategy in _COMPUTED else sampling.strategy
    if strategy != own and strategy not in adjacency.permutations:
        stored = ", ".join(f"`{name}`" for name in (own, *adjacency.permutations))
        raise GraphInputError(f"the graph stores no ordering `{strategy}`, only {stored}")
    return strategy  # type: ignore[return-value]  # what is computed is ruled out
