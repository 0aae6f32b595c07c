"""What a batch of seeds needs of a graph in a cluster, as a snapshot in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphUnavailable
from handler.graph.adjacency import Adjacency
from handler.graph.cluster.hot import HotTable
from handler.graph.cluster.layout import (
    ROW_HEADER,
    ClusterManifest,
    Keys,
    Reached,
    id_bytes,
    id_partition,
)
from handler.graph.cluster.shards import Command, Replicated, Shards
from handler.graph.cluster.versions import current_version
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures, positions
from handler.graph.ids import IntIds, NodeId, NodeIds, StrIds
from handler.graph.snapshot import Snapshot

_NOT_WHOLE = "the cluster holds not all of the graph: push it again"
#: The index of a node of which it cannot be said now whether the graph has it.
UNREAD = -2
_BEHIND = "the cluster of the graph: a server failed, and its replica has not all that was pushed"
_UNREAD = b""  # as a value, of which none that is written is empty


@dataclass(frozen=True)
class Window:
    """Some nodes of a graph, with the rows of those that are sampled.

    Args:
        snapshot: of these nodes; the rows of the others are empty, and those of edges that no sample reaches
            are not there.
        index: int64 [num_window_nodes], the graph's index of each, ascending.
        no_node: bool [num_window_nodes], which cannot be read now: their features and ids are made up.
        no_row: bool [num_window_nodes], whose rows cannot be read now: they are empty.
    """

    snapshot: Snapshot
    index: NDArray[np.int64]
    no_node: NDArray[np.bool_]
    no_row: NDArray[np.bool_]

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """The window's indices of nodes that are in it."""
        return np.searchsorted(self.index, index)


class ClusterGraph:
    """One version of a graph in a cluster, to be read.

    Args:
        hot_bytes: memory for the nodes that are read most; a version does not change.
    """

    def __init__(
        self,
        shards: Shards,
        name: str,
        version: str,
        manifest: ClusterManifest,
        hot_bytes: int = 0,
    ) -> None:
        self.shards = shards
        self.manifest = manifest
        self._name, self.version = name, version
        self._keys = Keys(name, version)
        #: Why something could not be read, when that was so last.
        self.why_unread = ""
        self._is_behind = False
        #: Which mutations count at least.
        self.reached = Reached(seq=manifest.graph.seq, num_nodes=manifest.graph.num_nodes)
        self._last_change = b"0-0"
        for number, change in shards.ask([("XREVRANGE", self._keys.changes, "+", "-", "COUNT", 1)])[0]:
            self._note(number, change)
        # A tree of two hops of ten has eleven rows and a hundred and eleven nodes.
        self._hot_row_bytes = hot_bytes // 4
        self._hot_nodes = HotTable(manifest.node_dtype, hot_bytes - self._hot_row_bytes)
        self._hot_rows = HotTable(_row_dtype(manifest, 1), 0)  # as wide as samples are, when one comes

    @classmethod
    def open(cls, shards: Shards, name: str, hot_bytes: int = 0) -> Self:
        """Find the graph that counts under a name.

        Args:
            hot_bytes: see above.

        Raises:
            GraphUnavailable: there is none, or of another format, or the cluster cannot be asked.
        """
        found = current_version(shards, name)
        if found is None:
            raise GraphUnavailable(f"the cluster holds no graph {name!r}: push one")
        return cls(shards, name, *found, hot_bytes)

    def is_current(self) -> bool:
        """Whether it still is the version that counts; what has changed in it is no longer kept.

        Raises:
            GraphUnavailable: nobody can say so.
        """
        self._is_behind = True
        after = b"(" + self._last_change
        current, changes = self.shards.ask(
            [("GET", Keys.current(self._name)), ("XRANGE", self._keys.changes, after, "+")]
        )
        if current != self.version.encode():
            return False
        for number, change in changes:
            changed = np.frombuffer(change[b"nodes"], dtype="<i8").astype(np.int64)
            for hot in (self._hot_rows, self._hot_nodes):
                if int(change[b"after"]) == self.reached.seq:
                    hot.forget(changed)
                else:  # the one before it is there no longer
                    hot.clear()
            self._note(number, change)
        self._is_behind = False
        return True

    def _note(self, number: bytes, change: Mapping[bytes, bytes]) -> None:
        self.reached = Reached(seq=int(change[b"seq"]), num_nodes=int(change[b"num_nodes"]))
        self._last_change = number

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        """int64 [len(node_ids)]: node indices; -1 for an id that the graph does not have.

        It is `UNREAD` for one that cannot be looked up now. One wait, one more if there are ids that the
        graph does not have, and none where ids are indices.

        Raises:
            GraphUnavailable: the cluster holds not all of the graph.
        """
        if self.manifest.graph.id_kind == "range":
            index = np.array(node_ids, dtype=np.int64)
            later = np.flatnonzero((index < 0) | (index >= self.manifest.graph.num_nodes))
            index[later] = -1
            if len(later) and (self._is_behind or self.reached.num_nodes > self.manifest.graph.num_nodes):
                index[later] = self._find([node_ids[place] for place in later.tolist()])
            return index
        return self._find(node_ids)

    def _find(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        names = [id_bytes(node_id) for node_id in node_ids]
        partition = np.array([id_partition(name, self.manifest.partitions) for name in names], dtype=np.int64)
        found = self._fetch(self._keys.ids, partition, names)
        unknown = self._unknown() if None in found else -1
        return np.array(
            [int(value) if value else unknown if value is None else UNREAD for value in found], dtype=np.int64
        )

    def _unknown(self) -> int:
        """The index of an id that has no key: the graph has no such node, unless its keys are going."""
        try:
            is_current = self.is_current()
        except GraphUnavailable as error:
            self.why_unread = error.message
            return UNREAD
        if not is_current:
            raise GraphUnavailable(_NOT_WHOLE)
        return -1

    def window(self, seeds: NDArray[np.int64], plan: FanoutPlan, *, degrees: bool = False) -> Window:
        """All that the trees of some seeds need: one wait for each hop, and one for features.

        One more for each hop with rows that are read further than `ClusterManifest.head`. What cannot be read
        now is marked.

        Args:
            seeds: int64 [num_seeds], node indices within the graph.
            degrees: read the rows of nodes that are not expanded, too, for the sizes of their samples: one
                more wait.

        Raises:
            GraphUnavailable: the cluster holds not all of the graph.
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
        rows.add(new, *self._read_rows(new, most))

    def _read_rows(self, index: NDArray[np.int64], most: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The first edges of nodes, up to so many of each, as `_row_dtype` has them; and which are unread."""
        rows, unread = np.empty(len(index), dtype=_row_dtype(self.manifest, most)), _none_of(index)
        if rows.dtype != self._hot_rows.dtype:  # the samples of a model are all as wide
            self._hot_rows = HotTable(rows.dtype, self._hot_row_bytes)
        missing = self._hot_rows.find(index, rows)
        if len(missing):
            asked = index[missing]
            packed, unread[missing] = self._packed_rows(asked, most)
            rows[missing] = read = self._unpacked(packed, rows.dtype)
            _keep(self._hot_rows, asked, read, unread[missing])
        return rows, unread

    def _packed_rows(self, index: NDArray[np.int64], most: int) -> tuple[list[bytes], NDArray[np.bool_]]:
        width, size = self.manifest.edge_dtype.itemsize, ROW_HEADER.itemsize
        values, unread = self._values(self._keys.rows, index, size)
        rows = [value[size : size + most * width] for value in values]
        degree = np.frombuffer(b"".join(value[:size] for value in values), dtype=ROW_HEADER)["degree"].copy()
        if most > self.manifest.head:
            longer = np.flatnonzero(degree > self.manifest.head).tolist()
            commands: list[Command] = []
            for place in longer:
                node = int(index[place])
                key = self._keys.row(node % self.manifest.partitions, node)
                commands.append(("GETRANGE", key, 0, most * width - 1))
            for place, answer in zip(longer, self.shards.ask_each(commands), strict=True):
                rows[place] = answer
                if isinstance(answer, GraphUnavailable):
                    self.why_unread = answer.message
                    rows[place], degree[place], unread[place] = b"", 0, True
        if [len(row) for row in rows] != (np.minimum(degree, most).astype(np.int64) * width).tolist():
            raise GraphUnavailable(_NOT_WHOLE)
        return rows, unread

    def _unpacked(self, packed: list[bytes], dtype: np.dtype[Any]) -> NDArray[Any]:
        width = self.manifest.edge_dtype.itemsize
        rows = np.zeros(len(packed), dtype=dtype)
        rows["count"] = [len(row) // width for row in packed]
        edges = np.frombuffer(b"".join(packed), dtype=self.manifest.edge_dtype)
        rows["edges"][_is_edge(rows)] = edges
        return rows

    def _read_nodes(self, index: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Nodes as `ClusterManifest.node_dtype` has them, and which are unread."""
        dtype = self.manifest.node_dtype
        nodes, unread = np.empty(len(index), dtype=dtype), _none_of(index)
        missing = self._hot_nodes.find(index, nodes)
        if len(missing):
            asked = index[missing]
            values, unread[missing] = self._values(self._keys.nodes, asked, dtype.itemsize)
            if any(len(value) != dtype.itemsize for value in values):
                raise GraphUnavailable(_NOT_WHOLE)
            read = np.frombuffer(b"".join(values), dtype=dtype)
            nodes[missing] = read
            _keep(self._hot_nodes, asked, read, unread[missing])
        return nodes, unread

    def _values(self, key: Any, index: NDArray[np.int64], size: int) -> tuple[list[bytes], NDArray[np.bool_]]:
        """What the hashes of nodes hold, all zero and of this size where unread; and which are."""
        found = self._fetch(key, index % self.manifest.partitions, _fields(index))
        unread, nothing = _none_of(index), bytes(size)
        if _UNREAD in found:
            unread[:] = [value == _UNREAD for value in found]
        values = [value or nothing for value in found if value is not None]
        if len(values) < len(found) or any(len(value) < size for value in values):
            raise GraphUnavailable(_NOT_WHOLE)
        return values, unread

    def _ids(self, nodes: NDArray[Any], unread: NDArray[np.bool_]) -> NodeIds:
        """The ids of nodes; of those that are unread, ids that no other node of the window has."""
        if self.manifest.graph.id_kind != "str":
            ids = np.array(nodes["id"])
            if unread.any():
                free = np.setdiff1d(np.iinfo(np.int64).min + np.arange(len(ids)), ids[~unread])
                ids[unread] = free[: unread.sum()]
            return IntIds.build(ids)
        data = np.ascontiguousarray(nodes["id"]).view(np.uint8).reshape(len(nodes), self.manifest.id_bytes)
        size = nodes["id_size"].astype(np.int64)
        if unread.any():
            longest = self.manifest.id_bytes + 20  # longer than any, and room for a number
            names = [b"%0*d" % (longest, place) for place in np.flatnonzero(unread).tolist()]
            data = np.pad(data, ((0, 0), (0, 20)))
            data[unread] = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, longest)
            size[unread] = longest
        offsets = np.concatenate([[0], np.cumsum(size)])
        return StrIds.of_utf8(data[np.arange(data.shape[1]) < size[:, None]], offsets)

    def _assembled(self, index: NDArray[np.int64], rows: _Rows) -> Window:
        manifest = self.manifest
        nodes, no_node = self._read_nodes(index)
        ids = self._ids(nodes, no_node)
        indptr, edges = rows.of(index)
        x = None if manifest.feature_dtype is None else np.array(nodes["x"], dtype=manifest.feature_dtype)
        snapshot = Snapshot(
            Path(manifest.graph.name),
            msgspec.structs.replace(
                manifest.graph,
                seq=self.reached.seq,
                num_nodes=len(index),
                num_edges=len(edges),
                id_kind=ids.kind,
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
        return Window(snapshot, index, no_node, rows.is_unread(index))

    def _fetch(self, key: Any, partition: NDArray[np.int64], fields: Sequence[bytes]) -> list[bytes | None]:
        """Fields of hashes, of which each partition is asked once, all at once; in the order of `fields`.

        None where there is no such field, `_UNREAD` where that cannot be said now.
        """
        if not len(fields):
            return []
        order = np.argsort(partition, kind="stable")
        parts = np.flatnonzero(np.diff(partition[order], prepend=-1)).tolist()
        commands: list[Command] = []
        for start, stop in zip(parts, [*parts[1:], len(order)], strict=True):
            asked = [fields[place] for place in order[start:stop].tolist()]
            commands.append(("HMGET", key(int(partition[order[start]])), *asked))
        found: list[bytes | None] = [None] * len(fields)
        # Until something changes, whatever a replica has is as it is.
        is_as_pushed = self.reached.seq == self.manifest.graph.seq
        answers = self.shards.ask_each(commands, replicas=is_as_pushed)
        for number, answer in enumerate(answers):
            if isinstance(answer, GraphUnavailable):
                self.why_unread = answer.message
                answers[number] = [_UNREAD] * (len(commands[number]) - 2)
            elif isinstance(answer, Replicated) and None in answer:
                self.why_unread = _BEHIND
                answers[number] = [_UNREAD if value is None else value for value in answer]
        for place, value in zip(order.tolist(), chain.from_iterable(answers), strict=True):
            found[place] = value
        return found


class _Rows:
    """The rows that were read, and how far each is needed."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._index = np.empty(0, dtype=np.int64)  # in the order in which they came
        self._start = np.zeros(1, dtype=np.int64)
        self._needed = np.empty(0, dtype=np.int64)
        self._edges = np.empty(0, dtype=dtype)
        self._unread = np.empty(0, dtype=np.int64)

    def missing(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of which there is no row."""
        return np.setdiff1d(index, self._index, assume_unique=True)

    def add(self, index: NDArray[np.int64], rows: NDArray[Any], unread: NDArray[np.bool_]) -> None:
        """Note the rows of nodes that are missing, as `_row_dtype` has them, and which are unread."""
        self._unread = np.concatenate([self._unread, index[unread]])
        self._index = np.concatenate([self._index, index])
        self._start = np.concatenate([self._start, self._start[-1] + np.cumsum(rows["count"])])
        self._needed = np.concatenate([self._needed, np.zeros(len(index), dtype=np.int64)])
        self._edges = np.concatenate([self._edges, rows["edges"][_is_edge(rows)]])

    def expand(self, index: NDArray[np.int64], fanout: int) -> NDArray[np.int64]:
        """The sources of the first edges of nodes that have rows."""
        place = self._places(index)
        count = np.minimum(self._start[place + 1] - self._start[place], fanout)
        self._needed[place] = np.maximum(self._needed[place], count)
        return self._edges["source"][positions(self._start[place], count)].astype(np.int64)

    def of(self, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Offsets int64 [len(index) + 1], and the edges that are needed, for nodes that are ascending."""
        count = np.zeros(len(index), dtype=np.int64)
        start = np.zeros(len(index), dtype=np.int64)
        at = np.searchsorted(index, self._index)
        count[at], start[at] = self._needed, self._start[:-1]
        indptr = np.zeros(len(index) + 1, dtype=np.int64)
        np.cumsum(count, out=indptr[1:])
        return _frozen(indptr), self._edges[positions(start, count)]

    def is_unread(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool [len(index)]: which rows should be there, and are not."""
        unread = _none_of(index)
        unread[np.searchsorted(index, self._unread)] = True
        return unread

    def _places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(self._index)
        return order[np.searchsorted(self._index, index, sorter=order)]


def _row_dtype(manifest: ClusterManifest, most: int) -> np.dtype[Any]:
    """Of the first edges of a node, up to so many."""
    return np.dtype([("count", "<i8"), ("edges", manifest.edge_dtype, (most,))])


def _is_edge(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Bool [num_rows, most]: the places that hold edges."""
    is_edge: NDArray[np.bool_] = np.arange(rows["edges"].shape[1]) < rows["count"][:, None]
    return is_edge


def _none_of(index: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.zeros(len(index), dtype=np.bool_)


def _keep(
    table: HotTable, index: NDArray[np.int64], records: NDArray[Any], unread: NDArray[np.bool_]
) -> None:
    if unread.any():
        index, records = index[~unread], records[~unread]
    table.keep(index, records)


def _fields(index: NDArray[np.int64]) -> list[bytes]:
    return [b"%d" % node for node in index.tolist()]


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """As what is mapped: kernels are compiled once for these types."""
    array.flags.writeable = False
    return array
