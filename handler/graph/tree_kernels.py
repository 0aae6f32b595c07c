"""The inner loops that grow sampled trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import compiled
from handler.graph.sampling import draw_places, most_visited

# How a node's neighbours are found: the first of its row, the first of a permutation of it, drawn, by walks.
PREFIX, PERMUTED, DRAWN, WALKED = range(4)
# So many seeds and nodes at a time, that what was fetched is still in the cache when it is read.
_FETCHED_SEEDS, _FETCHED_NODES = 32, 2048


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
def find_edges(
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
    if method == PERMUTED:
        for place in range(count):
            found[place] = row + permutation[first + place]
    elif method == DRAWN:
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
def grow_trees(  # noqa: C901 - calls cost too much here
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
    moved = np.empty((2, widest if method == DRAWN else 0), dtype=np.int64)
    visits = np.empty(walks[0] * walks[1] if method == WALKED else 0, dtype=np.int64)
    shares = np.empty(widest if method == WALKED else 0, dtype=np.float32)
    frontier = np.empty((2, _FETCHED_NODES), dtype=np.int64)
    end = 0
    edge = 0
    for tree in range(len(seeds)):
        if tree % _FETCHED_SEEDS == 0 and method == PREFIX and len(indices):
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
                if method == WALKED:
                    count = most_visited(
                        indptr, indices, id_kind, ids, id_data, id_offsets, draw_seed,
                        walks[0], walks[1], v, fanouts[depth], visits, found, shares,
                    )  # fmt: skip
                elif method == PREFIX and len(as_of) == 0:  # the usual case, without a call
                    first = indptr[v]
                    count = min(indptr[v + 1] - first, fanouts[depth])
                else:
                    latest = as_of[tree] if len(as_of) else np.inf
                    first, count = find_edges(
                        method, indptr, permutation, time, latest, draw_seed, v, fanouts[depth], found, moved
                    )
                if end + count > max_nodes or edge + count > max_edges:
                    return tree
                for place in range(count):
                    if method == WALKED:
                        node[end] = found[place]
                        position[edge] = -1
                        share[edge] = shares[place]
                    else:
                        at = first + place if method == PREFIX else found[place]
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
