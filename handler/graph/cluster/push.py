"""Pushes a snapshot into a cluster; what was interrupted goes on where it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.cluster.layout import MAX_ID_BYTES, MAX_NODES, ClusterManifest, Keys
from handler.graph.cluster.packing import Hashes, pack_nodes, pack_rows
from handler.graph.cluster.shards import Shards
from handler.graph.ordering import Strategy
from handler.graph.progress import SILENT, Progress
from handler.graph.snapshot import Snapshot

_NODES_AT_ONCE = 1 << 13
_EDGES_AT_ONCE = 1 << 18
_LEAST_ID_BYTES = 32  # so that new nodes may have somewhat longer ids


class _Progress(msgspec.Struct):
    """How far a push has come.

    Args:
        nodes: so many of the first are there.
    """

    manifest: ClusterManifest
    nodes: int


def push(
    snapshot: Snapshot,
    shards: Shards,
    name: str,
    *,
    graph_id: str = "",
    strategy: Strategy | None = None,
    partitions: int = 256,
    head: int = 32,
    progress: Progress = SILENT,
) -> ClusterManifest:
    """Write a snapshot to a cluster, and then let it be the one that counts; older ones of the name go.

    A push of the same that was interrupted goes on where it was.

    Args:
        name: of the graph in the cluster.
        graph_id: of the home that the snapshot is of.
        strategy: in whose order neighbours lie there; that of the snapshot's rows without it.
        partitions: see `ClusterManifest`.
        head: edges of each row that are read in one; at least a model's widest fan-out.

    Raises:
        GraphInputError: the snapshot has no such order, or more nodes than a cluster takes.
        GraphUnavailable: the cluster cannot be written; what is there stays, for the next push.
    """
    manifest = manifest_of(snapshot, graph_id, strategy, partitions, head)
    keys = Keys(name, graph_version(manifest))
    before, whole = shards.get(keys.manifest), msgspec.json.encode(manifest)
    if before != whole:
        if before is not None:
            shards.remove(keys.prefix)  # laid out otherwise
        _write(snapshot, manifest, shards, keys, progress)
        shards.ask([("SET", keys.manifest, whole), ("UNLINK", keys.push)])
    old = shards.get(Keys.current(name))
    version = graph_version(manifest)
    shards.ask([("SET", Keys.current(name), version)])
    if old is not None and old.decode() != version:
        shards.remove(Keys(name, old.decode()).prefix)
    return manifest


def graph_version(manifest: ClusterManifest) -> str:
    """What tells a snapshot, read in one order, from all others."""
    return f"{manifest.graph.snapshot_id}-{manifest.graph.ordering.strategy}"


def manifest_of(
    snapshot: Snapshot, graph_id: str, strategy: Strategy | None, partitions: int, head: int
) -> ClusterManifest:
    """What a push writes; arguments and errors as of `push`."""
    found = snapshot.manifest.orderings()
    ordering = snapshot.manifest.ordering if strategy is None else found.get(strategy)
    if ordering is None:
        raise GraphInputError(f"{snapshot.folder}: stores no ordering `{strategy}`, only {', '.join(found)}")
    if snapshot.manifest.rules.max_edge_age is not None:
        raise GraphInputError(
            f"{snapshot.folder}: edges of this graph expire, which those in a cluster cannot yet"
        )
    if snapshot.num_nodes > MAX_NODES:
        raise GraphInputError(
            f"{snapshot.folder}: has {snapshot.num_nodes} nodes, a cluster takes {MAX_NODES}"
        )
    fields = snapshot.edge_fields
    return ClusterManifest(
        partitions=partitions,
        head=head,
        graph=msgspec.structs.replace(snapshot.manifest, ordering=ordering, extra_orderings=(), arrays={}),
        graph_id=graph_id,
        weight=fields.weight,
        time=fields.time,
        attr_dim=fields.attr_dim,
        attr_dtype=fields.attr_dtype,
        feature_dtype=None if snapshot.features is None else str(snapshot.features.dtype),
        id_bytes=_longest_id(snapshot),
    )


def _longest_id(snapshot: Snapshot) -> int:
    if snapshot.ids.kind != "str":
        return 0
    longest = int(np.diff(snapshot.ids.arrays()["id_offsets"]).max(initial=0))
    if longest > MAX_ID_BYTES:
        raise GraphInputError(
            f"{snapshot.folder}: an id takes {longest} bytes, in a cluster it may take {MAX_ID_BYTES}"
        )
    return min(MAX_ID_BYTES, max(_LEAST_ID_BYTES, longest))


def _write(
    snapshot: Snapshot, manifest: ClusterManifest, shards: Shards, keys: Keys, progress: Progress
) -> None:
    done = 0
    before = shards.get(keys.push)
    if before is not None:
        found = msgspec.json.decode(before, type=_Progress)
        if found.manifest == manifest:
            done = found.nodes
        else:
            shards.remove(keys.prefix)
    with progress.bar("pushing nodes", snapshot.num_nodes, "nodes") as advance:
        advance(done)
        for first, last in _ranges(snapshot, done):
            hashes: Hashes = defaultdict(dict)
            index = np.arange(first, last)
            ptr = snapshot.adjacency.indptr[first : last + 1].astype(np.int64)
            edges = _edges(snapshot, manifest, first, last)
            strings = list(pack_rows(manifest, keys, index, ptr - ptr[0], edges, snapshot.seq, hashes))
            nodes = _nodes(snapshot, manifest, first, last)
            pack_nodes(manifest, keys, index, nodes, snapshot.ids.id_of(index), hashes)
            shards.put(hashes, strings)
            # Only now: what is written twice is the same.
            shards.ask([("SET", keys.push, msgspec.json.encode(_Progress(manifest, last)))])
            advance(last - first)


def _ranges(snapshot: Snapshot, done: int) -> Iterator[tuple[int, int]]:
    """Node ranges of few nodes and few edges, or of one node."""
    for first, last in snapshot.adjacency.ranges(_EDGES_AT_ONCE):
        for start in range(max(first, done), last, _NODES_AT_ONCE):
            yield start, min(start + _NODES_AT_ONCE, last)


def _edges(snapshot: Snapshot, manifest: ClusterManifest, first: int, last: int) -> NDArray[Any]:
    """The edges of some rows, in sampling order."""
    adjacency, strategy = snapshot.adjacency, manifest.graph.ordering.strategy
    start, stop = int(adjacency.indptr[first]), int(adjacency.indptr[last])
    place: Any = slice(start, stop)
    if strategy in adjacency.permutations:
        degree = np.diff(adjacency.indptr[first : last + 1])
        place = np.repeat(adjacency.indptr[first:last], degree) + adjacency.permutations[strategy][place]
    edges = np.empty(stop - start, dtype=manifest.edge_dtype)
    edges["source"] = adjacency.indices[place]
    for name, column in (
        ("weight", adjacency.edge_weight),
        ("time", adjacency.edge_time),
        ("attr", adjacency.edge_attr),
    ):
        if column is not None:
            edges[name] = column[place]
    return edges


def _nodes(snapshot: Snapshot, manifest: ClusterManifest, first: int, last: int) -> NDArray[Any]:
    nodes = np.zeros(last - first, dtype=manifest.node_dtype)
    if snapshot.feature_seq is not None:
        nodes["seq"] = snapshot.feature_seq[first:last]
    if snapshot.node_created is not None:
        nodes["created"] = snapshot.node_created[first:last]
    if snapshot.features is not None:
        nodes["x"] = snapshot.features.gather(np.arange(first, last))
    return nodes
