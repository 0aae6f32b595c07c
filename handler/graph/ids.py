"""Between node ids, as users know nodes, and node indices, as arrays do.

Look-up is by open addressing in one mapped array of slots, so it costs a cache miss or two at any size
and no Python object per node. A slot holds a node index, or -1 where it is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.id_kernels import find_ints, find_strs, hash_ints, hash_strs, insert_ints, insert_strs

NodeId = int | str
IdKind = Literal["range", "int", "str"]
# 0, 1 or 2 for the three kinds; int64 ids; their UTF-8 and its offsets. What a kind has not is empty.
HashParts = tuple[int, NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]

_NO_INTS = np.empty(0, dtype=np.int64)
_NO_BYTES = np.empty(0, dtype=np.uint8)


class NodeIds(Protocol):
    """The ids of a graph's nodes, of one type for the whole graph."""

    kind: ClassVar[IdKind]
    id_type: ClassVar[type[int | str]]

    def __len__(self) -> int: ...

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        """int64 [len(node_ids)]: node indices, -1 for an id that the graph does not have.

        All `node_ids` are of `id_type`, and integers fit 64 bits.
        """
        ...

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]:
        """The ids of the nodes at `index`."""
        ...

    def hashes(self) -> NDArray[np.uint64]:
        """uint64 [num_nodes]: one hash per node, of its id alone."""
        ...

    def ranks(self) -> NDArray[np.int64]:
        """int64 [num_nodes]: each node's place among ascending ids; empty where that is its index."""
        ...

    def hash_parts(self) -> HashParts:
        """What a kernel needs to compute the hash of any one node."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a snapshot stores of them, by array name."""
        ...


class RangeIds:
    """Ids that are the positions 0 to num_nodes - 1 themselves: nothing is stored."""

    kind: ClassVar[IdKind] = "range"
    id_type: ClassVar[type[int | str]] = int

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def __len__(self) -> int:
        return self._num_nodes

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        index = np.array(node_ids, dtype=np.int64)
        index[(index < 0) | (index >= self._num_nodes)] = -1
        return index

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]:
        return list(index.tolist())

    def hashes(self) -> NDArray[np.uint64]:
        return hash_ints(np.arange(self._num_nodes, dtype=np.int64))

    def ranks(self) -> NDArray[np.int64]:
        return _NO_INTS

    def hash_parts(self) -> HashParts:
        return 0, _NO_INTS, _NO_BYTES, _NO_INTS

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}


class IntIds:
    """Any distinct 64-bit integers."""

    kind: ClassVar[IdKind] = "int"
    id_type: ClassVar[type[int | str]] = int

    def __init__(self, ids: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self._ids = ids
        self._slots = slots

    @classmethod
    def build(cls, ids: NDArray[np.int64]) -> IntIds:
        """Index `ids`, int64 [num_nodes]; a repeated id is a `GraphInputError`."""
        slots = _free_slots(len(ids))
        repeated = insert_ints(ids, slots)
        if repeated >= 0:
            raise GraphInputError(f"node id {ids[repeated]} is given twice")
        return cls(ids, slots)

    def __len__(self) -> int:
        return len(self._ids)

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        return find_ints(self._ids, self._slots, np.array(node_ids, dtype=np.int64))

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]:
        return list(self._ids[index].tolist())

    def hashes(self) -> NDArray[np.uint64]:
        return hash_ints(self._ids)

    def ranks(self) -> NDArray[np.int64]:
        return _ranks_of(np.argsort(self._ids, kind="stable"))

    def hash_parts(self) -> HashParts:
        return 1, self._ids, _NO_BYTES, _NO_INTS

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"ids": self._ids, "id_slots": self._slots}


class StrIds:
    """Any distinct strings, kept as one buffer of UTF-8."""

    kind: ClassVar[IdKind] = "str"
    id_type: ClassVar[type[int | str]] = str

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self._data = data
        self._offsets = offsets
        self._slots = slots

    @classmethod
    def build(cls, ids: Sequence[str]) -> StrIds:
        """Index `ids`; a repeated id is a `GraphInputError`."""
        return cls.of_utf8(*as_utf8(ids))

    @classmethod
    def of_utf8(cls, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> StrIds:
        """Index ids given as the UTF-8 `data` with int64 [num_nodes + 1] `offsets`, which start at 0.

        Raises:
            GraphInputError: an id is repeated.
        """
        slots = _free_slots(len(offsets) - 1)
        repeated = insert_strs(data, offsets, slots)
        if repeated >= 0:
            node_id = data[offsets[repeated] : offsets[repeated + 1]].tobytes().decode()
            raise GraphInputError(f"node id {node_id!r} is given twice")
        return cls(data, offsets, slots)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        data, offsets = as_utf8([str(node_id) for node_id in node_ids])
        return find_strs(self._data, self._offsets, self._slots, data, offsets)

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]:
        data, offsets = self._data, self._offsets
        return [data[offsets[i] : offsets[i + 1]].tobytes().decode() for i in index.tolist()]

    def hashes(self) -> NDArray[np.uint64]:
        return hash_strs(self._data, self._offsets)

    def ranks(self) -> NDArray[np.int64]:
        data, offsets = self._data.tobytes(), self._offsets.tolist()
        texts = [data[start:end] for start, end in pairwise(offsets)]
        return _ranks_of(np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int64))

    def hash_parts(self) -> HashParts:
        return 2, _NO_INTS, self._data, self._offsets

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"id_bytes": self._data, "id_offsets": self._offsets, "id_slots": self._slots}


def _ranks_of(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of an order; empty where nothing moves."""
    places = np.arange(len(order))
    if np.array_equal(order, places):
        return _NO_INTS
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = places
    return ranks


def as_utf8(ids: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as UTF-8, uint8 [num_bytes], and its offsets, int64 [len(ids) + 1]."""
    encoded = [node_id.encode() for node_id in ids]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets


def _free_slots(num_nodes: int) -> NDArray[np.int64]:
    # A power of two at most half full: a look-up sees 1.5 slots on average.
    size = 1 << max(1, (2 * num_nodes - 1).bit_length())
    return np.full(size, -1, dtype=np.int64)
