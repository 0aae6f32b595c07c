"""Packs rows and nodes as they lie in a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.cluster.layout import ROW_HEADER, ClusterManifest, Keys, id_bytes, id_partition
from handler.graph.ids import NodeId

#: Fields to be written, by the key of their hash.
Hashes = defaultdict[str, dict[bytes, bytes]]


def pack_rows(
    manifest: ClusterManifest,
    keys: Keys,
    index: NDArray[np.int64],
    ptr: NDArray[np.int64],
    edges: NDArray[Any],
    seq: int,
    hashes: Hashes,
) -> Iterator[tuple[str, bytes]]:
    """Add the heads of whole rows to `hashes`; gives, with their keys, rows that are longer.

    Args:
        index: int64 [num_rows], whose they are.
        ptr: int64 [num_rows + 1], where the edges of each begin.
        edges: [num_edges] of `ClusterManifest.edge_dtype`, in sampling order.
        seq: the mutation up to which they are known to be so.
    """
    header = np.zeros(len(index), dtype=ROW_HEADER)
    header["degree"], header["seq"] = np.diff(ptr), seq
    headers, size = header.tobytes(), ROW_HEADER.itemsize
    data, width = edges.tobytes(), manifest.edge_dtype.itemsize
    offset = (ptr * width).tolist()
    for place, node in enumerate(index.tolist()):
        partition, row = node % manifest.partitions, data[offset[place] : offset[place + 1]]
        value = headers[place * size : (place + 1) * size] + row[: manifest.head * width]
        hashes[keys.rows(partition)][b"%d" % node] = value
        if len(row) > manifest.head * width:
            yield keys.row(partition, node), row


def pack_nodes(
    manifest: ClusterManifest,
    keys: Keys,
    index: NDArray[np.int64],
    nodes: NDArray[Any],
    ids: Sequence[NodeId],
    hashes: Hashes,
) -> None:
    """Add nodes, and where to find their ids, to `hashes`.

    Args:
        index: int64 [num_nodes].
        nodes: [num_nodes] of `ClusterManifest.node_dtype`, but for the ids.

    Raises:
        GraphInputError: an id is longer than those that were there when the graph was pushed allow for.
    """
    names = [id_bytes(node_id) for node_id in ids]
    if manifest.graph.id_kind == "str":
        if max(map(len, names), default=0) > manifest.id_bytes:
            raise GraphInputError(f"an id is longer than {manifest.id_bytes} bytes: push the graph again")
        nodes["id"] = np.array(names, dtype=nodes.dtype["id"])
        nodes["id_size"] = [len(name) for name in names]
    else:
        nodes["id"] = ids
    data, size = nodes.tobytes(), nodes.dtype.itemsize
    num_known = manifest.graph.num_nodes if manifest.graph.id_kind == "range" else 0
    for place, node in enumerate(index.tolist()):
        partition = node % manifest.partitions
        hashes[keys.nodes(partition)][b"%d" % node] = data[place * size : (place + 1) * size]
        if node >= num_known:
            name = names[place]
            hashes[keys.ids(id_partition(name, manifest.partitions))][name] = b"%d" % node
