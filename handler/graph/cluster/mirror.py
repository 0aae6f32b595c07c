"""Brings what changes in a graph to the cluster that it was pushed to."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import LogGap
from handler.graph.cluster.layout import ClusterManifest, Keys, Reached
from handler.graph.cluster.packing import Hashes, pack_nodes, pack_rows
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.versions import current_version
from handler.graph.fanout import FanoutPlan
from handler.graph.follower import Follower
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import decode_mutations
from handler.graph.overlay_arrays import take_edges

_MOST_CHANGES = 100_000  # that are kept for readers; who is further behind forgets all that it keeps
_LOST_S = 60.0  # longer ago replicas have what was written
_LOOK_S = 1.0
_EDGES_AT_ONCE = 1 << 20
_NODES_AT_ONCE = 1 << 12


class Mirror:
    """Follows the log of a graph, and writes whatever it changes to a cluster.

    What it writes is how rows and features are then, so that to write it again, after whatever was cut short,
    changes nothing: each mutation counts once. A replica may lack the last writes when it takes over, so
    after a failover those of the last minute are written again.

    Args:
        follower: of the graph, read in the order of the cluster.
        manifest: of the version in the cluster.

    Raises:
        LogGap: the log begins after what the cluster has: the graph is to be pushed again.
    """

    def __init__(
        self, follower: Follower[LiveGraph], shards: Shards, keys: Keys, manifest: ClusterManifest
    ) -> None:
        self._follower = follower
        self._shards = shards
        self._keys = keys
        self._manifest = manifest
        self._reader = f"{socket.gethostname()}-{os.getpid()}-cluster"
        self.reached = reached(shards, keys, manifest)
        #: Where the cluster was, and when; the first is a minute ago, or the begin.
        self._before: deque[tuple[float, int]] = deque([(time.monotonic(), self.reached.seq)])
        self._masters = shards.masters()
        self._looked_s = time.monotonic()
        follower.log.hold(self._reader, self.reached.seq)
        first_seq = follower.log.first_seq()
        if first_seq > self.reached.seq + 1:
            follower.log.release(self._reader)
            raise LogGap(self.reached.seq, first_seq)

    def step(self) -> int:
        """Bring over all that the log has; the number of mutations.

        Raises:
            GraphUnavailable: the cluster cannot be written; the next step begins where this one did.
            LogError: the log cannot be read.
        """
        before = self.reached.seq
        again = self._has_failed_over()
        if self._follower.log.last_seq() == before and not again:
            return 0
        begin = self._before[0][1] if again else before
        with self._follower.at_the_end() as graph:
            if graph.seq == begin:
                return 0
            rows, nodes = self._touched(graph, begin)
            self._write(graph, rows, nodes)
            found = Reached(seq=graph.seq, num_nodes=graph.num_nodes)
        changed = np.union1d(rows, nodes).astype("<i8").tobytes()
        # In this order: what a change has made stale is known before the change counts.
        self._shards.ask(
            [("XADD", self._keys.changes, "MAXLEN", "~", _MOST_CHANGES, "*", "after", begin,
              "seq", found.seq, "num_nodes", found.num_nodes, "nodes", changed)]
        )  # fmt: skip
        self._shards.ask([("SET", self._keys.seq, msgspec.json.encode(found))])
        self.reached = found
        now = time.monotonic()
        self._before.append((now, found.seq))
        while len(self._before) > 1 and self._before[1][0] < now - _LOST_S:
            self._before.popleft()
        self._follower.log.hold(self._reader, self._before[0][1])
        if again:
            self._masters = self._shards.masters()
        return found.seq - before

    def close(self) -> None:
        self._follower.log.release(self._reader)

    def _has_failed_over(self) -> bool:
        """Whether there are other masters than when all was written; looked at once a second."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now
        return self._shards.masters() != self._masters

    def _touched(self, graph: LiveGraph, seq: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The nodes whose rows changed since a mutation, and those that are new or have other features."""
        rows: list[NDArray[np.integer]] = []
        nodes: list[NDArray[np.integer]] = []
        features = graph.features
        while seq < graph.seq:
            for record in self._follower.log.read(seq):
                if record.last_seq > graph.seq:
                    break
                found = decode_mutations(
                    record.data, graph.edge_fields, 0 if features is None else features.shape[1]
                )
                new = np.arange(found.first_node, found.first_node + len(found.node_ids))
                nodes += [new, found.featured]
                rows += [new, found.added.target, found.removed.target]
                if graph.manifest.rules.undirected:
                    rows += [found.added.source, found.removed.source]
                seq = record.last_seq
        touched = (np.unique(np.concatenate(each)).astype(np.int64) for each in (rows, nodes))
        return next(touched), next(touched)

    def _write(self, graph: LiveGraph, rows: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
        """Nodes first: no edge ever leads to one that is not there."""
        for start in range(0, len(nodes), _NODES_AT_ONCE):
            part = nodes[start : start + _NODES_AT_ONCE]
            hashes: Hashes = defaultdict(dict)
            packed = np.zeros(len(part), dtype=self._manifest.node_dtype)
            packed["created"] = [graph.created_at(node) for node in part.tolist()]
            if graph.features is not None:
                packed["seq"] = graph.features.change_numbers_of(part)
                packed["x"] = graph.features.gather(part)
            pack_nodes(self._manifest, self._keys, part, packed, graph.ids.id_of(part), hashes)
            self._shards.put(hashes, [])
        for part in _groups(rows, _degrees(graph, rows)):
            hashes = defaultdict(dict)
            ptr, edges = self._rows(graph, part)
            strings = list(pack_rows(self._manifest, self._keys, part, ptr, edges, graph.seq, hashes))
            self._shards.put(hashes, strings)

    def _rows(self, graph: LiveGraph, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The whole rows of nodes: offsets, and edges in sampling order."""
        sampler, adjacency = graph.sampler(), graph.snapshot.adjacency
        widest = max(1, int(_degrees(graph, index).max(initial=0)))
        trees = sampler.trees(index, FanoutPlan.of((widest,)))
        edges = np.empty(trees.num_edges, dtype=self._manifest.edge_dtype)
        edges["source"] = np.delete(trees.node, trees.ptr[:-1])
        if self._manifest.weight:
            edges["weight"] = sampler.edge_weight(trees)
        if self._manifest.attr_dim:
            edges["attr"] = sampler.edge_attr(trees)
        if adjacency.edge_time is not None:
            added = graph.overlay.arrays.edges["time"][1:]
            edges["time"] = take_edges(adjacency.edge_time, added, trees.edge)
        return trees.ptr - np.arange(len(trees.ptr)), edges


def matching(shards: Shards, name: str, wanted: ClusterManifest) -> tuple[str, ClusterManifest] | None:
    """The version that counts under a name, if it is of the same graph and laid out as wanted."""
    current = current_version(shards, name)
    if current is None:
        return None
    _, found = current
    same = found.graph.ordering == wanted.graph.ordering and found.graph.rules == wanted.graph.rules
    alike = msgspec.structs.replace(wanted, graph=found.graph, id_bytes=found.id_bytes)
    return current if same and found == alike and found.graph_id else None


def reached(shards: Shards, keys: Keys, manifest: ClusterManifest) -> Reached:
    """How far a version in a cluster is."""
    data = shards.get(keys.seq)
    if data is None:
        return Reached(seq=manifest.graph.seq, num_nodes=manifest.graph.num_nodes)
    return msgspec.json.decode(data, type=Reached)


def _degrees(graph: LiveGraph, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Edges of rows, or somewhat more where some were removed."""
    indptr, arrays = graph.snapshot.adjacency.indptr, graph.overlay.arrays
    known = np.minimum(index, graph.snapshot.num_nodes - 1)
    degree = np.where(index < graph.snapshot.num_nodes, indptr[known + 1] - indptr[known], 0)
    row = arrays.row_of[index]
    found: NDArray[np.int64] = degree + np.where(row > 0, arrays.rows["added"][row], 0)
    return found


def _groups(index: NDArray[np.int64], degree: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Nodes with about as many edges together, and not too many in all."""
    order = np.argsort(degree, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < min(len(order), start + _NODES_AT_ONCE):
            if (int(degree[order[end]]) + 1) * (end - start + 1) > _EDGES_AT_ONCE:
                break
            end += 1
        yield index[order[start:end]]
        start = end
