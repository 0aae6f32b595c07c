"""The inner loops that find edges of a snapshot's row, and places in its order."""

from __future__ import annotations

import numpy as np

from handler.graph.kernels import borrowed, embedded, inlined
from handler.graph.overlay_layout import NUM_SORTED, AddedArrays, BaseArrays
from handler.graph.overlay_reads import base_degree, edge_at, is_before, is_removed, key_of
from handler.graph.row_kernels import SEEDED, by_source, sort_keys


@inlined
def sort_row(base: BaseArrays, added: AddedArrays, row: int, v: int) -> None:
    """Keep the places of a snapshot's row by source, time and weight: once for each row that changes."""
    base, added = borrowed(base), borrowed(added)
    degree = base_degree(base, v)
    if added.rows[row].sorted >= 0 or degree == 0:
        return
    first = base.indptr[v]
    at = added.counts[NUM_SORTED]
    order = by_source(
        base.indices[first : first + degree],
        base.weight[first : first + degree] if len(base.weight) else base.weight,
        base.time[first : first + degree] if len(base.time) else base.time,
    )
    for place in range(degree):
        added.by_source[at + place] = order[place]
    added.rows[row].sorted = at
    added.counts[NUM_SORTED] += degree


@inlined
def from_source(base: BaseArrays, added: AddedArrays, row: int, u: int, v: int) -> tuple[int, int]:
    """Where in `by_source` the edges from u to v begin and end."""
    base, added = borrowed(base), borrowed(added)
    at, degree = added.rows[row].sorted, base_degree(base, v)
    if at < 0 or degree == 0:
        return 0, 0
    first = base.indptr[v]
    low, high = at, at + degree
    while low < high:
        middle = (low + high) // 2
        if base.indices[first + added.by_source[middle]] < u:
            low = middle + 1
        else:
            high = middle
    end = low
    while end < at + degree and base.indices[first + added.by_source[end]] == u:
        end += 1
    return low, end


@inlined
def equal_edges(
    base: BaseArrays, added: AddedArrays, low: int, end: int, v: int, weight: np.float32, time: float
) -> tuple[int, int]:
    """The part of a range of `by_source` that has this time and weight."""
    base, added = borrowed(base), borrowed(added)
    first = base.indptr[v]
    start = low
    while start < end and not _is_equal(base, first + added.by_source[start], weight, time):
        start += 1
    stop = start
    while stop < end and _is_equal(base, first + added.by_source[stop], weight, time):
        stop += 1
    return start, stop


@inlined
def _is_equal(base: BaseArrays, edge: int, weight: np.float32, time: float) -> bool:
    if len(base.time) and base.time[edge] != time:
        return False
    return not (len(base.weight) and base.weight[edge] != weight)


@embedded
def _single_key(
    base: BaseArrays, added: AddedArrays, strategy: int, seed: np.uint64, v: int, edge: int
) -> tuple[float, np.uint64]:
    """The key of an edge of the snapshot where no other has its ends."""
    weight = base.weight[edge] if len(base.weight) else np.float32(1)
    time = base.time[edge] if len(base.time) else 0.0
    return key_of(base, added, strategy, seed, False, base.indices[edge], v, weight, time, 0)


@inlined
def _parallel_key(
    base: BaseArrays, added: AddedArrays, strategy: int, seed: np.uint64, row: int, v: int, edge: int
) -> tuple[float, np.uint64]:
    """The key of an edge of a multigraph's snapshot; of equal ones it is found out which it has."""
    base, added = borrowed(base), borrowed(added)
    u = base.indices[edge]
    weight = base.weight[edge] if len(base.weight) else np.float32(1)
    time = base.time[edge] if len(base.time) else 0.0
    low, end = from_source(base, added, row, u, v)
    low, end = equal_edges(base, added, low, end, v, weight, time)
    mine = 0
    if end - low > 1:
        while base.indptr[v] + added.by_source[low + mine] != edge:
            mine += 1
        if not len(base.permutation):  # with one they are numbered as they lie
            primary = np.empty(end - low)
            tie = np.empty(end - low, dtype=np.uint64)
            for number in range(end - low):
                primary[number], tie[number] = key_of(
                    base, added, strategy, seed, True, u, v, weight, time, number
                )
            chosen = sort_keys(primary, tie, strategy == SEEDED)[mine]
            return primary[chosen], tie[chosen]
    return key_of(base, added, strategy, seed, True, u, v, weight, time, mine)


@embedded
def places_before(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    multigraph: bool,
    row: int,
    u: int,
    v: int,
    primary: float,
    tie: np.uint64,
) -> int:
    """How many edges of the snapshot's row come before one with this key."""
    low, high = 0, base_degree(base, v)
    if high == 0:
        return 0
    first = base.indptr[v]
    while low < high:
        middle = (low + high) // 2
        edge = edge_at(base, first, middle)
        if multigraph:
            its_primary, its_tie = _parallel_key(base, added, strategy, seed, row, v, edge)
        else:
            its_primary, its_tie = _single_key(base, added, strategy, seed, v, edge)
        if is_before(base, added, strategy, base.indices[edge], its_primary, its_tie, u, primary, tie):
            low = middle + 1
        else:
            high = middle
    return low


@embedded
def find_single(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    by_key: bool,
    row: int,
    u: int,
    v: int,
) -> int:
    """The position of the snapshot's edge from u to v, if it has one that was not removed; else -1."""
    edge = -1
    if by_key:
        primary, tie = key_of(base, added, strategy, seed, False, u, v, np.float32(1), 0.0, 0)
        place = places_before(base, added, strategy, seed, False, row, u, v, primary, tie)
        if place < base_degree(base, v):
            edge = edge_at(base, base.indptr[v], place)
            if base.indices[edge] != u:
                return -1
    else:
        low, end = from_source(base, added, row, u, v)
        if low < end:
            edge = base.indptr[v] + added.by_source[low]
    return -1 if edge < 0 or is_removed(added, edge) else edge
