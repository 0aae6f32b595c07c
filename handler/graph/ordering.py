"""What each sampling strategy orders a node's in-neighbours by.

A sample is a prefix of such an order, so an order says everything of a strategy:

- `seeded`: a hash of (seed, v, u): a uniform sample without replacement, the same every time;
- `weighted`: -log(uniform hash) / weight, a sample without replacement in which each next neighbour is
  drawn in proportion to its weight (Efraimidis and Spirakis, 2006);
- `top_weight`: weight, descending;
- `recent`: time, descending;
- `first`: id, ascending.

Ties are broken by the `seeded` hash. Everything is derived from ids and edge data, never from positions,
so the same graph gives the same samples in whatever order it was read. Where edges may repeat (a
multigraph), each one's hash takes in its time and weight, and a number where even these are equal: so no
edge's place depends on the others, and one more or less changes a sample by at most one.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.edges import EdgeFields
from handler.graph.hashing import edge_key, mix64
from handler.graph.kernels import compiled

Strategy = Literal["seeded", "weighted", "top_weight", "recent", "first"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_SEEDED, _WEIGHTED, _TOP_WEIGHT, _RECENT, _FIRST = range(len(STRATEGIES))
_NEEDS = {"weighted": "weight", "top_weight": "weight", "recent": "time"}

_SMALL_ROW = 32  # up to here insertion beats merging

_UNIT = 2.0**-53


class Ordering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each list of neighbours is ordered, which is what a sample is a prefix of.

    Args:
        seed: another seed gives other, independent samples; without effect but on ties where the
            strategy does not hash.
    """

    strategy: Strategy
    seed: int = 0


def check_ordering(ordering: Ordering, fields: EdgeFields) -> None:
    """Refuse an ordering by what the edges do not have with a `GraphInputError`."""
    need = _NEEDS.get(ordering.strategy)
    if need is not None and not getattr(fields, need):
        raise GraphInputError(f"the ordering `{ordering.strategy}` needs edges with a {need}")


def check_weights(ordering: Ordering, weight: NDArray[np.float32] | None) -> None:
    """Refuse weights that `weighted` cannot draw by with a `GraphInputError`."""
    if ordering.strategy == "weighted" and weight is not None and len(weight) and not weight.min() > 0:
        raise GraphInputError(
            f"the ordering `weighted` needs positive weights, but one is {weight.min():g};"
            " `top_weight` takes any"
        )


class RowOrderer:
    """Orders rows of in-neighbours, many at a time.

    Args:
        hashes: uint64 [num_nodes], a hash of each node's id.
        ranks: int64 [num_nodes], each node's place among ascending ids; empty where that is its index.
        multigraph: whether edges with the same ends may stand side by side.
    """

    def __init__(
        self,
        ordering: Ordering,
        hashes: NDArray[np.uint64],
        ranks: NDArray[np.int64],
        *,
        multigraph: bool,
    ) -> None:
        self.ordering = ordering
        self.multigraph = multigraph
        self._hashes = hashes
        self._ranks = ranks
        self._strategy = STRATEGIES.index(ordering.strategy)
        self._seed = np.uint64(ordering.seed)

    def merge_rows(
        self,
        first_row: int,
        row: NDArray[np.int32],
        num_rows: int,
        source: NDArray[np.integer],
        weight: NDArray[np.float32] | None,
        time: NDArray[np.float64] | None,
        *,
        summed: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Sort edges into rows, deal with repeats, and order each row.

        Args:
            first_row: node index of row 0.
            row: int32 [num_edges], which row each edge is in.
            num_rows: rows there are.
            source, weight, time: of each edge.
            summed: whether weights are added where edges with the same ends become one.

        Returns:
            int64 [num_kept], positions of the edges kept, row by row in order (but in a multigraph, of edges
            with the same ends the latest alone, of equal times the first that came); int64 [num_rows], how
            many each row kept; and float32 [num_kept], their `summed` weights, or counts without weights.
        """
        return _merge_rows(
            self._strategy,
            self._seed,
            self._hashes,
            self._ranks,
            first_row,
            row,
            num_rows,
            source,
            _or_none(weight, np.float32),
            _or_none(time, np.float64),
            self.multigraph,
            summed,
        )

    def permutation(
        self,
        first_row: int,
        indptr: NDArray[np.int64],
        source: NDArray[np.integer],
        weight: NDArray[np.float32] | None,
        time: NDArray[np.float64] | None,
    ) -> NDArray[np.uint32]:
        """The order of rows that lie in another one.

        Args:
            first_row: node index of row 0.
            indptr: int64 [num_rows + 1], offsets into the other arrays.

        Returns:
            uint32 [num_edges]: row by row, the places within the row, best first.
        """
        return _permutation(
            self._strategy,
            self._seed,
            self._hashes,
            self._ranks,
            first_row,
            indptr,
            source,
            _or_none(weight, np.float32),
            _or_none(time, np.float64),
            self.multigraph,
        )


def _or_none(values: NDArray[Any] | None, dtype: type[np.floating]) -> NDArray[Any]:
    return np.empty(0, dtype=dtype) if values is None else values


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
def _by_source(
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
def _sort_keys(primary: NDArray[np.float64], tie: NDArray[np.uint64], by_tie: bool) -> NDArray[np.int64]:
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
    """One row's `chosen` edges, which come as `_by_source` has them, in the strategy's order."""
    num_edges = len(chosen)
    primary = np.zeros(num_edges)
    tie = np.empty(num_edges, dtype=np.uint64)
    time_bits, weight_bits = time.view(np.uint64), weight.view(np.uint32)
    number = np.uint64(0)
    for place in range(num_edges):
        edge = chosen[place]
        key = edge_key(seed, hash_v, hashes[source[edge]])
        if multigraph:
            before = chosen[place - 1] if place else -1
            same = place > 0 and not _comes_before(before, edge, source, weight, time)
            number = number + np.uint64(1) if same else np.uint64(0)
            if len(time):
                key = mix64(key ^ time_bits[edge])
            if len(weight):
                key = mix64(key ^ np.uint64(weight_bits[edge]))
            key = mix64(key + number)
        tie[place] = key
        if strategy == _WEIGHTED:
            uniform = (np.float64(tie[place] >> np.uint64(11)) + 0.5) * _UNIT
            primary[place] = -np.log(uniform) / weight[edge]
        elif strategy == _TOP_WEIGHT:
            primary[place] = -weight[edge]
        elif strategy == _RECENT:
            primary[place] = -time[edge]
        elif strategy == _FIRST:
            primary[place] = ranks[source[edge]] if len(ranks) else source[edge]
    return chosen[_sort_keys(primary, tie, strategy == _SEEDED)]


@compiled
def _merge_row(
    order: NDArray[np.int64],
    source: NDArray[np.integer],
    weight: NDArray[np.float32],
    time: NDArray[np.float64],
    sums: NDArray[np.float32],
) -> NDArray[np.int64]:
    """Of repeats side by side in `order` the latest, of equal times the first that came."""
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
            if later or (as_late and edge < best):
                best = edge
        if len(sums):
            sums[best] = total
        order[kept] = best
        kept += 1
        start = end
    return order[:kept]


@compiled
def _merge_rows(
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
        order = _by_source(row_source, row_weight, row_time)
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
def _permutation(
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
        order = _by_source(row_source, row_weight, row_time)
        hash_v = hashes[first_row + row]
        order = _order_row(
            strategy, seed, hash_v, hashes, ranks, order, row_source, row_weight, row_time, multigraph
        )
        for place in range(end - start):
            places[start + place] = order[place]
    return places
