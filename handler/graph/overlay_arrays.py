"""Makes the arrays of `overlay_layout`, and reads what stands in two of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.adjacency import Adjacency
from handler.graph.ids import NodeIds
from handler.graph.overlay_layout import EDGE, ROW, AddedArrays, BaseArrays


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
    "rows": (ROW, (0,)),
    "by_source": (np.uint32, (0,)),
    "removed": (np.uint8, (0,)),
    "edges": (EDGE, (0,)),
    "upper": (np.int32, (0,)),
    "slots": (np.int32, (0,)),
    "node_hash": (np.uint64, (0,)),
    "node_ids": (np.int64, (0,)),
    "id_data": (np.uint8, (0,)),
    "id_offsets": (np.int64, (1,)),
    "counts": (np.int64, (7,)),
}


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(array)[:]
    view.flags.writeable = False
    return view
