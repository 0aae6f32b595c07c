"""The inner loops that read a node's sampled edges, from a snapshot and its changes alike.

Edges have positions: those of the snapshot first, as its arrays have them, and then those that were added.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.draw_kernels import chance, draw_places
from handler.graph.hashing import edge_key, mix64
from handler.graph.kernels import borrowed, embedded, inlined
from handler.graph.overlay_layout import MAX_LEVELS, AddedArrays, BaseArrays
from handler.graph.overlay_reads import base_degree, edge_at, hash_of, is_removed, next_on

# How a node's neighbours are found: the first of its ordered row, drawn, or by walks.
ORDERED, DRAWN, WALKED = range(3)


@embedded
def changed_row(added: AddedArrays, node: int) -> int:
    """The changed row of a node, 0 without."""
    return int(added.row_of[node]) if len(added.row_of) else 0


@embedded
def source_of(base: BaseArrays, added: AddedArrays, edge: int) -> int:
    """The node that an edge comes from."""
    num_edges = len(base.indices)
    if edge < num_edges:
        return int(base.indices[edge])
    return int(added.edges[edge - num_edges + 1].source)


@embedded
def time_of(base: BaseArrays, added: AddedArrays, edge: int) -> float:
    """The time of an edge."""
    num_edges = len(base.indices)
    return float(base.time[edge]) if edge < num_edges else float(added.edges[edge - num_edges + 1].time)


@embedded
def weight_of(base: BaseArrays, added: AddedArrays, edge: int) -> float:
    """The weight of an edge."""
    num_edges = len(base.indices)
    return float(base.weight[edge]) if edge < num_edges else float(added.edges[edge - num_edges + 1].weight)


@inlined
def _not_later(base: BaseArrays, start: int, degree: int, latest: float) -> int:
    """How many of a snapshot's row, which comes latest first, are later than `latest`."""
    low, high = 0, degree
    while low < high:
        middle = (low + high) // 2
        if base.time[edge_at(base, start, middle)] > latest:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _added_not_later(added: AddedArrays, row: int, latest: float) -> int:
    """The first added edge of a row, which comes latest first, that is not later than `latest`."""
    added = borrowed(added)
    last = 0
    for level in range(MAX_LEVELS - 1, -1, -1):
        while True:
            other = next_on(added, row, last, level)
            if other == 0 or added.edges[other].time <= latest:
                break
            last = other
    return next_on(added, row, last, 0)


@embedded
def read_row(
    base: BaseArrays,
    added: AddedArrays,
    node: int,
    latest: float,
    earliest: float,
    by_time: bool,
    fanout: int,
    found: NDArray[np.int64],
) -> int:
    """Write the positions of a node's first edges to `found`; returns how many there are.

    Args:
        latest: later edges do not count; only where rows come `by_time`.
        earliest: older edges do not count.
    """
    row = changed_row(added, node)
    degree = base_degree(base, node)
    start = int(base.indptr[node]) if degree else 0
    place = _not_later(base, start, degree, latest) if latest < np.inf else 0
    edge = 0
    if row:
        edge = _added_not_later(added, row, latest) if latest < np.inf else int(added.rows[row].head[0])
    num_edges = len(base.indices)
    skipping = row > 0 and added.rows[row].removed > 0
    is_plain = not skipping and earliest == -np.inf and len(base.permutation) == 0
    stop = int(added.edges[edge].before) if edge else degree
    count = 0
    while count < fanout:
        if place < stop:
            if is_plain:  # the usual case: all up to the next added edge at once
                taken = min(stop - place, fanout - count)
                for step in range(taken):
                    found[count + step] = start + place + step
                count += taken
                place += taken
                continue
            at = edge_at(base, start, place)
            place += 1
            if skipping and is_removed(added, at):
                continue
        elif edge:
            at = num_edges + edge - 1
            edge = int(added.edges[edge].following)
            stop = int(added.edges[edge].before) if edge else degree
        else:
            break
        if earliest > -np.inf and time_of(base, added, at) < earliest:
            if by_time:
                break  # all that follow are older still
            continue
        found[count] = at
        count += 1
    return count


@inlined
def live_degree(base: BaseArrays, added: AddedArrays, node: int) -> int:
    """How many edges a node has now."""
    base, added = borrowed(base), borrowed(added)
    row = changed_row(added, node)
    degree = base_degree(base, node)
    if row:
        degree += int(added.rows[row].added) - int(added.rows[row].removed)
    return degree


@inlined
def edge_number(base: BaseArrays, added: AddedArrays, node: int, number: int) -> int:
    """The position of a node's edge by its place in the row as it is now."""
    base, added = borrowed(base), borrowed(added)
    row = changed_row(added, node)
    degree = base_degree(base, node)
    start = int(base.indptr[node]) if degree else 0
    if row == 0:
        return edge_at(base, start, number)
    if added.rows[row].removed == 0:  # an added edge's place is then what is before it and how many came by
        edge, come = int(added.rows[row].head[0]), 0
        while edge and added.edges[edge].before + come < number:
            edge = int(added.edges[edge].following)
            come += 1
        if edge and added.edges[edge].before + come == number:
            return len(base.indices) + edge - 1
        return edge_at(base, start, number - come)
    found = np.empty(number + 1, dtype=np.int64)
    read_row(base, added, node, np.inf, -np.inf, False, number + 1, found)
    return int(found[number])


@inlined
def draw_row(
    base: BaseArrays,
    added: AddedArrays,
    seed: np.uint64,
    node: int,
    fanout: int,
    found: NDArray[np.int64],
    moved: NDArray[np.int64],
) -> int:
    """Write the positions of some edges of a node, drawn without replacement; returns how many."""
    base, added = borrowed(base), borrowed(added)
    degree = live_degree(base, added, node)
    count = min(degree, fanout)
    draw_places(seed, node, degree, count, found, moved)
    for place in range(count):
        found[place] = edge_number(base, added, node, found[place])
    return count


@inlined
def most_visited(
    base: BaseArrays,
    added: AddedArrays,
    seed: np.uint64,
    num_walks: int,
    walk_length: int,
    node: int,
    count: int,
    visits: NDArray[np.int64],
    nodes: NDArray[np.int64],
    shares: NDArray[np.float32],
) -> int:
    """Write the up to `count` nodes that walks from `node` visit most to `nodes`, their shares of all visits
    to `shares`, and return how many there are.

    The walks are the same every time: each step is a hash of (seed, node's id, walk, step). Visits of the
    node itself do not count; of equally visited nodes the `seeded` hash decides. `visits` is scratch of
    num_walks * walk_length.
    """
    base, added = borrowed(base), borrowed(added)
    hash_v = hash_of(base, added, node)
    key = mix64(mix64(seed) ^ hash_v)
    num_visits = 0
    for walk in range(num_walks):
        at = node
        for step in range(walk_length):
            degree = live_degree(base, added, at)
            if degree == 0:
                break
            number = chance(mix64(key + np.uint64(walk * walk_length + step)), degree)
            at = source_of(base, added, edge_number(base, added, at, number))
            if at != node:
                visits[num_visits] = at
                num_visits += 1
    seen = visits[:num_visits]
    seen.sort()
    # The distinct nodes go to the front of `seen`, by number of visits in `times`.
    times = np.empty(num_visits, dtype=np.int64)
    ties = np.empty(num_visits, dtype=np.uint64)
    num_distinct = 0
    for visit in range(num_visits):
        if visit and seen[visit] == seen[num_distinct - 1]:
            times[num_distinct - 1] += 1
        else:
            seen[num_distinct] = seen[visit]
            times[num_distinct] = 1
            ties[num_distinct] = edge_key(seed, hash_v, hash_of(base, added, seen[visit]))
            num_distinct += 1
    order = np.argsort(ties[:num_distinct], kind="mergesort")
    order = order[np.argsort(-times[order], kind="mergesort")]
    found = min(count, num_distinct)
    for place in range(found):
        nodes[place] = seen[order[place]]
        shares[place] = times[order[place]] / num_visits
    return found
