"""What kernels ask of a snapshot and its changes together: ids, rows, and the order of edges."""

from __future__ import annotations

import numpy as np

from handler.graph.hashing import edge_key
from handler.graph.id_kernels import node_hash
from handler.graph.kernels import embedded, inlined
from handler.graph.overlay_layout import HAS_TIME, HAS_WEIGHT, AddedArrays, BaseArrays
from handler.graph.row_kernels import FIRST, edge_rank_key


@embedded
def hash_of(base: BaseArrays, added: AddedArrays, node: int) -> np.uint64:
    """The hash of a node's id."""
    num_base = len(base.indptr) - 1
    if node >= num_base:
        return np.uint64(added.node_hash[node - num_base])
    return node_hash(base.id_kind, base.ids, base.id_data, base.id_offsets, node)


@inlined
def _int_id(base: BaseArrays, added: AddedArrays, node: int) -> int:
    num_base = len(base.indptr) - 1
    if node >= num_base:
        return int(added.node_ids[node - num_base])
    return int(base.ids[node]) if base.id_kind == 1 else int(node)


@inlined
def _id_byte(base: BaseArrays, added: AddedArrays, node: int, place: int) -> int:
    """A byte of a node's string id, -1 behind its end."""
    num_base = len(base.indptr) - 1
    if node < num_base:
        at = base.id_offsets[node] + place
        return int(base.id_data[at]) if at < base.id_offsets[node + 1] else -1
    at = added.id_offsets[node - num_base] + place
    return int(added.id_data[at]) if at < added.id_offsets[node - num_base + 1] else -1


@inlined
def _compare_ids(base: BaseArrays, added: AddedArrays, left: int, right: int) -> int:
    """Less than, equal to or greater than 0, as the id of `left` is to that of `right`."""
    if left == right:
        return 0
    if base.id_kind != 2:
        return -1 if _int_id(base, added, left) < _int_id(base, added, right) else 1
    place = 0
    while True:
        one, other = (_id_byte(base, added, left, place), _id_byte(base, added, right, place))
        if one != other:
            return one - other
        place += 1


@embedded
def is_before(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    left: int,
    left_primary: float,
    left_tie: np.uint64,
    right: int,
    right_primary: float,
    right_tie: np.uint64,
) -> bool:
    """Whether the edge from node `left` stands before the edge from `right` in a row."""
    if strategy == FIRST:
        order = _compare_ids(base, added, left, right)
        if order != 0:
            return order < 0
    elif left_primary != right_primary:
        return left_primary < right_primary
    return bool(left_tie < right_tie)


@embedded
def key_of(
    base: BaseArrays,
    added: AddedArrays,
    strategy: int,
    seed: np.uint64,
    multigraph: bool,
    source: int,
    target: int,
    weight: np.float32,
    time: float,
    number: int,
) -> tuple[float, np.uint64]:
    """See `edge_rank_key`; of `first` the ids are compared instead of the places among them."""
    key = edge_key(seed, hash_of(base, added, target), hash_of(base, added, source))
    has_weight, has_time = added.counts[HAS_WEIGHT] > 0, added.counts[HAS_TIME] > 0
    return edge_rank_key(strategy, key, 0.0, has_weight, weight, has_time, time, multigraph, number)


@embedded
def is_removed(added: AddedArrays, edge: int) -> bool:
    """Whether an edge of the snapshot was removed."""
    return bool((added.removed[edge >> 3] >> (edge & 7)) & 1)


@embedded
def base_degree(base: BaseArrays, node: int) -> int:
    """The edges of a node in the snapshot, removed ones too."""
    if node >= len(base.indptr) - 1:
        return 0
    return int(base.indptr[node + 1] - base.indptr[node])


@embedded
def edge_at(base: BaseArrays, row_start: int, place: int) -> int:
    """The position of the edge at a place of a snapshot's row, in the order that is sampled by."""
    if len(base.permutation):
        return int(row_start + base.permutation[row_start + place])
    return row_start + place


@embedded
def next_on(added: AddedArrays, row: int, edge: int, level: int) -> int:
    """The next added edge on a level of a row's skip list; the first one after 0."""
    if edge == 0:
        return int(added.rows[row].head[level])
    if level == 0:
        return int(added.edges[edge].following)
    return int(added.upper[added.edges[edge].tower + level - 1])
