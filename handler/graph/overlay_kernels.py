"""The inner loops that add edges to a graph and remove them, beside the snapshot that stays as it is.

A row's added edges are a skip list (Pugh, 1990) in the row's order, so that one more costs O(log degree).
Edges of the snapshot that are gone have a bit set. Kernels grow no arrays: where one is full they stop, say
at which mutation, and go on when it has grown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import mix64
from handler.graph.kernels import borrowed, compiled, embedded, inlined
from handler.graph.overlay_arrays import (
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
from handler.graph.overlay_reads import base_degree, edge_at, is_before, is_removed, key_of, next_on
from handler.graph.row_kernels import FIRST, SEEDED, by_source, sort_keys

ADD, REMOVE = range(2)
# What becomes of an edge with the ends of another: the later replaces it, weights add up, both stay.
DROP, SUM, KEEP = range(3)


@compiled
def apply_edges(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    duplicates: int,
    has_attr: bool,
    operation: NDArray[np.uint8],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    start: int,
    written: NDArray[np.int64],
) -> int:
    """Apply mutations from `start` on; returns how far it came before an array was full.

    Args:
        operation: ADD or REMOVE.
        weight, time: of edges to add; a time that is not NaN says which of parallel edges to remove.
        written: [2, num_mutations]: into which added edge one's features belong, or 0; and from which
            edge of the snapshot they are to be copied, or -1 for the mutation's own.
    """
    base, added = borrowed(base), borrowed(added)
    multigraph = duplicates == KEEP
    by_key = not multigraph and strategy in (SEEDED, FIRST)
    for number in range(start, len(source)):
        u, v = source[number], target[number]
        written[0, number], written[1, number] = 0, -1
        if not _has_room(base, added, v):
            return number
        row = _changed_row(added, v)
        if not by_key:
            _sort_row(base, added, row, v)
        if operation[number] == REMOVE:
            _remove(base, added, strategy, seed, by_key, row, u, v, time[number])
        elif multigraph:
            written[0, number] = _add_parallel(
                base, added, strategy, seed, row, u, v, weight[number], time[number]
            )
        else:
            _add_single(
                base, added, strategy, seed, duplicates == SUM, by_key, has_attr, row, u, v,
                weight[number], time[number], written, number
            )  # fmt: skip
    return len(source)


@compiled
def take_back(base: BaseArrays, added: AddedArrays, strategy: int, num_added: int, num_upper: int) -> None:
    """Take back all edges that were added after there were so many; none may have replaced an older one.

    The last to come go first: so the slots are as they were.
    """
    base, added = borrowed(base), borrowed(added)
    for edge in range(added.counts[NUM_ADDED], num_added, -1):
        v = added.edges[edge].target
        if added.edges[edge].is_there:
            _unlink(base, added, strategy, added.row_of[v], edge)
        added.slots[_slot_of(added, added.edges[edge].source, v)] = added.edges[edge].chain
    added.counts[NUM_ADDED] = num_added
    added.counts[NUM_UPPER] = num_upper


@compiled
def insert_pairs(added: AddedArrays) -> None:
    """Fill empty slots with all added edges, in the order in which they came."""
    added = borrowed(added)
    for edge in range(1, added.counts[NUM_ADDED] + 1):
        slot = _slot_of(added, added.edges[edge].source, added.edges[edge].target)
        added.edges[edge].chain = added.slots[slot]
        added.slots[slot] = edge


@embedded
def _has_room(base: BaseArrays, added: AddedArrays, v: int) -> bool:
    counts = added.counts
    return bool(
        counts[NUM_ROWS] + 1 < len(added.rows)
        and counts[NUM_ADDED] + 1 < len(added.edges)
        and counts[NUM_UPPER] + MAX_LEVELS <= len(added.upper)
        and counts[NUM_SORTED] + base_degree(base, v) <= len(added.by_source)
        and 2 * (counts[NUM_ADDED] + 1) <= len(added.slots)
    )


@embedded
def _changed_row(added: AddedArrays, v: int) -> int:
    if added.row_of[v] == 0:
        added.counts[NUM_ROWS] += 1
        added.row_of[v] = added.counts[NUM_ROWS]
        added.rows[added.row_of[v]].sorted = -1
    return int(added.row_of[v])


@inlined
def _sort_row(base: BaseArrays, added: AddedArrays, row: int, v: int) -> None:
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
def _from_source(base: BaseArrays, added: AddedArrays, row: int, u: int, v: int) -> tuple[int, int]:
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
def _equal_edges(
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
    low, end = _from_source(base, added, row, u, v)
    low, end = _equal_edges(base, added, low, end, v, weight, time)
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
def _places_before(
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
def _find_single(
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
        place = _places_before(base, added, strategy, seed, False, row, u, v, primary, tie)
        if place < base_degree(base, v):
            edge = edge_at(base, base.indptr[v], place)
            if base.indices[edge] != u:
                return -1
    else:
        low, end = _from_source(base, added, row, u, v)
        if low < end:
            edge = base.indptr[v] + added.by_source[low]
    return -1 if edge < 0 or is_removed(added, edge) else edge


@embedded
def _drop_base(added: AddedArrays, row: int, edge: int) -> None:
    added.removed[edge >> 3] |= np.uint8(1 << (edge & 7))
    added.rows[row].removed += 1
    added.counts[NUM_EDGES] -= 1


@embedded
def _slot_of(added: AddedArrays, u: int, v: int) -> int:
    """The slot of the added edges from u to v, or the free one where they belong."""
    mask = np.uint64(len(added.slots) - 1)
    slot = mix64(mix64(np.uint64(v)) + np.uint64(u)) & mask
    while added.slots[slot] != 0:
        edge = added.slots[slot]
        if added.edges[edge].source == u and added.edges[edge].target == v:
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@embedded
def _height(edge: int) -> int:
    """On how many levels an added edge is linked: on each further one a quarter of them."""
    bits = mix64(np.uint64(edge))
    height = 1
    while height < MAX_LEVELS and bits & np.uint64(3) == 0:
        bits >>= np.uint64(2)
        height += 1
    return height


@embedded
def _new_edge(added: AddedArrays, u: int, v: int, slot: int) -> int:
    counts = added.counts
    counts[NUM_ADDED] += 1
    edge = counts[NUM_ADDED]
    added.edges[edge].source, added.edges[edge].target = u, v
    added.edges[edge].is_there = 0
    added.edges[edge].tower = counts[NUM_UPPER]
    counts[NUM_UPPER] += _height(edge) - 1
    added.edges[edge].chain = added.slots[slot]
    added.slots[slot] = edge
    return int(edge)


@inlined
def _link(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    multigraph: bool,
    row: int,
    edge: int,
    weight: np.float32,
    time: float,
    number: int,
) -> None:
    """Put an added edge into its row, where it belongs by its weight and time."""
    base, added = borrowed(base), borrowed(added)
    u, v = added.edges[edge].source, added.edges[edge].target
    if added.counts[HAS_WEIGHT]:
        added.edges[edge].weight = weight
    if added.counts[HAS_TIME]:
        added.edges[edge].time = time
    primary, tie = key_of(base, added, strategy, seed, multigraph, u, v, weight, time, number)
    added.edges[edge].primary, added.edges[edge].tie = primary, tie
    added.edges[edge].before = _places_before(
        base, added, strategy, seed, multigraph, row, u, v, primary, tie
    )
    last, height = 0, _height(edge)
    for level in range(MAX_LEVELS - 1, -1, -1):
        last = _last_before(base, added, strategy, row, last, level, u, primary, tie)
        if level < height:
            _set_next(added, row, edge, level, next_on(added, row, last, level))
            _set_next(added, row, last, level, edge)
    added.edges[edge].is_there = 1
    added.rows[row].added += 1
    added.counts[NUM_EDGES] += 1


@inlined
def _unlink(base: BaseArrays, added: AddedArrays, strategy: int, row: int, edge: int) -> None:
    base, added = borrowed(base), borrowed(added)
    last, height = 0, _height(edge)
    for level in range(MAX_LEVELS - 1, -1, -1):
        last = _last_before(
            base,
            added,
            strategy,
            row,
            last,
            level,
            added.edges[edge].source,
            added.edges[edge].primary,
            added.edges[edge].tie,
        )
        if level < height:
            _set_next(added, row, last, level, next_on(added, row, edge, level))
    added.edges[edge].is_there = 0
    added.rows[row].added -= 1
    added.counts[NUM_EDGES] -= 1


@embedded
def _last_before(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    row: int,
    last: int,
    level: int,
    u: int,
    primary: float,
    tie: np.uint64,
) -> int:
    """From the edge `last` on, the last one of a level that comes before one with this key."""
    while True:
        other = next_on(added, row, last, level)
        if other == 0 or not is_before(
            base,
            added,
            strategy,
            added.edges[other].source,
            added.edges[other].primary,
            added.edges[other].tie,
            u,
            primary,
            tie,
        ):
            return last
        last = other


@embedded
def _set_next(added: AddedArrays, row: int, edge: int, level: int, following: int) -> None:
    if edge == 0:
        added.rows[row].head[level] = following
    elif level == 0:
        added.edges[edge].following = following
    else:
        added.upper[added.edges[edge].tower + level - 1] = following


@inlined
def _add_single(  # noqa: C901 - each branch is a case of its own
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    summed: bool,
    by_key: bool,
    has_attr: bool,
    row: int,
    u: int,
    v: int,
    weight: np.float32,
    time: float,
    written: NDArray[np.int64],
    number: int,
) -> None:
    """Add an edge where there may be none with its ends: of two the later stays, and weights are summed."""
    base, added = borrowed(base), borrowed(added)
    slot = _slot_of(added, u, v)
    edge = added.slots[slot]
    old = -1  # of the snapshot
    there = edge != 0 and added.edges[edge].is_there == 1
    if not there:
        old = _find_single(base, added, strategy, seed, by_key, row, u, v)
    later = True
    if (there or old >= 0) and added.counts[HAS_TIME]:
        its_time = added.edges[edge].time if there else base.time[old]
        later = time >= its_time
        if not later:
            time = its_time
    if there or old >= 0:
        if not later and not summed:
            return
        if not summed and added.counts[HAS_WEIGHT] == 0 and added.counts[HAS_TIME] == 0 and not has_attr:
            return  # one edge more of which nothing else is known
        if summed:
            weight += added.edges[edge].weight if there else base.weight[old]
    if there:
        _unlink(base, added, strategy, row, edge)
    elif old >= 0:
        _drop_base(added, row, old)
    if edge == 0:
        edge = _new_edge(added, u, v, slot)
    _link(base, added, strategy, seed, False, row, edge, weight, time, 0)
    if later:
        written[0, number] = edge
    elif old >= 0:
        written[0, number], written[1, number] = edge, old


@inlined
def _add_parallel(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    row: int,
    u: int,
    v: int,
    weight: np.float32,
    time: float,
) -> int:
    """Add an edge beside others with its ends; equal ones are numbered."""
    base, added = borrowed(base), borrowed(added)
    slot = _slot_of(added, u, v)
    number = 0
    low, end = _from_source(base, added, row, u, v)
    if low < end:
        low, end = _equal_edges(base, added, low, end, v, weight, time)
        for place in range(low, end):
            number += not is_removed(added, base.indptr[v] + added.by_source[place])
    free = 0
    edge = added.slots[slot]
    while edge != 0:
        if not added.edges[edge].is_there:
            free = edge
        elif (added.counts[HAS_TIME] == 0 or added.edges[edge].time == time) and (
            added.counts[HAS_WEIGHT] == 0 or added.edges[edge].weight == weight
        ):
            number += 1
        edge = added.edges[edge].chain
    edge = free or _new_edge(added, u, v, slot)
    _link(base, added, strategy, seed, True, row, edge, weight, time, number)
    return int(edge)


@inlined
def _remove(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    by_key: bool,
    row: int,
    u: int,
    v: int,
    time: float,
) -> None:
    """Remove the edges from u to v: all, or those of one time where it is no NaN."""
    base, added = borrowed(base), borrowed(added)
    any_time = np.isnan(time) or added.counts[HAS_TIME] == 0
    edge = added.slots[_slot_of(added, u, v)]
    while edge != 0:
        if added.edges[edge].is_there and (any_time or added.edges[edge].time == time):
            _unlink(base, added, strategy, row, edge)
        edge = added.edges[edge].chain
    if by_key:
        old = _find_single(base, added, strategy, seed, True, row, u, v)
        if old >= 0 and (any_time or base.time[old] == time):
            _drop_base(added, row, old)
        return
    low, end = _from_source(base, added, row, u, v)
    for place in range(low, end):
        old = base.indptr[v] + added.by_source[place]
        if not is_removed(added, old) and (any_time or base.time[old] == time):
            _drop_base(added, row, old)
