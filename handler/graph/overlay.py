"""A graph's changes since its snapshot, in arrays that the sampler reads beside those of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.adjacency import Adjacency
from handler.graph.edges import EdgeBlock
from handler.graph.ids import NodeId
from handler.graph.live_ids import LiveIds
from handler.graph.ordering import STRATEGIES, Ordering
from handler.graph.overlay_arrays import base_arrays, no_changes
from handler.graph.overlay_kernels import DROP, KEEP, SUM, apply_edges, insert_pairs, take_back
from handler.graph.overlay_layout import (
    HAS_TIME,
    HAS_WEIGHT,
    MAX_LEVELS,
    NUM_ADDED,
    NUM_EDGES,
    NUM_ROWS,
    NUM_SORTED,
    NUM_UPPER,
    AddedArrays,
    BaseArrays,
)
from handler.graph.rules import EdgeRules

_DUPLICATES = {"drop": DROP, "sum": SUM, "keep": KEEP}
_FIRST_CAPACITY = 1 << 8
_FREE_NODES = 1 << 16


@dataclass(frozen=True)
class OverlayMark:
    """How far an overlay was filled, to take back what came later."""

    num_new_nodes: int
    num_added: int
    num_upper: int


class Overlay:
    """Edges added to and removed from a snapshot, and its new nodes; kept in one order.

    Not safe to read while it is changed: whoever shares it locks.

    Args:
        ids: to which new nodes are added.
        ordering: by which neighbours are sampled.
        permutation: of the snapshot's rows into that order, if they do not lie in it.
        rules: what becomes of edges with the same ends; those of the snapshot.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        ids: LiveIds,
        ordering: Ordering,
        rules: EdgeRules,
        permutation: NDArray[np.uint32] | None = None,
    ) -> None:
        self.base: BaseArrays = base_arrays(adjacency, ids.base, permutation)
        self._base_attr = adjacency.edge_attr
        self._ids = ids
        self._strategy = STRATEGIES.index(ordering.strategy)
        self._seed = np.uint64(ordering.seed)
        self._duplicates = _DUPLICATES[rules.duplicates]
        self._fields = adjacency.fields
        dim = self._fields.attr_dim
        #: [edge_capacity, edge_dim], features of added edges, as `AddedArrays` numbers them.
        self.attr = np.zeros((_FIRST_CAPACITY if dim else 0, dim), dtype=self._fields.attr_dtype)
        self.arrays: AddedArrays = self._first_arrays(adjacency)
        self._load_kernels()

    def _load_kernels(self) -> None:
        """Apply nothing, so that the first mutation does not wait for kernels to be compiled or loaded."""
        nothing = np.empty(0, dtype=np.int64)
        self.apply(np.empty(0, dtype=np.uint8), EdgeBlock(nothing, nothing))
        insert_pairs(self.arrays)
        self.take_back(self.mark())

    def _first_arrays(self, adjacency: Adjacency) -> AddedArrays:
        num_edges, capacity = len(adjacency.indices), _FIRST_CAPACITY
        arrays = no_changes()
        counts = arrays.counts
        counts[NUM_EDGES] = num_edges
        counts[HAS_WEIGHT], counts[HAS_TIME] = self._fields.weight, self._fields.time
        # Zeros that nobody has touched take no memory.
        return arrays._replace(
            rows=_grown(arrays.rows, capacity),
            edges=_grown(arrays.edges, capacity),
            row_of=np.zeros(adjacency.num_nodes + _FREE_NODES, dtype=np.int32),
            removed=np.zeros(num_edges // 8 + 1, dtype=np.uint8),
            by_source=np.zeros(capacity, dtype=np.uint32),
            upper=np.zeros(capacity, dtype=np.int32),
            slots=np.zeros(2 * capacity, dtype=np.int32),
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever changed."""
        return not self.arrays.counts[NUM_ROWS] and not self._ids.num_new

    @property
    def num_edges(self) -> int:
        """The edges of the graph now."""
        return int(self.arrays.counts[NUM_EDGES])

    @property
    def nbytes(self) -> int:
        """The memory that changes take; of arrays that are reserved for all nodes and edges the used part."""
        reserved = {"row_of", "removed"}
        arrays = {name: array for name, array in self.arrays._asdict().items() if name not in reserved}
        return int(sum(array.nbytes for array in arrays.values()) + self.attr.nbytes)

    def add_nodes(self, node_ids: list[NodeId], hash_as: np.uint64 | None = None) -> None:
        """Add nodes, which have no edges yet.

        Args:
            hash_as: what their samples are drawn by, instead of the hashes of their ids.
        """
        before = self._ids.num_new
        self._ids.add(node_ids)
        self._see_nodes(before, hash_as)

    def apply(self, operation: NDArray[np.uint8], edges: EdgeBlock) -> None:
        """Add and remove edges, in order.

        Args:
            operation: uint8 [num_edges], ADD or REMOVE of `overlay_kernels`.
            edges: all columns that the graph has; of removals those that are needed: a time that is not NaN
                says which of several edges with the same ends is meant.
        """
        count = len(edges)
        source, target = edges.source.astype(np.int64), edges.target.astype(np.int64)
        # Copies: what comes from the log is read-only, and kernels are compiled for one type.
        weight = np.ones(count, dtype=np.float32) if edges.weight is None else np.array(edges.weight)
        time = np.zeros(count) if edges.time is None else np.array(edges.time)
        written = np.empty((2, count), dtype=np.int64)
        done = 0
        while True:
            done = apply_edges(
                self.base, self.arrays, self._strategy, self._seed, self._duplicates,
                self._fields.attr_dim > 0, operation, source, target, weight, time, done, written
            )  # fmt: skip
            if done == count:
                break
            self._grow(int(target[done]))
        if edges.attr is not None and self._fields.attr_dim:
            self._write_attr(written, edges.attr)

    def mark(self) -> OverlayMark:
        """Where the overlay is now."""
        counts = self.arrays.counts
        return OverlayMark(self._ids.num_new, int(counts[NUM_ADDED]), int(counts[NUM_UPPER]))

    def take_back(self, mark: OverlayMark) -> None:
        """Take back new nodes and their edges that came after a mark; nothing else may have changed since."""
        take_back(self.base, self.arrays, self._strategy, mark.num_added, mark.num_upper)
        for _ in range(self._ids.num_new - mark.num_new_nodes):
            self._ids.drop_last()
        self._see_nodes(mark.num_new_nodes)

    def _see_nodes(self, first: int, hash_as: np.uint64 | None = None) -> None:
        """Let kernels see new nodes from number `first` on."""
        num_new = self._ids.num_new
        hashes = self.arrays.node_hash
        if num_new > len(hashes):
            hashes = _grown(hashes, max(2 * len(hashes), num_new, _FIRST_CAPACITY))
        if num_new > first:
            hashes[first:num_new] = self._ids.new_hashes(first)
            if hash_as is not None:
                hashes[first:num_new] = hash_as
        node_ids, data, offsets = self._ids.new_arrays()
        row_of = self.arrays.row_of
        if len(self._ids) > len(row_of):
            row_of = _grown(row_of, 2 * len(self._ids))
        self.arrays = self.arrays._replace(
            node_hash=hashes, node_ids=node_ids, id_data=data, id_offsets=offsets, row_of=row_of
        )

    def _grow(self, node: int) -> None:
        """Make room where a mutation of one node's row could find none."""
        arrays, counts = self.arrays, self.arrays.counts
        changed: dict[str, NDArray[Any]] = {}
        if counts[NUM_ROWS] + 2 >= len(arrays.rows):
            changed["rows"] = _doubled(arrays.rows)
        if counts[NUM_ADDED] + 2 >= len(arrays.edges):
            changed["edges"] = _doubled(arrays.edges)
            self.attr = _doubled(self.attr)
        if counts[NUM_UPPER] + MAX_LEVELS >= len(arrays.upper):
            changed["upper"] = _doubled(arrays.upper)
        indptr = self.base.indptr
        degree = int(indptr[node + 1] - indptr[node]) if node + 1 < len(indptr) else 0
        if (wanted := int(counts[NUM_SORTED]) + degree) > len(arrays.by_source):
            changed["by_source"] = _grown(arrays.by_source, max(2 * len(arrays.by_source), wanted))
        if 2 * (counts[NUM_ADDED] + 2) >= len(arrays.slots):
            changed["slots"] = np.zeros(2 * len(arrays.slots), dtype=np.int32)
        self.arrays = arrays._replace(**changed)
        if "slots" in changed:
            insert_pairs(self.arrays)

    def _write_attr(self, written: NDArray[np.int64], attr: NDArray[np.floating]) -> None:
        """Give added edges their features, in order: of repeats the last one counts."""
        used = np.flatnonzero(written[0])
        edge, origin = written[0, used], written[1, used]
        values = attr[used].astype(self.attr.dtype)
        if (copied := origin >= 0).any() and self._base_attr is not None:
            values[copied] = self._base_attr[origin[copied]]
        self.attr[edge] = values


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    larger = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    return _grown(array, 2 * len(array))
