"""Pushes a snapshot into a cluster; what was interrupted goes on where it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.cluster.layout import (
    MAX_ID_BYTES,
    MAX_NODES,
    ROW_HEADER,
    ClusterManifest,
    Keys,
    id_bytes,
    id_partition,
)
from handler.graph.cluster.shards import Shards
from handler.graph.edges import EdgeFields
from handler.graph.ordering import Strategy
from handler.graph.progress import SILENT, Progress
from handler.graph.snapshot import Snapshot

_NODES_AT_ONCE = 1 << 13
_EDGES_AT_ONCE = 1 << 18


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
    strategy: Strategy | None = None,
    partitions: int = 256,
    head: int = 32,
    progress: Progress = SILENT,
) -> ClusterManifest:
    """Write a snapshot to a cluster, and then let it be the one that counts; older ones of the name go.

    A push of the same that was interrupted goes on where it was.

    Args:
        name: of the graph in the cluster.
        strategy: in whose order neighbours lie there; that of the snapshot's rows without it.
        partitions: see `ClusterManifest`.
        head: edges of each row that are read in one; at least a model's widest fan-out.

    Raises:
        GraphInputError: the snapshot has no such order, or more nodes than a cluster takes.
        GraphUnavailable: the cluster cannot be written; what is there stays, for the next push.
    """
    manifest = _manifest(snapshot, strategy, partitions, head)
    keys = Keys(name, graph_version(manifest))
    before = shards.get(keys.manifest)
    if before is not None and msgspec.json.decode(before, type=ClusterManifest) != manifest:
        shards.remove(keys.prefix)  # laid out otherwise
        before = None
    if before is None:
        _write(snapshot, manifest, shards, keys, progress)
        shards.ask([("SET", keys.manifest, msgspec.json.encode(manifest)), ("UNLINK", keys.push)])
    old = shards.get(Keys.current(name))
    version = graph_version(manifest)
    shards.ask([("SET", Keys.current(name), version)])
    if old is not None and old.decode() != version:
        shards.remove(Keys(name, old.decode()).prefix)
    return manifest


def graph_version(manifest: ClusterManifest) -> str:
    """What tells a snapshot, read in one order, from all others."""
    return f"{manifest.graph.snapshot_id}-{manifest.graph.ordering.strategy}"


def _manifest(snapshot: Snapshot, strategy: Strategy | None, partitions: int, head: int) -> ClusterManifest:
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
    fields: EdgeFields = snapshot.edge_fields
    return ClusterManifest(
        partitions=partitions,
        head=head,
        graph=msgspec.structs.replace(snapshot.manifest, ordering=ordering, extra_orderings=(), arrays={}),
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
    return max(1, longest)


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
            hashes: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
            strings = list(_add_rows(snapshot, manifest, keys, first, last, hashes))
            _add_nodes(snapshot, manifest, keys, first, last, hashes)
            shards.put(hashes, strings)
            # Only now: what is written twice is the same.
            shards.ask([("SET", keys.push, msgspec.json.encode(_Progress(manifest, last)))])
            advance(last - first)


def _ranges(snapshot: Snapshot, done: int) -> Iterator[tuple[int, int]]:
    """Node ranges of few nodes and few edges, or of one node."""
    for first, last in snapshot.adjacency.ranges(_EDGES_AT_ONCE):
        for start in range(max(first, done), last, _NODES_AT_ONCE):
            yield start, min(start + _NODES_AT_ONCE, last)


def _add_rows(
    snapshot: Snapshot,
    manifest: ClusterManifest,
    keys: Keys,
    first: int,
    last: int,
    hashes: defaultdict[str, dict[bytes, bytes]],
) -> Iterator[tuple[str, bytes]]:
    """Add the heads of rows to `hashes`; gives whole rows that are longer."""
    start = snapshot.adjacency.indptr[first : last + 1].astype(np.int64)
    degree = np.diff(start)
    header = np.zeros(last - first, dtype=ROW_HEADER)
    header["degree"] = degree
    headers, size = header.tobytes(), ROW_HEADER.itemsize
    edges = _edges(snapshot, manifest, first, last).tobytes()
    width = manifest.edge_dtype.itemsize
    begin, end = ((start[each] - start[0]) * width for each in (slice(None, -1), slice(1, None)))
    for place in range(last - first):
        index, partition = first + place, (first + place) % manifest.partitions
        row = edges[begin[place] : end[place]]
        value = headers[place * size : (place + 1) * size] + row[: manifest.head * width]
        hashes[keys.rows(partition)][b"%d" % index] = value
        if degree[place] > manifest.head:
            yield keys.row(partition, index), row


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


def _add_nodes(
    snapshot: Snapshot,
    manifest: ClusterManifest,
    keys: Keys,
    first: int,
    last: int,
    hashes: defaultdict[str, dict[bytes, bytes]],
) -> None:
    nodes = np.zeros(last - first, dtype=manifest.node_dtype)
    if snapshot.feature_seq is not None:
        nodes["seq"] = snapshot.feature_seq[first:last]
    if snapshot.node_created is not None:
        nodes["created"] = snapshot.node_created[first:last]
    if snapshot.features is not None:
        nodes["x"] = snapshot.features.gather(np.arange(first, last))
    ids = snapshot.ids
    names: list[bytes] = []
    if ids.kind != "range":
        named = ids.id_of(np.arange(first, last))
        names = [id_bytes(node_id) for node_id in named]
        nodes["id"] = named if ids.kind == "int" else np.array(names, dtype=nodes.dtype["id"])
    if ids.kind == "str":
        nodes["id_size"] = [len(name) for name in names]
    data, size = nodes.tobytes(), nodes.dtype.itemsize
    for place, index in enumerate(range(first, last)):
        partition = index % manifest.partitions
        hashes[keys.nodes(partition)][b"%d" % index] = data[place * size : (place + 1) * size]
    for index, name in enumerate(names, first):
        hashes[keys.ids(id_partition(name, manifest.partitions))][name] = b"%d" % index
