"""The inner loops that grow sampled trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import borrowed, compiled, embedded, inlined
from handler.graph.overlay_layout import AddedArrays, BaseArrays
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
    [3, capacity] bounds how much is fetched. The sum that is returned keeps the reads from being left out.
    """
    base, added = borrowed(base), borrowed(added)
    indptr, indices = base.indptr, base.indices
    num_base = len(indptr) - 1
    nodes, following, changed = frontier[0], frontier[1], frontier[2]
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
        num_changed = 0
        for place in range(size):
            start = indptr[nodes[place]]
            # A short row lies in one or two lines of the cache.
            total += indices[min(start, last)] + indices[min(start + fanouts[depth] - 1, last)]
            if live and added.row_of[nodes[place]]:
                changed[num_changed] = added.row_of[nodes[place]]
                num_changed += 1
        is_last = depth + 1 == len(fanouts)
        found = 0
        if num_changed:
            room = 0 if is_last else len(following)
            found, read = _fetch_added(
                added, changed[:num_changed], fanouts[depth], following[:room], num_base
            )
            total += read
        if is_last:
            break
        for place in range(size):
            start = indptr[nodes[place]]
            count = min(indptr[nodes[place] + 1] - start, fanouts[depth], len(following) - found)
            for step in range(count):
                following[found + step] = indices[start + step]
            found += count
        nodes, following, size = following, nodes, found
    return int(total)


@embedded
def _fetch_added(
    added: AddedArrays, rows: NDArray[np.int64], fanout: int, sources: NDArray[np.int64], num_base: int
) -> tuple[int, int]:
    """Bring what changed in some rows into the cache, each row's next added edge with those of the others.

    Args:
        rows: changed rows; overwritten.
        sources: takes the nodes of the snapshot that sampled added edges come from, as far as they fit.

    Returns:
        How many sources there are, and the sum that keeps the reads.
    """
    total = 0
    for place in range(len(rows)):
        total += added.rows[rows[place]].removed + added.rows[rows[place]].head[0]
    size = len(rows)
    for place in range(size):
        rows[place] = added.rows[rows[place]].head[0]
    found = 0
    for come in range(fanout):
        for place in range(size):
            total += added.edges[rows[place]].before  # number 0 is there to be read, too
        left = 0
        for place in range(size):
            edge = rows[place]
            if edge == 0 or added.edges[edge].before + come >= fanout:
                continue  # the row has no more that could be sampled
            if found < len(sources) and added.edges[edge].source < num_base:
                sources[found] = added.edges[edge].source
                found += 1
            rows[left] = added.edges[edge].following
            left += 1
        size = left
    return found, int(total)


@embedded
def _write_first(
    base: BaseArrays,
    added: AddedArrays,
    v: int,
    row: int,
    count: int,
    node: NDArray[np.int64],
    end: int,
    position: NDArray[np.int64],
    edge: int,
) -> None:
    """Write the sources and positions of the first `count` edges of a row of which nothing was removed.

    They are stretches of the snapshot's row between added edges.
    """
    first = int(base.indptr[v]) if base_degree(base, v) else 0
    come = int(added.rows[row].head[0]) if row else 0
    num_come = 0
    written = 0
    while True:
        stop = min(int(added.edges[come].before) + num_come, count) if come else count
        for place in range(written, stop):
            at = first + place - num_come
            node[end + place] = base.indices[at]
            position[edge + place] = at
        if stop == count:
            return
        node[end + stop] = added.edges[come].source
        position[edge + stop] = len(base.indices) + come - 1
        come = int(added.edges[come].following)
        num_come += 1
        written = stop + 1


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
    base, added = borrowed(base), borrowed(added)
    source, target, position = edge_columns[0], edge_columns[1], edge_columns[2]
    widest = fanouts.max() if len(fanouts) else 0
    found = np.empty(widest, dtype=np.int64)
    moved = np.empty((2, widest if method == DRAWN else 0), dtype=np.int64)
    visits = np.empty(walks[0] * walks[1] if method == WALKED else 0, dtype=np.int64)
    shares = np.empty(widest if method == WALKED else 0, dtype=np.float32)
    frontier = np.empty((3, _FETCHED_NODES), dtype=np.int64)
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
                row = changed_row(added, v)
                # Nothing of the row is left out, so that its first edges are known by their number.
                is_whole = is_plain and (row == 0 or added.rows[row].removed == 0)
                if is_whole:
                    count = min(base_degree(base, v) + (added.rows[row].added if row else 0), fanouts[depth])
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
                if is_whole:
                    _write_first(base, added, v, row, count, node, end, position, edge)
                elif method == WALKED:
                    for place in range(count):
                        node[end + place] = found[place]
                        position[edge + place] = -1
                        share[edge + place] = shares[place]
                else:
                    for place in range(count):
                        node[end + place] = source_of(base, added, found[place])
                        position[edge + place] = found[place]
                for place in range(count):
                    hop[end + place] = depth + 1
                    source[edge + place] = end + place
                    target[edge + place] = parent
                    rank[edge + place] = place
                edge += count
                end += count
            level_start = level_end
        ptr[tree + 1] = end
    return len(seeds)
