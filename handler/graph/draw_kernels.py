"""The inner loops that draw places of a row by hashes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import mix64
from handler.graph.kernels import compiled

_UNIT = 2.0**-53


@compiled
def chance(key: np.uint64, limit: int) -> int:
    """A place in 0 to limit - 1 from the bits of a hash."""
    return int(np.float64(key >> np.uint64(11)) * _UNIT * limit)


@compiled
def draw_places(
    seed: np.uint64,
    node: int,
    degree: int,
    count: int,
    places: NDArray[np.int64],
    moved: NDArray[np.int64],
) -> None:
    """Write `count` distinct places of a row of `degree` to `places`: a shuffle, as far as it is needed.

    A smaller count gives a prefix. `moved` [2, at least count] remembers what the shuffle has swapped, so
    that the cost does not depend on the degree.
    """
    key = mix64(mix64(seed) ^ np.uint64(node))
    for step in range(count):
        here, there = step, step + chance(mix64(key + np.uint64(step)), degree - step)
        taken, given = there, here
        for earlier in range(step):  # the last swap of a place counts
            if moved[0, earlier] == there:
                taken = moved[1, earlier]
            if moved[0, earlier] == here:
                given = moved[1, earlier]
        places[step] = taken
        moved[0, step], moved[1, step] = there, given
