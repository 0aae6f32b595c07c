"""The inner loops that link added edges into their rows: skip lists, in the row's order.

A skip list (Pugh, 1990) takes one edge more in O(log degree), and is read in order from its lowest level.
"""

from __future__ import annotations

import numpy as np

from handler.graph.hashing import mix64
from handler.graph.kernels import borrowed, embedded, inlined
from handler.graph.overlay_layout import (
    HAS_TIME,
    HAS_WEIGHT,
    MAX_LEVELS,
    NUM_ADDED,
    NUM_EDGES,
    NUM_UPPER,
    AddedArrays,
    BaseArrays,
)
from handler.graph.overlay_reads import is_before, key_of, next_on
from handler.graph.row_search import places_before


@embedded
def slot_of(added: AddedArrays, u: int, v: int) -> int:
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
def height_of(edge: int) -> int:
    """On how many levels an added edge is linked: on each further one a quarter of them."""
    bits = mix64(np.uint64(edge))
    height = 1
    while height < MAX_LEVELS and bits & np.uint64(3) == 0:
        bits >>= np.uint64(2)
        height += 1
    return height


@embedded
def new_edge(added: AddedArrays, u: int, v: int, slot: int) -> int:
    counts = added.counts
    counts[NUM_ADDED] += 1
    edge = counts[NUM_ADDED]
    added.edges[edge].source, added.edges[edge].target = u, v
    added.edges[edge].is_there = 0
    added.edges[edge].tower = counts[NUM_UPPER]
    counts[NUM_UPPER] += height_of(edge) - 1
    added.edges[edge].chain = added.slots[slot]
    added.slots[slot] = edge
    return int(edge)


@inlined
def link(
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
    added.edges[edge].before = places_before(base, added, strategy, seed, multigraph, row, u, v, primary, tie)
    last, height = 0, height_of(edge)
    for level in range(MAX_LEVELS - 1, -1, -1):
        last = _last_before(base, added, strategy, row, last, level, u, primary, tie)
        if level < height:
            _set_next(added, row, edge, level, next_on(added, row, last, level))
            _set_next(added, row, last, level, edge)
    added.edges[edge].is_there = 1
    added.rows[row].added += 1
    added.counts[NUM_EDGES] += 1


@inlined
def unlink(base: BaseArrays, added: AddedArrays, strategy: int, row: int, edge: int) -> None:
    base, added = borrowed(base), borrowed(added)
    last, height = 0, height_of(edge)
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
