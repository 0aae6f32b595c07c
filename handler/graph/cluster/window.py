"""What a batch of seeds needs of a graph in a cluster, as a snapshot in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphUnavailable
from handler.graph.adjacency import Adjacency
from handler.graph.cluster.layout import (
    FORMAT_VERSION,
    ROW_HEADER,
    ClusterManifest,
    Keys,
    id_bytes,
    id_partition,
)
from handler.graph.cluster.shards import Command, Shards
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.ids import IntIds, NodeId, NodeIds, StrIds
from handler.graph.snapshot import Snapshot


@dataclass(frozen=True)
class Window:
    """Some nodes of a graph, with the rows of those that are sampled.

    Args:
        snapshot: of these nodes; the rows of the others are empty, and those of edges that no sample reaches
            are not there.
        index: int64 [num_window_nodes], the graph's index of each, ascending.
    """

    snapshot: Snapshot
    index: NDArray[np.int64]

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The window's indices of nodes that are in it."""
        return np.searchsorted(self.index, index)


class ClusterGraph:
    """A graph in a cluster, to be read."""

    def __init__(self, shards: Shards, keys: Keys, manifest: ClusterManifest) -> None:
        self.shards = shards
        self.manifest = manifest
        self._keys = keys

    @classmethod
    def open(cls, shards: Shards, name: str) -> Self:
        """Find the graph that counts under a name.

        Raises:
            GraphUnavailable: there is none, or of another format, or the cluster cannot be asked.
        """
        version = shards.get(Keys.current(name))
        keys = None if version is None else Keys(name, version.decode())
        data = None if keys is None else shards.get(keys.manifest)
        if keys is None or data is None:
            raise GraphUnavailable(f"the cluster holds no graph {name!r}: push one")
        try:
            manifest = msgspec.json.decode(data, type=ClusterManifest)
        except msgspec.DecodeError as error:
            raise GraphUnavailable(f"{name}: its manifest cannot be read: {error}") from None
        if manifest.format_version != FORMAT_VERSION:
            raise GraphUnavailable(
                f"{name}: format_version is {manifest.format_version}, this Hopserve reads {FORMAT_VERSION}"
            )
        return cls(shards, keys, manifest)

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        """int64 [len(node_ids)]: node indices, -1 for an id that the graph does not have.

        One wait, and none where ids are indices.
        """
        if self.manifest.graph.id_kind == "range":
            index = np.array(node_ids, dtype=np.int64)
            index[(index < 0) | (index >= self.manifest.graph.num_nodes)] = -1
            return index
        names = [id_bytes(node_id) for node_id in node_ids]
        partition = np.array([id_partition(name, self.manifest.partitions) for name in names], dtype=np.int64)
        found = self._fetch(self._keys.ids, partition, names)
        return np.array([-1 if value is None else int(value) for value in found], dtype=np.int64)

    def window(self, seeds: NDArray[np.int64], plan: FanoutPlan, *, degrees: bool = False) -> Window:
        """All that the trees of some seeds need: one wait for each hop, and one for features.

        One more for each hop with rows that are read further than `ClusterManifest.head`.

        Args:
            seeds: int64 [num_seeds], node indices within the graph.
            degrees: read the rows of nodes that are not expanded, too, for the sizes of their samples: one
                more wait.

        Raises:
            GraphUnavailable: some of it cannot be had.
        """
        rows = _Rows(self.manifest.edge_dtype)
        frontier = np.unique(seeds)
        nodes = [frontier]
        widest = max(plan.layer_fanouts)
        for fanout in plan.hop_fanouts:
            self._add_rows(rows, frontier, widest)
            frontier = np.unique(rows.expand(frontier, fanout))
            nodes.append(frontier)
        if degrees:
            self._add_rows(rows, frontier, widest)
            rows.expand(frontier, widest)
        return self._assembled(np.unique(np.concatenate(nodes)), rows)

    def _add_rows(self, rows: _Rows, index: NDArray[np.int64], most: int) -> None:
        new = rows.missing(index)
        rows.add(new, self._read_rows(new, most))

    def _read_rows(self, index: NDArray[np.int64], most: int) -> list[bytes]:
        """The packed edges of nodes, up to so many of each."""
        found = self._fetch(self._keys.rows, index % self.manifest.partitions, _fields(index))
        width, size = self.manifest.edge_dtype.itemsize, ROW_HEADER.itemsize
        rows = [b"" if value is None else value[size:] for value in found]
        if most <= self.manifest.head:
            return [row[: most * width] for row in rows]
        headers = b"".join(bytes(size) if value is None else value[:size] for value in found)
        degree = np.frombuffer(headers, dtype=ROW_HEADER)["degree"]
        longer = np.flatnonzero(degree > self.manifest.head).tolist()
        commands: list[Command] = []
        for place in longer:
            node = int(index[place])
            commands.append(
                ("GETRANGE", self._keys.row(node % self.manifest.partitions, node), 0, most * width - 1)
            )
        for place, row in zip(longer, self.shards.ask(commands), strict=True):
            rows[place] = row
            if len(row) != min(most, int(degree[place])) * width:
                raise GraphUnavailable(f"the row of node {index[place]} is not all there")
        return rows

    def _assembled(self, index: NDArray[np.int64], rows: _Rows) -> Window:
        manifest = self.manifest
        found = self._fetch(self._keys.nodes, index % manifest.partitions, _fields(index))
        size = manifest.node_dtype.itemsize
        if any(value is None or len(value) < size for value in found):
            raise GraphUnavailable("the cluster holds not all nodes of the graph: push it again")
        nodes = np.frombuffer(
            b"".join(value[:size] for value in found if value is not None), manifest.node_dtype
        )
        ids: NodeIds
        if manifest.graph.id_kind == "range":
            ids = IntIds.build(index)
        elif manifest.graph.id_kind == "int":
            ids = IntIds.build(np.array([int(value[size:]) for value in found if value], dtype=np.int64))
        else:
            ids = StrIds.build([value[size:].decode() for value in found if value])
        indptr, edges = rows.of(index)
        x = None if manifest.feature_dtype is None else np.array(nodes["x"], dtype=manifest.feature_dtype)
        snapshot = Snapshot(
            Path(manifest.graph.name),
            msgspec.structs.replace(
                manifest.graph, num_nodes=len(index), num_edges=len(edges), id_kind=ids.kind
            ),
            Adjacency(
                indptr,
                # Of nodes that are not expanded only the number of edges counts.
                _frozen(np.minimum(np.searchsorted(index, edges["source"]), len(index) - 1).astype(np.int32)),
                _frozen(np.ascontiguousarray(edges["weight"])) if manifest.weight else None,
                _frozen(np.ascontiguousarray(edges["time"])) if manifest.time else None,
                _frozen(np.ascontiguousarray(edges["attr"])) if manifest.attr_dim else None,
                manifest.graph.ordering,
            ),
            ids,
            None if x is None else DenseFeatures(_frozen(x)),
            None,
            None,
            _frozen(np.array(nodes["created"])),
            _frozen(np.array(nodes["seq"])),
        )
        return Window(snapshot, index)

    def _fetch(self, key: Any, partition: NDArray[np.int64], fields: Sequence[bytes]) -> list[bytes | None]:
        """Fields of hashes, of which each partition is asked once, all at once; in the order of `fields`."""
        if not len(fields):
            return []
        order = np.argsort(partition, kind="stable")
        parts = np.flatnonzero(np.diff(partition[order], prepend=-1)).tolist()
        commands: list[Command] = []
        for start, stop in zip(parts, [*parts[1:], len(order)], strict=True):
            asked = [fields[place] for place in order[start:stop].tolist()]
            commands.append(("HMGET", key(int(partition[order[start]])), *asked))
        found: list[bytes | None] = [None] * len(fields)
        answers = (value for answer in self.shards.ask(commands) for value in answer)
        for place, value in zip(order.tolist(), answers, strict=True):
            found[place] = value
        return found


class _Rows:
    """The rows that were read, and how far each is needed."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._index = np.empty(0, dtype=np.int64)  # in the order in which they came
        self._start = np.zeros(1, dtype=np.int64)
        self._needed = np.empty(0, dtype=np.int64)
        self._edges = np.empty(0, dtype=dtype)

    def missing(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of which there is no row."""
        return np.setdiff1d(index, self._index, assume_unique=True)

    def add(self, index: NDArray[np.int64], rows: Sequence[bytes]) -> None:
        """Note the rows of nodes that are missing."""
        edges = np.frombuffer(b"".join(rows), dtype=self._edges.dtype)
        count = np.array([len(row) for row in rows], dtype=np.int64) // self._edges.dtype.itemsize
        self._index = np.concatenate([self._index, index])
        self._start = np.concatenate([self._start, self._start[-1] + np.cumsum(count)])
        self._needed = np.concatenate([self._needed, np.zeros(len(index), dtype=np.int64)])
        self._edges = np.concatenate([self._edges, edges])

    def expand(self, index: NDArray[np.int64], fanout: int) -> NDArray[np.int64]:
        """The sources of the first edges of nodes that have rows."""
        place = self._places(index)
        count = np.minimum(self._start[place + 1] - self._start[place], fanout)
        self._needed[place] = np.maximum(self._needed[place], count)
        return self._edges["source"][_ranges(self._start[place], count)].astype(np.int64)

    def of(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Offsets int64 [len(index) + 1], and the edges that are needed, for nodes that are ascending."""
        count = np.zeros(len(index), dtype=np.int64)
        start = np.zeros(len(index), dtype=np.int64)
        at = np.searchsorted(index, self._index)
        count[at], start[at] = self._needed, self._start[:-1]
        indptr = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(count, out=indptr[1:])
        return _frozen(indptr), self._edges[_ranges(start, count)]

    def _places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(self._index)
        return order[np.searchsorted(self._index, index, sorter=order)]


def _ranges(start: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions from each start on, so many of each."""
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(int(count.sum()))


def _fields(index: NDArray[np.int64]) -> list[bytes]:
    return [b"%d" % node for node in index.tolist()]


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """As what is mapped: kernels are compiled once for these types."""
    array.flags.writeable = False
    return array
