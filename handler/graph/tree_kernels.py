"""The inner loops that grow sampled trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import compiled, inlined
from handler.graph.overlay_arrays import AddedArrays, BaseArrays
from handler.graph.overlay_reads import base_degree
from handler.graph.row_reads import (
    DRAWN,
    ORDERED,
    WALKED,
    changed_row,
    draw_row,
    most_visited,
    read_row,
    source_of,
)

# So many seeds and nodes at a time, that what was fetched is still in the cache when it is read.
_FETCHED_SEEDS, _FETCHED_NODES = 32, 2048


@inlined
def _fetch_rows(  # noqa: C901 - one loop after another
    base: BaseArrays,
    added: AddedArrays,
    seeds: NDArray[np.int64],
    fanouts: NDArray[np.int64],
    frontier: NDArray[np.int64],
) -> int:
    """Bring what the trees of some seeds will read into the cache, many rows at once.

    Grown tree by tree, each read waits for the one before it. Here all trees go hop by hop, and the loops
    do nothing that depends on what they read: so the memory answers many reads at a time. `frontier`
    [2, capacity] bounds how much is fetched. The sum that is returned keeps the reads from being left out.
    Of changed rows the snapshot's part is fetched, which most of their edges come from.
    """
    indptr, indices = base.indptr, base.indices
    num_base = len(indptr) - 1
    nodes, following = frontier[0], frontier[1]
    size = 0
    for place in range(min(len(seeds), len(nodes))):
        if seeds[place] < num_base:
            nodes[size] = seeds[place]
            size += 1
    total = 0
    last = len(indices) - 1
    live = len(added.row_of) > 0
    for depth in range(len(fanouts)):
        for place in range(size):
            total += indptr[nodes[place] + 1]
            if live:
                total += added.row_of[nodes[place]]
        for place in range(size):
            start = indptr[nodes[place]]
            # A short row lies in one or two lines of the cache.
            total += indices[min(start, last)] + indices[min(start + fanouts[depth] - 1, last)]
            if live and added.row_of[nodes[place]]:
                total += added.head[added.row_of[nodes[place]], 0]
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
def grow_trees(  # noqa: C901, PLR0912, PLR0915 - calls cost too much here
    method: int,
    base: BaseArrays,
    added: AddedArrays,
    by_time: bool,
    as_of: NDArray[np.float64],
    max_age: float,
    now: float,
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
    moved = np.empty((2, widest if method == DRAWN else 0), dtype=np.int64)
    visits = np.empty(walks[0] * walks[1] if method == WALKED else 0, dtype=np.int64)
    shares = np.empty(widest if method == WALKED else 0, dtype=np.float32)
    frontier = np.empty((2, _FETCHED_NODES), dtype=np.int64)
    # Where a row that nobody changed is asked for its first edges, they are read without a call.
    is_plain = method == ORDERED and len(base.permutation) == 0 and len(as_of) == 0 and max_age == np.inf
    end = 0
    edge = 0
    for tree in range(len(seeds)):
        if tree % _FETCHED_SEEDS == 0 and is_plain and len(base.indices):
            fetched[0] += _fetch_rows(base, added, seeds[tree : tree + _FETCHED_SEEDS], fanouts, frontier)
        latest = as_of[tree] if len(as_of) else np.inf
        earliest = (latest if latest < np.inf else now) - max_age
        level_start = end
        if end >= max_nodes:
            return tree
        node[end] = seeds[tree]
        hop[end] = 0
        end += 1
        for depth in range(len(fanouts)):
            level_end = end
            for parent in range(level_start, level_end):
                v = node[parent]
                first = -1
                if is_plain and changed_row(added, v) == 0:
                    count = min(base_degree(base, v), fanouts[depth])
                    first = base.indptr[v] if count else 0
                elif method == ORDERED:
                    count = read_row(base, added, v, latest, earliest, by_time, fanouts[depth], found)
                elif method == DRAWN:
                    count = draw_row(base, added, draw_seed, v, fanouts[depth], found, moved)
                else:
                    count = most_visited(
                        base, added, draw_seed, walks[0], walks[1], v, fanouts[depth], visits, found, shares
                    )
                if end + count > max_nodes or edge + count > max_edges:
                    return tree
                for place in range(count):
                    if first >= 0:
                        node[end] = base.indices[first + place]
                        position[edge] = first + place
                    elif method == WALKED:
                        node[end] = found[place]
                        position[edge] = -1
                        share[edge] = shares[place]
                    else:
                        node[end] = source_of(base, added, found[place])
                        position[edge] = found[place]
                    hop[end] = depth + 1
                    source[edge] = end
                    target[edge] = parent
                    rank[edge] = place
                    edge += 1
                    end += 1
            level_start = level_end
        ptr[tree + 1] = end
    return len(seeds)
