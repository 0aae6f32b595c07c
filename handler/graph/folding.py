"""What a live graph is at one moment, block by block: the contents of its next snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.arrays import Split
from handler.graph.edges import EdgeBlock, EdgeFields, index_dtype
from handler.graph.files import Columns, Contents, row_dtype
from handler.graph.folding_kernels import merge_changes
from handler.graph.live_features import LiveFeatures
from handler.graph.live_graph import LiveGraph
from handler.graph.overlay_arrays import take_edges
from handler.graph.progress import SILENT, Progress
from handler.graph.rows import OrderedRows

_RANGE_BYTES = 1 << 26  # two million edges without features
_BLOCK_NODES = 1 << 16
_BLOCK_VALUES = 1 << 22  # features at once


def folded(live: LiveGraph, earliest: float = -np.inf, progress: Progress = SILENT) -> Contents:
    """A graph in its snapshot's own ordering, with the same name, rules and orderings.

    Args:
        live: must not change until all was read.
        earliest: older edges are left out.
    """
    manifest = live.manifest
    return Contents(
        name=manifest.name,
        seq=live.seq,
        ids=live.ids.merged(),
        fields=live.edge_fields,
        rows=_rows(_Rows(live, earliest), progress),
        nodes=tuple(_node_columns(live)),
        feature_kind=manifest.feature_kind,
        feature_dim=manifest.feature_dim,
        ordering=manifest.ordering,
        extra_orderings=manifest.extra_orderings,
        rules=manifest.rules,
        label_names=manifest.label_names,
    )


@dataclass(frozen=True)
class _Rows:
    """The rows of a graph without its older edges."""

    live: LiveGraph
    earliest: float

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Node ranges that cover the graph, also its new nodes, and have few edges each."""
        adjacency = self.live.snapshot.adjacency
        yield from adjacency.ranges(max(1, _RANGE_BYTES // _bytes_per_edge(adjacency.fields)))
        for first in range(adjacency.num_nodes, self.live.num_nodes, _BLOCK_NODES):
            yield first, min(first + _BLOCK_NODES, self.live.num_nodes)

    def read(self, first: int, last: int) -> OrderedRows:
        """The rows of nodes `first` to `last`."""
        return self._unchanged(first, last) or self._merged(first, last)

    def _unchanged(self, first: int, last: int) -> OrderedRows | None:
        """The rows as the snapshot has them, if nothing came to them and nothing goes."""
        adjacency = self.live.snapshot.adjacency
        if last > adjacency.num_nodes or self.live.overlay.arrays.row_of[first:last].any():
            return None
        edges = slice(int(adjacency.indptr[first]), int(adjacency.indptr[last]))
        weight, time, attr = adjacency.edge_weight, adjacency.edge_time, adjacency.edge_attr
        if time is not None and time[edges].min(initial=np.inf) < self.earliest:
            return None
        degree = np.diff(adjacency.indptr[first : last + 1])
        block = EdgeBlock(
            adjacency.indices[edges],
            _targets(first, degree),
            None if weight is None else weight[edges],
            None if time is None else time[edges],
            None if attr is None else attr[edges],
        )
        return OrderedRows(degree, block)

    def _merged(self, first: int, last: int) -> OrderedRows:
        adjacency, overlay = self.live.snapshot.adjacency, self.live.overlay
        added = overlay.arrays
        degree, edge = merge_changes(overlay.base, added, first, last, self.earliest)
        weight, time, attr = adjacency.edge_weight, adjacency.edge_time, adjacency.edge_attr
        block = EdgeBlock(
            take_edges(adjacency.indices, added.edges["source"][1:], edge, index_dtype(self.live.num_nodes)),
            _targets(first, degree),
            None if weight is None else take_edges(weight, added.edges["weight"][1:], edge),
            None if time is None else take_edges(time, added.edges["time"][1:], edge),
            None if attr is None else take_edges(attr, overlay.attr[1:], edge),
        )
        return OrderedRows(degree, block)


def _rows(rows: _Rows, progress: Progress) -> Iterator[OrderedRows]:
    with progress.bar("merging neighbors", rows.live.num_edges, "edge") as advance:
        for first, last in rows.ranges():
            read = rows.read(first, last)
            yield read
            advance(len(read.edges))


def _targets(first: int, degree: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(first, first + len(degree)), degree)


def _bytes_per_edge(fields: EdgeFields) -> int:
    attr_bytes = np.dtype(fields.attr_dtype).itemsize * fields.attr_dim
    return 32 + attr_bytes  # ends, weight, time, and where the edge is


def _node_columns(live: LiveGraph) -> Iterator[Columns]:
    snapshot, num_new = live.snapshot, live.num_nodes - live.snapshot.num_nodes
    if live.features is not None and snapshot.features is not None:
        arrays = snapshot.features.arrays()
        yield _dense(live.features, arrays) if "x" in arrays else _csr(live.features, arrays)
    if snapshot.label is not None:
        yield _extended("label", snapshot.label, np.full(num_new, -1, dtype=np.int64))
    if snapshot.split is not None:
        yield _extended("split", snapshot.split, np.full(num_new, Split.NONE, dtype=np.uint8))
    created = snapshot.node_created
    if created is not None or num_new:
        created = np.zeros(snapshot.num_nodes) if created is None else created
        yield _extended("node_created", created, np.array(live.created))
    if live.features is not None and (seqs := live.features.change_numbers()).any():
        yield Columns({"feature_seq": seqs.dtype}, ({"feature_seq": seqs},))


def _extended(name: str, base: NDArray[Any], new: NDArray[Any]) -> Columns:
    return Columns({name: base.dtype}, ({name: base}, {name: new}))


def _dense(features: LiveFeatures, arrays: Mapping[str, NDArray[Any]]) -> Columns:
    x = arrays["x"]

    def blocks() -> Iterator[dict[str, NDArray[Any]]]:
        for node in _node_blocks(features):
            changed = node[-1] >= len(x) or features.changed(node).any()
            yield {"x": features.gather(node) if changed else x[node[0] : node[-1] + 1]}

    return Columns({"x": row_dtype(x.dtype, x.shape[1:])}, blocks())


def _csr(features: LiveFeatures, arrays: Mapping[str, NDArray[Any]]) -> Columns:
    def blocks() -> Iterator[dict[str, NDArray[Any]]]:
        end = np.zeros(1, dtype=np.int64)
        yield {"x_indptr": end}
        for node in _node_blocks(features):
            count, indices, data = _csr_block(features, arrays, node)
            ends = end + np.cumsum(count)
            end = ends[-1:]
            yield {"x_indptr": ends, "x_indices": indices, "x_data": data}

    return Columns({name: array.dtype for name, array in arrays.items()}, blocks())


def _csr_block(
    features: LiveFeatures, arrays: Mapping[str, NDArray[Any]], node: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.floating]]:
    """How many values each of some nodes has that follow one another, their columns, and the values."""
    indptr = arrays["x_indptr"]
    old = node[node < len(indptr) - 1]
    start, end = (int(indptr[old[0]]), int(indptr[old[-1] + 1])) if len(old) else (0, 0)
    count = np.zeros(len(node), dtype=np.int64)
    count[: len(old)] = np.diff(indptr[old[0] : old[-1] + 2]) if len(old) else 0
    indices, data = arrays["x_indices"][start:end], arrays["x_data"][start:end]
    changed = features.changed(node)
    if not changed.any():
        return count, indices, data
    row = np.repeat(np.arange(len(node)), count)
    kept = ~changed[row]
    later = np.flatnonzero(changed)
    x = features.gather(node[later])
    place, column = np.nonzero(x)
    rows = np.concatenate([row[kept], later[place]])
    order = np.argsort(rows, kind="stable")
    return (
        np.bincount(rows, minlength=len(node)),
        np.concatenate([indices[kept], column.astype(indices.dtype)])[order],
        np.concatenate([data[kept], x[place, column].astype(data.dtype)])[order],
    )


def _node_blocks(features: LiveFeatures) -> Iterator[NDArray[np.int64]]:
    """All nodes in blocks of which the features fit into little memory."""
    num_nodes, dim = features.shape
    step = max(1, min(_BLOCK_NODES, _BLOCK_VALUES // max(1, dim)))
    for first in range(0, num_nodes, step):
        yield np.arange(first, min(first + step, num_nodes))
