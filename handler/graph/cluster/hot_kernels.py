"""The inner loops of a table of few places, in which what is asked for most stays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.hashing import mix64
from handler.graph.kernels import compiled

#: Places that one key may have.
WAYS = 8
_MOST_USED = 3


@compiled
def find_places(
    keys: NDArray[np.int64], used: NDArray[np.uint8], wanted: NDArray[np.int64], place: NDArray[np.int64]
) -> None:
    """Write where each wanted key is, or -1; it counts as used once more."""
    sets = np.uint64(len(keys) // WAYS)
    for number in range(len(wanted)):
        first = int(mix64(np.uint64(wanted[number])) % sets) * WAYS
        place[number] = -1
        for at in range(first, first + WAYS):
            if keys[at] == wanted[number]:
                place[number] = at
                if used[at] < _MOST_USED:
                    used[at] += np.uint8(1)
                break


@compiled
def take_places(
    keys: NDArray[np.int64], used: NDArray[np.uint8], wanted: NDArray[np.int64], place: NDArray[np.int64]
) -> None:
    """Give each key, none of which is there, a place; -1 where all that it may have are in use.

    These then count as used once less, so that what is not used any more goes (a clock).
    """
    sets = np.uint64(len(keys) // WAYS)
    for number in range(len(wanted)):
        first = int(mix64(np.uint64(wanted[number])) % sets) * WAYS
        place[number] = -1
        for at in range(first, first + WAYS):
            if keys[at] < 0 or used[at] == 0:
                place[number] = at
                keys[at] = wanted[number]
                used[at] = 1
                break
        if place[number] < 0:
            for at in range(first, first + WAYS):
                used[at] -= np.uint8(1)
