"""The arrays in which a graph's snapshot and its later changes lie side by side, as kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from handler.graph.adjacency import Adjacency
from handler.graph.ids import NodeIds

MAX_LEVELS = 8  # of the skip lists; with a quarter at each next level, that is for 65,536 edges of one row


class BaseArrays(NamedTuple):
    """A snapshot's edges and ids; what it does not have is empty.

    Args:
        indptr, indices, weight, time: see `Adjacency`.
        permutation: uint32 [num_edges], places within each row in the order that is sampled by; empty where
            that is the order in which the rows lie.
        id_kind, ids, id_data, id_offsets: see `NodeIds.hash_parts`.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.integer]
    permutation: NDArray[np.uint32]
    weight: NDArray[np.float32]
    time: NDArray[np.float64]
    id_kind: int
    ids: NDArray[np.int64]
    id_data: NDArray[np.uint8]
    id_offsets: NDArray[np.int64]


class AddedArrays(NamedTuple):
    """What was changed since the snapshot.

    Rows and added edges are numbered from 1; 0 stands for none. An added edge knows how many edges of the
    snapshot's row come before it, so that both are merged without comparing anything.

    Args:
        row_of: int32 [node_capacity], the changed row of each node; empty where nothing can change.
        head: int32 [row_capacity, MAX_LEVELS], each row's first added edge on each level of a skip list.
        row_added, row_removed: int32 [row_capacity], how many edges a row has gained and lost.
        row_sorted: int64 [row_capacity], where in `by_source` the places of the snapshot's row are, sorted
            by source, time and weight; -1 if they are not there yet.
        by_source: uint32 [pool_capacity].
        removed: uint8 [num_edges // 8 + 1], a bit for each edge of the snapshot.
        following: int32 [edge_capacity], the next added edge of the row.
        tower: int64 [edge_capacity], where in `upper` the next edges on the levels above are.
        upper: int32 [upper_capacity].
        source, target: int64 [edge_capacity].
        before: uint32 [edge_capacity], how many places of the snapshot's row come before.
        primary, tie: float64, uint64 [edge_capacity], see `edge_rank_key`.
        weight, time: float32, float64 [edge_capacity]; empty without.
        is_there: uint8 [edge_capacity], 0 for an edge that was removed again.
        chain: int32 [edge_capacity], another added edge with the same ends.
        slots: int32, a power of two: finds the first added edge of any two ends.
        node_hash: uint64 [new_node_capacity], of the ids of nodes that the snapshot does not have.
        node_ids: int64 [new_node_capacity], their ids if these are integers.
        id_data, id_offsets: uint8, int64, their ids if these are strings.
        counts: int64 [5], see the places below.
    """

    row_of: NDArray[np.int32]
    head: NDArray[np.int32]
    row_added: NDArray[np.int32]
    row_removed: NDArray[np.int32]
    row_sorted: NDArray[np.int64]
    by_source: NDArray[np.uint32]
    removed: NDArray[np.uint8]
    following: NDArray[np.int32]
    tower: NDArray[np.int64]
    upper: NDArray[np.int32]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    before: NDArray[np.uint32]
    primary: NDArray[np.float64]
    tie: NDArray[np.uint64]
    weight: NDArray[np.float32]
    time: NDArray[np.float64]
    is_there: NDArray[np.uint8]
    chain: NDArray[np.int32]
    slots: NDArray[np.int32]
    node_hash: NDArray[np.uint64]
    node_ids: NDArray[np.int64]
    id_data: NDArray[np.uint8]
    id_offsets: NDArray[np.int64]
    counts: NDArray[np.int64]


# Places in `AddedArrays.counts`: how much of each capacity is used, and the edges of the graph now.
NUM_ROWS, NUM_ADDED, NUM_SORTED, NUM_UPPER, NUM_EDGES = range(5)


def base_arrays(
    adjacency: Adjacency, ids: NodeIds, permutation: NDArray[np.uint32] | None = None
) -> BaseArrays:
    """A snapshot's arrays, all read-only: kernels are compiled once for these types."""
    kind, int_ids, data, offsets = ids.hash_parts()
    return BaseArrays(
        _read_only(adjacency.indptr),
        _read_only(adjacency.indices),
        _read_only(np.empty(0, dtype=np.uint32) if permutation is None else permutation),
        _read_only(np.empty(0, dtype=np.float32) if adjacency.edge_weight is None else adjacency.edge_weight),
        _read_only(np.empty(0) if adjacency.edge_time is None else adjacency.edge_time),
        kind,
        _read_only(int_ids),
        _read_only(data),
        _read_only(offsets),
    )


def no_changes() -> AddedArrays:
    """Of a graph that cannot change: every array is empty, which costs nothing."""
    return AddedArrays(*(np.zeros(shape, dtype) for dtype, shape in _LAYOUT.values()))


def take_edges(
    base: NDArray[Any], added: NDArray[Any], edge: NDArray[np.int64], dtype: np.dtype[Any] | None = None
) -> NDArray[Any]:
    """What is known of edges, by their positions: first those of the snapshot, then those added.

    Args:
        base: [num_edges, ...], of the snapshot.
        added: [num_added, ...], from number 1 on.
        dtype: of the result, if it is not that of `base`.
    """
    later = edge >= len(base)
    if not len(added) or not later.any():
        return np.take(base, edge, axis=0).astype(dtype or base.dtype, copy=False)
    values = np.empty((len(edge), *base.shape[1:]), dtype=dtype or base.dtype)
    values[~later] = base[edge[~later]]
    values[later] = added[edge[later] - len(base)]
    return values


_LAYOUT: dict[str, tuple[Any, tuple[int, ...]]] = {
    "row_of": (np.int32, (0,)),
    "head": (np.int32, (0, MAX_LEVELS)),
    "row_added": (np.int32, (0,)),
    "row_removed": (np.int32, (0,)),
    "row_sorted": (np.int64, (0,)),
    "by_source": (np.uint32, (0,)),
    "removed": (np.uint8, (0,)),
    "following": (np.int32, (0,)),
    "tower": (np.int64, (0,)),
    "upper": (np.int32, (0,)),
    "source": (np.int64, (0,)),
    "target": (np.int64, (0,)),
    "before": (np.uint32, (0,)),
    "primary": (np.float64, (0,)),
    "tie": (np.uint64, (0,)),
    "weight": (np.float32, (0,)),
    "time": (np.float64, (0,)),
    "is_there": (np.uint8, (0,)),
    "chain": (np.int32, (0,)),
    "slots": (np.int32, (0,)),
    "node_hash": (np.uint64, (0,)),
    "node_ids": (np.int64, (0,)),
    "id_data": (np.uint8, (0,)),
    "id_offsets": (np.int64, (1,)),
    "counts": (np.int64, (5,)),
}


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(array)[:]
    view.flags.writeable = False
    return view
