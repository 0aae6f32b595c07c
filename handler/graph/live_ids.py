"""The ids of a snapshot's nodes, and of those that came later."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.growing_ids import GrowingIntIds, GrowingStrIds
from handler.graph.id_kernels import hash_ints, hash_strs
from handler.graph.ids import (
    IdKind,
    IntIds,
    NodeId,
    NodeIds,
    RangeIds,
    StrIds,
    as_utf8,
)


class LiveIds:
    """Ids to which more are added; indices go on where those of the snapshot end.

    Args:
        base: of the snapshot; stays as it is.
    """

    def __init__(self, base: NodeIds) -> None:
        self.base = base
        self.id_type = base.id_type
        self.kind: IdKind = base.kind
        self._ints = GrowingIntIds()
        self._strs = GrowingStrIds()
        _load_kernels(self.kind)

    def __len__(self) -> int:
        return len(self.base) + self.num_new

    @property
    def num_new(self) -> int:
        """Nodes that the snapshot does not have."""
        return len(self._strs) if self.id_type is str else len(self._ints)

    def index_of(self, node_ids: Sequence[NodeId]) -> NDArray[np.int64]:
        """See `NodeIds`."""
        index = self.base.index_of(node_ids)
        if self.num_new:
            unknown = np.flatnonzero(index < 0)
            if len(unknown):
                found = self._find([node_ids[place] for place in unknown.tolist()])
                index[unknown] = np.where(found < 0, -1, found + len(self.base))
        return index

    def id_of(self, index: NDArray[np.int64]) -> list[NodeId]:
        """See `NodeIds`."""
        if not self.num_new:
            return self.base.id_of(index)
        new = index >= len(self.base)
        if not new.any():
            return self.base.id_of(index)
        ids: list[NodeId] = [0] * len(index)
        for place, node_id in zip(np.flatnonzero(~new).tolist(), self.base.id_of(index[~new]), strict=True):
            ids[place] = node_id
        later = self._id_of_new(index[new] - len(self.base))
        for place, node_id in zip(np.flatnonzero(new).tolist(), later, strict=True):
            ids[place] = node_id
        return ids

    def add(self, node_ids: Sequence[NodeId]) -> None:
        """Add ids that are not there, in this order."""
        before = self.num_new
        if self.id_type is str:
            self._strs.add(*as_utf8([str(node_id) for node_id in node_ids]))
        else:
            self._ints.add(np.array(node_ids, dtype=np.int64))
        if self.num_new != before + len(node_ids):
            raise AssertionError("a node was added that is there")  # the log is checked before it is written

    def new_hashes(self, first: int) -> NDArray[np.uint64]:
        """uint64 [num_new - first]: hashes of the new nodes from number `first` on."""
        if self.id_type is str:
            return hash_strs(self._strs.data, self._strs.offsets[first:])
        return hash_ints(self._ints.ids[first:])

    def new_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
        """The new ids as integers, or as UTF-8 and its offsets; views that hold until the next `add`."""
        return self._ints.ids, self._strs.data, self._strs.offsets

    def drop_last(self) -> None:
        """Take back the node that was added last."""
        (self._strs if self.id_type is str else self._ints).drop_last()

    def merged(self) -> NodeIds:
        """All ids, as a snapshot stores them; a copy."""
        if not self.num_new:
            return self.base
        arrays = self.base.arrays()
        if self.id_type is str:
            data, offsets = arrays["id_bytes"], arrays["id_offsets"]
            later = offsets[-1] + self._strs.offsets[1:]
            return StrIds.of_utf8(np.concatenate([data, self._strs.data]), np.concatenate([offsets, later]))
        ints = arrays.get("ids", np.arange(len(self.base)))
        ints = np.concatenate([ints, self._ints.ids])
        if self.kind == "range" and np.array_equal(ints, np.arange(len(ints))):
            return RangeIds(len(ints))
        return IntIds.build(ints)

    def _find(self, node_ids: Sequence[Any]) -> NDArray[np.int64]:
        if self.id_type is str:
            return self._strs.find(*as_utf8(node_ids))
        return self._ints.find(np.array(node_ids, dtype=np.int64))

    def _id_of_new(self, number: NDArray[np.int64]) -> list[NodeId]:
        if self.id_type is not str:
            return list(self._ints.ids[number].tolist())
        data, offsets = self._strs.data, self._strs.offsets
        return [data[offsets[i] : offsets[i + 1]].tobytes().decode() for i in number.tolist()]


@functools.cache
def _load_kernels(kind: IdKind) -> None:
    """Add and find some ids, so that the first new node does not wait for kernels to be compiled."""
    if kind == "str":
        strs = GrowingStrIds()
        strs.add(*as_utf8([str(number) for number in range(2000)]))  # so many that it grows
        strs.find(*as_utf8(["0"]))
        hash_strs(strs.data, strs.offsets)
    else:
        ints = GrowingIntIds()
        ints.add(np.arange(2000))
        ints.find(np.arange(1))
        hash_ints(ints.ids)
