"""The inner loops that hash node ids, and find them in slots; what slots are is told in `ids`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import hash_bytes, mix64
from handler.graph.kernels import compiled


@compiled
def node_hash(
    kind: int, ids: NDArray[np.int64], data: NDArray[np.uint8], offsets: NDArray[np.int64], node: int
) -> np.uint64:
    """The hash of one node's id, of the kinds that `NodeIds.hash_parts` names."""
    if kind == 0:
        return mix64(np.uint64(node))
    if kind == 1:
        return mix64(np.uint64(ids[node]))
    return hash_bytes(data, offsets[node], offsets[node + 1])


@compiled
def hash_ints(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 [num_nodes]: the hash of each integer id."""
    hashes = np.empty(len(ids), dtype=np.uint64)
    for index in range(len(ids)):
        hashes[index] = mix64(np.uint64(ids[index]))
    return hashes


@compiled
def hash_strs(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 [num_nodes]: the hash of each string id."""
    hashes = np.empty(len(offsets) - 1, dtype=np.uint64)
    for index in range(len(hashes)):
        hashes[index] = hash_bytes(data, offsets[index], offsets[index + 1])
    return hashes


@compiled
def insert_ints(ids: NDArray[np.int64], slots: NDArray[np.int64]) -> int:
    mask = np.uint64(len(slots) - 1)
    for index in range(len(ids)):
        slot = mix64(np.uint64(ids[index])) & mask
        while slots[slot] >= 0:
            if ids[slots[slot]] == ids[index]:
                return index
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = index
    return -1


@compiled
def find_ints(
    ids: NDArray[np.int64], slots: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.int64]:
    mask = np.uint64(len(slots) - 1)
    found = np.full(len(wanted), -1, dtype=np.int64)
    for position in range(len(wanted)):
        slot = mix64(np.uint64(wanted[position])) & mask
        while slots[slot] >= 0:
            if ids[slots[slot]] == wanted[position]:
                found[position] = slots[slot]
                break
            slot = (slot + np.uint64(1)) & mask
    return found


@compiled
def _same_bytes(
    left: NDArray[np.uint8], left_start: int, right: NDArray[np.uint8], right_start: int, length: int
) -> bool:
    for position in range(length):
        if left[left_start + position] != right[right_start + position]:
            return False
    return True


@compiled
def find_str(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int64],
    wanted: NDArray[np.uint8],
    start: int,
    end: int,
) -> int:
    """The slot that holds `wanted[start:end]`, or the free one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = hash_bytes(wanted, start, end) & mask
    while slots[slot] >= 0:
        begin = offsets[slots[slot]]
        length = offsets[slots[slot] + 1] - begin
        if length == end - start and _same_bytes(data, begin, wanted, start, length):
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@compiled
def insert_strs(data: NDArray[np.uint8], offsets: NDArray[np.int64], slots: NDArray[np.int64]) -> int:
    for index in range(len(offsets) - 1):
        slot = find_str(data, offsets, slots, data, offsets[index], offsets[index + 1])
        if slots[slot] >= 0:
            return index
        slots[slot] = index
    return -1


@compiled
def find_strs(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int64],
    wanted: NDArray[np.uint8],
    wanted_offsets: NDArray[np.int64],
) -> NDArray[np.int64]:
    found = np.empty(len(wanted_offsets) - 1, dtype=np.int64)
    for position in range(len(found)):
        start, end = wanted_offsets[position], wanted_offsets[position + 1]
        found[position] = slots[find_str(data, offsets, slots, wanted, start, end)]
    return found
