"""The arrays in which a graph's snapshot and its later changes lie side by side, as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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


#: A changed row:
#: `added` and `removed`: how many edges it gained and lost;
#: `sorted`: where in `by_source` the places of the snapshot's row are, sorted by source, time and weight;
#: -1 if they are not there yet;
#: `head`: its first added edge on each level of a skip list.
ROW = np.dtype(
    [
        ("added", np.int32),
        ("removed", np.int32),
        ("sorted", np.int64),
        ("head", np.int32, (MAX_LEVELS,)),
    ],
    align=True,
)

#: An added edge, in one line of the processor's cache:
#: `primary` and `tie`: by what it comes, see `edge_rank_key`;
#: `before`: how many places of the snapshot's row come before it;
#: `following`: the next added edge of the row; `tower`: where in `upper` those on the levels above are;
#: `chain`: another added edge with the same ends;
#: `is_there`: 0 for one that was removed again.
EDGE = np.dtype(
    [
        ("source", np.int64),
        ("target", np.int64),
        ("primary", np.float64),
        ("tie", np.uint64),
        ("time", np.float64),
        ("weight", np.float32),
        ("before", np.uint32),
        ("following", np.int32),
        ("tower", np.int32),
        ("chain", np.int32),
        ("is_there", np.uint8),
    ],
    align=True,
)


class AddedArrays(NamedTuple):
    """What was changed since the snapshot.

    Rows and added edges are numbered from 1; 0 stands for none. An added edge knows how many edges of the
    snapshot's row come before it, so that both are merged without comparing anything.

    Args:
        row_of: int32 [node_capacity], the changed row of each node; empty where nothing can change.
        rows: ROW [row_capacity].
        by_source: uint32 [pool_capacity].
        removed: uint8 [num_edges // 8 + 1], a bit for each edge of the snapshot.
        edges: EDGE [edge_capacity].
        upper: int32 [upper_capacity].
        slots: int32, a power of two: finds the first added edge of any two ends.
        node_hash: uint64 [new_node_capacity], of the ids of nodes that the snapshot does not have.
        node_ids: int64 [num_new_nodes], their ids if these are integers.
        id_data, id_offsets: uint8, int64, their ids if these are strings.
        counts: int64 [7], see the places below.
    """

    row_of: NDArray[np.int32]
    rows: NDArray[np.void]
    by_source: NDArray[np.uint32]
    removed: NDArray[np.uint8]
    edges: NDArray[np.void]
    upper: NDArray[np.int32]
    slots: NDArray[np.int32]
    node_hash: NDArray[np.uint64]
    node_ids: NDArray[np.int64]
    id_data: NDArray[np.uint8]
    id_offsets: NDArray[np.int64]
    counts: NDArray[np.int64]


# Places in `AddedArrays.counts`: how much of each capacity is used, the edges of the graph now, and whether
# its edges have weights and times.
NUM_ROWS, NUM_ADDED, NUM_SORTED, NUM_UPPER, NUM_EDGES, HAS_WEIGHT, HAS_TIME = range(7)
