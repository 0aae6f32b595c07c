"""The inner loops that order rows of in-neighbours; what they order by is told in `ordering`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import edge_key, mix64
from handler.graph.kernels import compiled

# The places of these strategies in `ordering.STRATEGIES`.
SEEDED, WEIGHTED, TOP_WEIGHT, RECENT, FIRST = range(5)
_SMALL_ROW = 32  # up to here insertion beats merging
_UNIT = 2.0**-53


@compiled
def count_edges(target: NDArray[np.integer], degree: NDArray[np.int64]) -> None:
    """Add to `degree`, of each node, how many edges `target` names it in."""
    for edge in range(len(target)):
        degree[target[edge]] += 1


@compiled
def _comes_before(
    left: int,
    right: int,
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
) -> bool:
    if source[left] != source[right]:
        return bool(source[left] < source[right])
    if len(time) and time[left] != time[right]:
        return bool(time[left] < time[right])
    return bool(len(weight) and weight[left] < weight[right])


@compiled
def by_source(
    source: NDArray[np.integer], weight: NDArray[np.float32], time: NDArray[np.float64]
) -> NDArray[np.int64]:
    """One row's edges by (source, time, weight, arrival): repeats side by side, in their numbering."""
    num_edges = len(source)
    order = np.arange(num_edges)
    if num_edges > _SMALL_ROW:
        if len(weight):
            order = order[np.argsort(weight[order], kind="mergesort")]
        if len(time):
            order = order[np.argsort(time[order], kind="mergesort")]
        return order[np.argsort(source[order], kind="mergesort")]
    for end in range(1, num_edges):
        edge, place = order[end], end
        while place and _comes_before(edge, order[place - 1], source, weight, time):
            order[place] = order[place - 1]
            place -= 1
        order[place] = edge
    return order


@compiled
def sort_keys(primary: NDArray[np.float64], tie: NDArray[np.uint64], by_tie: bool) -> NDArray[np.int64]:
    """The order of ascending (primary, tie); of `tie` alone where `by_tie` says that it decides."""
    num_edges = len(tie)
    if num_edges > _SMALL_ROW:
        order = np.argsort(tie, kind="mergesort")
        return order if by_tie else order[np.argsort(primary[order], kind="mergesort")]
    order = np.arange(num_edges)
    for end in range(1, num_edges):
        edge, place = order[end], end
        while place:
            other = order[place - 1]
            if primary[edge] > primary[other] or (
                primary[edge] == primary[other] and tie[edge] >= tie[other]
            ):
                break
            order[place] = other
            place -= 1
        order[place] = edge
    return order


@compiled
def edge_rank_key(
    strategy: int,
    key: np.uint64,
    place: float,
    has_weight: bool,
    weight: np.float32,
    has_time: bool,
    time: float,
    multigraph: bool,
    number: int,
) -> tuple[float, np.uint64]:
    """By what an edge comes in its row: ascending by the first, and by the second where that is equal.

    `key` is the `edge_key` of its ends; `place` that of its source among ascending ids, for `first` alone;
    `number` tells apart edges of a multigraph that are equal in all but that.
    """
    if multigraph:
        if has_time:
            key = mix64(key ^ np.float64(time).view(np.uint64))
        if has_weight:
            key = mix64(key ^ np.uint64(np.float32(weight).view(np.uint32)))
        key = mix64(key + np.uint64(number))
    if strategy == WEIGHTED:
        uniform = (np.float64(key >> np.uint64(11)) + 0.5) * _UNIT
        return -np.log(uniform) / weight, key
    if strategy == TOP_WEIGHT:
        return -np.float64(weight), key
    if strategy == RECENT:
        return -time, key
    if strategy == FIRST:
        return place, key
    return 0.0, key


@compiled
def _order_row(
    strategy: int,
    seed: np.uint64,
    hash_v: np.uint64,
    hashes: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    chosen: NDArray[np.int64],
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    multigraph: bool,
) -> NDArray[np.int64]:
    """One row's `chosen` edges, which come as `by_source` has them, in the strategy's order."""
    num_edges = len(chosen)
    primary = np.zeros(num_edges)
    tie = np.empty(num_edges, dtype=np.uint64)
    has_weight, has_time = len(weight) > 0, len(time) > 0
    number = 0
    for place in range(num_edges):
        edge = chosen[place]
        before = chosen[place - 1] if place else -1
        same = multigraph and place > 0 and not _comes_before(before, edge, source, weight, time)
        number = number + 1 if same else 0
        primary[place], tie[place] = edge_rank_key(
            strategy,
            edge_key(seed, hash_v, hashes[source[edge]]),
            np.float64(ranks[source[edge]] if len(ranks) else source[edge]) if strategy == FIRST else 0.0,
            has_weight,
            weight[edge] if has_weight else np.float32(1),
            has_time,
            time[edge] if has_time else 0.0,
            multigraph,
            number,
        )
    return chosen[sort_keys(primary, tie, strategy == SEEDED)]


@compiled
def _merge_row(
    order: NDArray[np.int64],
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    sums: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Of repeats side by side in `order` the latest, of equal times the last that came."""
    kept = 0
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order) and source[order[end]] == source[order[start]]:
            continue
        best = order[start]
        total = 0.0
        for place in range(start, end):
            edge = order[place]
            total += weight[edge] if len(weight) else 1.0
            later = len(time) > 0 and time[edge] > time[best]
            as_late = len(time) == 0 or time[edge] == time[best]
            if later or (as_late and edge > best):
                best = edge
        if len(sums):
            sums[best] = total
        order[kept] = best
        kept += 1
        start = end
    return order[:kept]


@compiled
def merge_rows(
    strategy: int,
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    first_row: int,
    row: NDArray[np.int32],
    num_rows: int,
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    multigraph: bool,
    summed: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    starts = np.zeros(num_rows + 1, dtype=np.int64)
    for edge in range(len(row)):
        starts[row[edge] + 1] += 1
    for place in range(num_rows):
        starts[place + 1] += starts[place]
    cursor = starts[:-1].copy()
    by_row = np.empty(len(row), dtype=np.int64)
    for edge in range(len(row)):
        by_row[cursor[row[edge]]] = edge
        cursor[row[edge]] += 1
    source, weight, time = (
        source[by_row],
        weight[by_row] if len(weight) else weight,
        time[by_row] if len(time) else time,
    )
    sums = np.empty(len(row) if summed else 0, dtype=np.float32)
    kept = np.empty(len(row), dtype=np.int64)
    counts = np.empty(num_rows, dtype=np.int64)
    num_kept = 0
    for place in range(num_rows):
        start, end = starts[place], starts[place + 1]
        row_source = source[start:end]
        row_weight = weight[start:end] if len(weight) else weight
        row_time = time[start:end] if len(time) else time
        order = by_source(row_source, row_weight, row_time)
        if not multigraph:
            row_sums = sums[start:end] if summed else sums
            order = _merge_row(order, row_source, row_weight, row_time, row_sums)
            if summed:
                row_weight = row_sums
        hash_v = hashes[first_row + place]
        order = _order_row(
            strategy, seed, hash_v, hashes, ranks, order, row_source, row_weight, row_time, multigraph
        )
        for edge in order:
            kept[num_kept] = start + edge
            num_kept += 1
        counts[place] = len(order)
    kept = kept[:num_kept]
    return by_row[kept], counts, sums[kept] if summed else sums


@compiled
def permute_rows(
    strategy: int,
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    first_row: int,
    indptr: NDArray[np.int64],
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    multigraph: bool,
) -> NDArray[np.uint32]:
    places = np.empty(len(source), dtype=np.uint32)
    for row in range(len(indptr) - 1):
        start, end = indptr[row] - indptr[0], indptr[row + 1] - indptr[0]
        row_source = source[start:end]
        row_weight = weight[start:end] if len(weight) else weight
        row_time = time[start:end] if len(time) else time
        order = by_source(row_source, row_weight, row_time)
        hash_v = hashes[first_row + row]
        order = _order_row(
            strategy, seed, hash_v, hashes, ranks, order, row_source, row_weight, row_time, multigraph
        )
        for place in range(end - start):
            places[start + place] = order[place]
    return places
