"""The inner loops that add edges to a graph and remove them, beside the snapshot that stays as it is.

A row's added edges are linked in the row's order (`row_links`). Edges of the snapshot that are gone have a
bit set. Kernels grow no arrays: where one is full they stop, say at which mutation, and go on later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import borrowed, compiled, embedded, inlined
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
from handler.graph.overlay_reads import base_degree, is_removed
from handler.graph.row_kernels import FIRST, SEEDED
from handler.graph.row_links import link, new_edge, slot_of, unlink
from handler.graph.row_search import equal_edges, find_single, from_source, sort_row

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
            sort_row(base, added, row, v)
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
            unlink(base, added, strategy, added.row_of[v], edge)
        added.slots[slot_of(added, added.edges[edge].source, v)] = added.edges[edge].chain
    added.counts[NUM_ADDED] = num_added
    added.counts[NUM_UPPER] = num_upper


@compiled
def insert_pairs(added: AddedArrays) -> None:
    """Fill empty slots with all added edges, in the order in which they came."""
    added = borrowed(added)
    for edge in range(1, added.counts[NUM_ADDED] + 1):
        slot = slot_of(added, added.edges[edge].source, added.edges[edge].target)
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


@embedded
def _drop_base(added: AddedArrays, row: int, edge: int) -> None:
    added.removed[edge >> 3] |= np.uint8(1 << (edge & 7))
    added.rows[row].removed += 1
    added.counts[NUM_EDGES] -= 1


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
    slot = slot_of(added, u, v)
    edge = added.slots[slot]
    old = -1  # of the snapshot
    there = edge != 0 and added.edges[edge].is_there == 1
    if not there:
        old = find_single(base, added, strategy, seed, by_key, row, u, v)
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
        unlink(base, added, strategy, row, edge)
    elif old >= 0:
        _drop_base(added, row, old)
    if edge == 0:
        edge = new_edge(added, u, v, slot)
    link(base, added, strategy, seed, False, row, edge, weight, time, 0)
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
    slot = slot_of(added, u, v)
    number = 0
    low, end = from_source(base, added, row, u, v)
    if low < end:
        low, end = equal_edges(base, added, low, end, v, weight, time)
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
    edge = free or new_edge(added, u, v, slot)
    link(base, added, strategy, seed, True, row, edge, weight, time, number)
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
    edge = added.slots[slot_of(added, u, v)]
    while edge != 0:
        if added.edges[edge].is_there and (any_time or added.edges[edge].time == time):
            unlink(base, added, strategy, row, edge)
        edge = added.edges[edge].chain
    if by_key:
        old = find_single(base, added, strategy, seed, True, row, u, v)
        if old >= 0 and (any_time or base.time[old] == time):
            _drop_base(added, row, old)
        return
    low, end = from_source(base, added, row, u, v)
    for place in range(low, end):
        old = base.indptr[v] + added.by_source[place]
        if not is_removed(added, old) and (any_time or base.time[old] == time):
            _drop_base(added, row, old)
