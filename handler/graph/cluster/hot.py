"""What a worker keeps of the nodes that it reads most, so that it need not ask the cluster for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.cluster.hot_kernels import WAYS, find_places, take_places

_KEY_BYTES = 9


class HotTable:
    """Records of one size, by node index; in no more memory than it is given.

    Args:
        max_bytes: fewer than a few records take: nothing is kept.
    """

    def __init__(self, dtype: np.dtype[Any], max_bytes: int) -> None:
        sets = max_bytes // ((dtype.itemsize + _KEY_BYTES) * WAYS)
        self._keys = np.full(sets * WAYS, -1, dtype=np.int64)
        self._used = np.zeros(sets * WAYS, dtype=np.uint8)
        self._records = np.empty((sets * WAYS, dtype.itemsize), dtype=np.uint8)
        self.dtype = dtype

    def find(self, index: NDArray[np.int64], found: NDArray[Any]) -> NDArray[np.int64]:
        """Write to `found` the records that are here; returns the places in `index` of the others."""
        if not len(self._keys):
            return np.arange(len(index))
        place = np.empty(len(index), dtype=np.int64)
        find_places(self._keys, self._used, index, place)
        here = np.flatnonzero(place >= 0)
        _as_bytes(found)[here] = self._records[place[here]]
        return np.flatnonzero(place < 0)

    def keep(self, index: NDArray[np.int64], records: NDArray[Any]) -> None:
        """Keep records that were not here, as far as there are places for them.

        Args:
            index: int64 [num_records], no one twice.
        """
        if not len(self._keys):
            return
        place = np.empty(len(index), dtype=np.int64)
        take_places(self._keys, self._used, index, place)
        kept = np.flatnonzero(place >= 0)
        # A later one may have taken the place of an earlier one.
        kept = kept[self._keys[place[kept]] == index[kept]]
        self._records[place[kept]] = _as_bytes(records)[kept]

    def forget(self, index: NDArray[np.int64]) -> None:
        """Keep these no longer."""
        if len(self._keys):
            place = np.empty(len(index), dtype=np.int64)
            find_places(self._keys, self._used, index, place)
            self._keys[place[place >= 0]] = -1

    def clear(self) -> None:
        """Keep nothing."""
        self._keys[:] = -1


def _as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    """The same memory, which NumPy copies faster without knowing the fields."""
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
