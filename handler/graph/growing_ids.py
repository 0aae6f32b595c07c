"""Indices for node ids that come bit by bit, when nobody knows yet how many there are.

The look-up is that of `ids`: open addressing in slots that are at most half full. Ids and slots double when
they are full, so every id is moved a few times at most and there is no Python object per id.

To look up a string takes three reads from memory, each of which says where the next is. `_fetch` does them
for many strings at once, so that the reads of one do not wait for those of another: that more than doubles
the speed once ids do not fit into the processor's cache.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from handler.graph.growing_id_kernels import add_ints, add_strs, gather_strs, look_up_strs
from handler.graph.id_kernels import find_ints, insert_ints, insert_strs
from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds, _free_slots

_FIRST_IDS = 1 << 10
_FIRST_BYTES = 1 << 14
_Array = TypeVar("_Array", bound=NDArray[Any])


class GrowingIntIds:
    """Distinct 64-bit integers, numbered in the order in which they first came."""

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        return self._num_ids

    def _clear(self) -> None:
        self._ids = np.empty(_FIRST_IDS, dtype=np.int64)
        self._slots = _free_slots(_FIRST_IDS)
        self._num_ids = 0

    @property
    def ids(self) -> NDArray[np.int64]:
        """int64 [len(self)], by index; a view that holds until the next `add`."""
        return self._ids[: self._num_ids]

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [len(ids)]: the index of each id; one that is new gets the next."""
        index = np.empty(len(ids), dtype=np.int64)
        done = 0
        while True:
            done, self._num_ids = add_ints(ids, done, self._ids, self._num_ids, self._slots, index)
            if done == len(ids):
                return index
            self._grow()

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [len(ids)]: the index of each id, -1 for one that never came."""
        return find_ints(self.ids, self._slots, ids)

    def drop_last(self) -> None:
        """Forget the id that came last."""
        self._num_ids -= 1
        # Nothing was put into a slot after it, so that the slot is free again.
        self._slots[self._slots == self._num_ids] = -1

    def finish(self, order: NDArray[np.int64] | None = None) -> NodeIds:
        """The ids as a graph's; this object is empty afterwards.

        Args:
            order: int64 [len(self)], the index that each node had so far; without it all keep theirs.
        """
        ids = self.ids.copy() if order is None else self.ids[order]
        self._clear()  # drops the slots before others are made
        if np.array_equal(ids, np.arange(len(ids))):
            return RangeIds(len(ids))
        return IntIds.build(ids)

    def _grow(self) -> None:
        self._slots = _free_slots(0)  # dropped before larger ones are made
        self._ids = _doubled(self._ids, self._num_ids, 0)
        self._slots = _free_slots(len(self._ids))
        insert_ints(self.ids, self._slots)


class GrowingStrIds:
    """Distinct strings, numbered in the order in which they first came.

    Strings come and go as UTF-8: `data` uint8 [num_bytes] with `offsets` int64 [num_strings + 1], which need
    not start at 0, as Arrow has them.
    """

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        return self._num_ids

    def _clear(self) -> None:
        self._data = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self._offsets = np.zeros(_FIRST_IDS + 1, dtype=np.int64)
        self._slots = _free_slots(_FIRST_IDS)
        self._num_ids = 0

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8 [num_bytes], the ids' UTF-8 by index; a view that holds until the next `add`."""
        return self._data[: self._offsets[self._num_ids]]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [len(self) + 1], where each id starts in `data`; a view that holds until the next `add`."""
        return self._offsets[: self._num_ids + 1]

    def add(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [len(offsets) - 1]: the index of each id; one that is new gets the next."""
        index = np.empty(len(offsets) - 1, dtype=np.int64)
        done = 0
        while True:
            done, self._num_ids = add_strs(
                data, offsets, done, self._data, self._offsets, self._num_ids, self._slots, index
            )
            if done == len(index):
                return index
            self._grow(int(offsets[done + 1] - offsets[done]))

    def find(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [len(offsets) - 1]: the index of each id, -1 for one that never came."""
        return look_up_strs(self._data, self._offsets, self._slots, data, offsets)

    def drop_last(self) -> None:
        """Forget the id that came last."""
        self._num_ids -= 1
        # Nothing was put into a slot after it, so that the slot is free again.
        self._slots[self._slots == self._num_ids] = -1

    def finish(self, order: NDArray[np.int64] | None = None) -> NodeIds:
        """The ids as a graph's; this object is empty afterwards.

        Args:
            order: int64 [len(self)], the index that each node had so far; without it all keep theirs.
        """
        if order is None:
            data, offsets = self.data.copy(), self.offsets.copy()
        else:
            offsets = np.zeros(len(order) + 1, dtype=np.int64)
            np.cumsum(np.diff(self.offsets)[order], out=offsets[1:])
            data = gather_strs(self._data, self._offsets, order, offsets)
        self._clear()  # drops the slots before others are made
        return StrIds.of_utf8(data, offsets)

    def _grow(self, next_bytes: int) -> None:
        """Make room for more ids, or for the bytes of the next one, whichever lacks."""
        used = int(self._offsets[self._num_ids])
        if used + next_bytes > len(self._data):
            self._data = _doubled(self._data, used, next_bytes)
        if self._num_ids + 1 == len(self._offsets):
            self._slots = _free_slots(0)  # dropped before larger ones are made
            self._offsets = _doubled(self._offsets, len(self._offsets), 0)
            self._slots = _free_slots(len(self._offsets))
            insert_strs(self._data, self.offsets, self._slots)


def _doubled(values: _Array, used: int, more: int) -> _Array:
    larger: _Array = np.empty_like(values, shape=max(2 * len(values), used + more))
    larger[:used] = values[:used]
    return larger
