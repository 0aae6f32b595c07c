"""How a graph lies in a Redis Cluster.

    NAME:current                 the version that counts: a snapshot, read in one order; its keys begin with
                                 NAME:VERSION, here G
    G:manifest                   JSON, written when everything else is there
    G:push                       JSON, how far a push has come
    G:seq                        JSON, which mutations count, if any came since
    G:changes                    stream, which nodes' rows or features each of them changed
    G:{p}:nodes                  hash, by node index: by which mutation its features were set, when it came,
                                 these features, and its id
    G:{p}:rows                   hash, by node index: degree, and the first `head` edges in sampling order; of
                                 nodes without edges, too, so that what is lost is never taken for none
    G:{p}:row:INDEX              string, all edges of a node that has more than `head`; a prefix is a sample
    G:{p}:ids                    hash, by node id: its node index; only for ids that are no indices

A partition is all that has one hash tag, so it lies in one slot of the cluster, and one command asks for many
of its nodes. A node is in partition `index % partitions`, an id in `hash % partitions`.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import xxhash

from handler.graph.ids import NodeId
from handler.graph.manifest import Count, Manifest

FORMAT_VERSION = 1
MAX_NODES = 2**32
MAX_ID_BYTES = 1024

#: In front of a row's edges.
ROW_HEADER = np.dtype([("seq", "<i8"), ("degree", "<u4")])


class ClusterManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a graph in a cluster is.

    Args:
        partitions: number of them; more than there will ever be masters.
        head: edges of each row that lie in its partition's hash.
        graph: of the snapshot, without its files.
        graph_id: of the graph whose log may be followed; empty for a bare snapshot.
        feature_dtype: of features; none without any.
        id_bytes: that the longest id takes, where ids are strings.
    """

    format_version: int = FORMAT_VERSION
    partitions: Annotated[int, msgspec.Meta(ge=1, le=16384)]
    head: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    graph: Manifest
    graph_id: str = ""
    weight: bool
    time: bool
    attr_dim: Count
    attr_dtype: str
    feature_dtype: str | None
    id_bytes: Count = 0

    @property
    def edge_dtype(self) -> np.dtype[Any]:
        """Of one edge in a row."""
        columns: list[Any] = [("source", "<u4")]
        if self.weight:
            columns.append(("weight", "<f4"))
        if self.time:
            columns.append(("time", "<f8"))
        if self.attr_dim:
            columns.append(("attr", np.dtype(self.attr_dtype).newbyteorder("<"), (self.attr_dim,)))
        return np.dtype(columns)

    @property
    def node_dtype(self) -> np.dtype[Any]:
        """Of one node."""
        columns: list[Any] = [("seq", "<i8"), ("created", "<f8")]
        if self.feature_dtype is not None:
            dtype = np.dtype(self.feature_dtype).newbyteorder("<")
            columns.append(("x", dtype, (self.graph.feature_dim,)))
        if self.graph.id_kind != "str":
            columns.append(("id", "<i8"))
        else:
            columns += [("id_size", "<u2"), ("id", f"V{self.id_bytes}")]
        return np.dtype(columns)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """How far a graph in a cluster is.

    Args:
        seq: the latest mutation that counts.
        num_nodes: nodes of the graph then.
    """

    seq: Count
    num_nodes: Count


def read_place(place: str) -> tuple[str, str]:
    """The server's URL and the graph's name of a place such as redis+cluster://HOST:6379/NAME."""
    parts = urlsplit(place)
    url = parts._replace(scheme=parts.scheme.removesuffix("+cluster"), path="").geturl()
    return url, parts.path.strip("/") or "graph"


class Keys:
    """The names of a graph's keys.

    Args:
        name: of the graph.
        version: tells a snapshot, read in one order, from all others.
    """

    def __init__(self, name: str, version: str) -> None:
        self._graph = f"{name}:{version}"

    @staticmethod
    def current(name: str) -> str:
        return f"{name}:current"

    @property
    def prefix(self) -> str:
        """What all of them begin with."""
        return f"{self._graph}:"

    @property
    def manifest(self) -> str:
        return f"{self._graph}:manifest"

    @property
    def push(self) -> str:
        return f"{self._graph}:push"

    @property
    def seq(self) -> str:
        return f"{self._graph}:seq"

    @property
    def changes(self) -> str:
        return f"{self._graph}:changes"

    def nodes(self, partition: int) -> str:
        return f"{self._graph}:{{{partition}}}:nodes"

    def rows(self, partition: int) -> str:
        return f"{self._graph}:{{{partition}}}:rows"

    def row(self, partition: int, index: int) -> str:
        return f"{self._graph}:{{{partition}}}:row:{index}"

    def ids(self, partition: int) -> str:
        return f"{self._graph}:{{{partition}}}:ids"


def id_bytes(node_id: NodeId) -> bytes:
    """An id as it lies in a cluster."""
    return node_id.encode() if isinstance(node_id, str) else b"%d" % node_id


def id_partition(name: bytes, partitions: int) -> int:
    """Where an id lies."""
    return int(xxhash.xxh3_64_intdigest(name) % partitions)
