"""What changes a graph, as arrays, and the bytes in which the log keeps it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from handler.errors import LogCorrupt
from handler.graph.edges import EdgeBlock, EdgeFields

_FORMAT_VERSION = 1


class Mutations(msgspec.Struct, frozen=True, kw_only=True):
    """Some mutations of one graph, in the order in which they are applied: nodes, features, edges that go,
    edges that come.

    Nodes are named by index: a snapshot's nodes keep theirs for ever, and each new one gets the next.

    Args:
        created: when they were accepted, in seconds since 1970.
        first_node: the index that the first new node gets.
        node_ids: of the new nodes.
        featured: int64 [num_featured], nodes whose features are set; the last one counts.
        features: float32 [num_featured, feature_dim].
        removed: ends, int64, of edges that go, and which of those with the same ends: a time, or NaN for all.
        added: edges that come, with all that the graph knows of edges.
    """

    created: float
    first_node: int
    node_ids: list[int | str]
    featured: NDArray[np.int64]
    features: NDArray[np.float32]
    removed: EdgeBlock
    added: EdgeBlock

    def __len__(self) -> int:
        return len(self.node_ids) + len(self.featured) + len(self.removed) + len(self.added)


def split_mutations(
    mutations: Mutations, max_mutations: int = 1024, max_bytes: int = 1 << 20
) -> list[Mutations]:
    """The same mutations in parts that can be applied one after another, each in a short time; none if there
    are none.
    """
    width = max(1, mutations.features.shape[1]) * mutations.features.itemsize
    num_rows = max(1, min(max_mutations, max_bytes // width))
    attr = mutations.added.attr
    num_edges = max_mutations
    if attr is not None:
        num_edges = max(1, min(max_mutations, max_bytes // (4 * attr.shape[1])))
    if len(mutations) <= min(num_rows, num_edges):
        return [mutations] if len(mutations) else []
    nothing = structs.replace(
        mutations,
        first_node=mutations.first_node + len(mutations.node_ids),
        node_ids=[],
        featured=mutations.featured[:0],
        features=mutations.features[:0],
        removed=mutations.removed.take(slice(0)),
        added=mutations.added.take(slice(0)),
    )
    parts = [
        structs.replace(
            nothing, first_node=mutations.first_node + start, node_ids=mutations.node_ids[start:end]
        )
        for start, end in _pieces(len(mutations.node_ids), max_mutations)
    ]
    for start, end in _pieces(len(mutations.featured), num_rows):
        rows = slice(start, end)
        parts.append(
            structs.replace(nothing, featured=mutations.featured[rows], features=mutations.features[rows])
        )
    for start, end in _pieces(len(mutations.removed), max_mutations):
        parts.append(structs.replace(nothing, removed=mutations.removed.take(slice(start, end))))
    for start, end in _pieces(len(mutations.added), num_edges):
        parts.append(structs.replace(nothing, added=mutations.added.take(slice(start, end))))
    return parts


def _pieces(count: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, count)) for start in range(0, count, size)]


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """The stored form: arrays as bytes, little-endian."""

    version: int
    created: float
    first_node: int
    node_ids: list[int | str]
    featured: bytes
    features: bytes
    removed: tuple[bytes, bytes, bytes]
    added: tuple[bytes, bytes, bytes, bytes, bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


def encode_mutations(mutations: Mutations) -> bytes:
    """The bytes of a record."""
    removed, added = mutations.removed, mutations.added
    return _encoder.encode(
        _Stored(
            _FORMAT_VERSION,
            mutations.created,
            mutations.first_node,
            mutations.node_ids,
            _as_bytes(mutations.featured, "<i8"),
            _as_bytes(mutations.features, "<f4"),
            (
                _as_bytes(removed.source, "<i8"),
                _as_bytes(removed.target, "<i8"),
                _as_bytes(removed.time, "<f8"),
            ),
            (
                _as_bytes(added.source, "<i8"),
                _as_bytes(added.target, "<i8"),
                _as_bytes(added.weight, "<f4"),
                _as_bytes(added.time, "<f8"),
                _as_bytes(added.attr, "<f4"),
            ),
        )
    )


def decode_mutations(data: bytes, fields: EdgeFields, feature_dim: int) -> Mutations:
    """Read a record of a graph with such edges and features.

    Raises:
        LogCorrupt: it is none.
    """
    try:
        stored = _decoder.decode(data)
        if stored.version != _FORMAT_VERSION:
            raise LogCorrupt(
                "log", f"a record has format {stored.version}, this Hopserve reads {_FORMAT_VERSION}"
            )
        removed, added = stored.removed, stored.added
        featured = np.frombuffer(stored.featured, "<i8")
        source = np.frombuffer(added[0], "<i8")
        attr = (
            np.frombuffer(added[4], "<f4").reshape(len(source), fields.attr_dim) if fields.attr_dim else None
        )
        return Mutations(
            created=stored.created,
            first_node=stored.first_node,
            node_ids=stored.node_ids,
            featured=featured,
            features=np.frombuffer(stored.features, "<f4").reshape(len(featured), feature_dim),
            removed=EdgeBlock(
                np.frombuffer(removed[0], "<i8"),
                np.frombuffer(removed[1], "<i8"),
                None,
                np.frombuffer(removed[2], "<f8"),
            ),
            added=EdgeBlock(
                source,
                np.frombuffer(added[1], "<i8"),
                np.frombuffer(added[2], "<f4") if fields.weight else None,
                np.frombuffer(added[3], "<f8") if fields.time else None,
                attr,
            ),
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise LogCorrupt("log", f"a record cannot be read: {error}") from None


def _as_bytes(values: NDArray[Any] | None, dtype: str) -> bytes:
    return b"" if values is None else np.ascontiguousarray(values, dtype=dtype).tobytes()
