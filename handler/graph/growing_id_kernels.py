"""The inner loops that number ids as they come, and look them up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import hash_bytes, mix64
from handler.graph.id_kernels import find_str
from handler.graph.kernels import compiled

_FETCHED = 256  # strings at once, whose bytes the processor's cache holds until they are looked up


@compiled
def add_ints(
    wanted: NDArray[np.int64],
    start: int,
    ids: NDArray[np.int64],
    num_ids: int,
    slots: NDArray[np.int64],
    index: NDArray[np.int64],
) -> tuple[int, int]:
    """Number `wanted[start:]` until the ids are full: how far it came, and how many ids there are."""
    mask = np.uint64(len(slots) - 1)
    for position in range(start, len(wanted)):
        slot = mix64(np.uint64(wanted[position])) & mask
        while slots[slot] >= 0 and ids[slots[slot]] != wanted[position]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            if num_ids == len(ids):
                return position, num_ids
            ids[num_ids] = wanted[position]
            slots[slot] = num_ids
            num_ids += 1
        index[position] = slots[slot]
    return len(wanted), num_ids


@compiled
def add_strs(
    wanted: NDArray[np.uint8],
    wanted_offsets: NDArray[np.int64],
    start: int,
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    num_ids: int,
    slots: NDArray[np.int64],
    index: NDArray[np.int64],
) -> tuple[int, int]:
    """Number the strings from `start` on until ids or bytes are full; see `add_ints`."""
    for position in range(start, len(index)):
        if position % _FETCHED == 0:
            _fetch(data, offsets, slots, wanted, wanted_offsets, position, index)
        begin, end = wanted_offsets[position], wanted_offsets[position + 1]
        slot = find_str(data, offsets, slots, wanted, begin, end)
        if slots[slot] < 0:
            used = offsets[num_ids]
            if num_ids + 1 == len(offsets) or used + end - begin > len(data):
                return position, num_ids
            for place in range(end - begin):
                data[used + place] = wanted[begin + place]
            slots[slot] = num_ids
            num_ids += 1
            offsets[num_ids] = used + end - begin
        index[position] = slots[slot]
    return len(index), num_ids


@compiled
def look_up_strs(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int64],
    wanted: NDArray[np.uint8],
    wanted_offsets: NDArray[np.int64],
) -> NDArray[np.int64]:
    index = np.empty(len(wanted_offsets) - 1, dtype=np.int64)
    for position in range(len(index)):
        if position % _FETCHED == 0:
            _fetch(data, offsets, slots, wanted, wanted_offsets, position, index)
        start, end = wanted_offsets[position], wanted_offsets[position + 1]
        index[position] = slots[find_str(data, offsets, slots, wanted, start, end)]
    return index


@compiled
def _fetch(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int64],
    wanted: NDArray[np.uint8],
    wanted_offsets: NDArray[np.int64],
    start: int,
    index: NDArray[np.int64],
) -> None:
    """Bring into the cache what the strings from `start` on are likely to be compared with.

    `index` is scratch here: a read whose result goes nowhere would be compiled away.
    """
    mask = np.uint64(len(slots) - 1)
    stop = min(start + _FETCHED, len(index))
    for position in range(start, stop):
        index[position] = hash_bytes(wanted, wanted_offsets[position], wanted_offsets[position + 1]) & mask
    for position in range(start, stop):
        begin = offsets[max(slots[index[position]], 0)]
        index[position] = data[min(begin, len(data) - 1)]  # an empty string may begin at the very end


@compiled
def gather_strs(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], order: NDArray[np.int64], gathered: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The bytes of the strings in another order, whose offsets are `gathered`."""
    out = np.empty(gathered[-1], dtype=np.uint8)
    for position in range(len(order)):
        begin = offsets[order[position]]
        place = gathered[position]
        for byte in range(gathered[position + 1] - place):
            out[place + byte] = data[begin + byte]
    return out
