"""The 64-bit hashes on which samples and id look-ups rest.

They are part of the snapshot format: another hash means other samples, so tests fix their values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


@compiled
def mix64(value: np.uint64) -> np.uint64:
    """One step of SplitMix64 (Steele, Lea and Flood, 2014): a bijection whose bits look random."""
    z = np.uint64(value) + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@compiled
def hash_bytes(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """FNV-1a of `data[start:end]`, mixed once more so that every bit of the result counts."""
    value = _FNV_OFFSET
    for position in range(start, end):
        value = (value ^ np.uint64(data[position])) * _FNV_PRIME
    return mix64(value)


@compiled
def edge_key(seed: np.uint64, hash_v: np.uint64, hash_u: np.uint64) -> np.uint64:
    """The place of in-neighbour u in the `seeded` list of v: a hash of (seed, v, u).

    It takes the hashes of the nodes' ids, not their positions: the same graph gives the same samples,
    in whatever order its nodes were read.
    """
    return mix64(mix64(mix64(seed) ^ hash_v) + hash_u)
