"""The inner loop that reads features row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from handler.graph.kernels import compiled

_ROWS_AHEAD, _LINE_FLOATS = 16, 16


@compiled
def copy_rows(x: NDArray[np.float32], index: NDArray[np.int64], out: NDArray[np.float32]) -> float:
    """Copy the rows at `index`, a few at a time of which each cache line was touched first.

    Touching does nothing that depends on what it reads, so the memory answers many reads at once. The sum
    that is returned keeps the reads from being left out.
    """
    total = np.float32(0)
    for start in range(0, len(index), _ROWS_AHEAD):
        end = min(start + _ROWS_AHEAD, len(index))
        for place in range(start, end):
            for column in range(0, x.shape[1], _LINE_FLOATS):
                total += x[index[place], column]
        for place in range(start, end):
            row = index[place]
            for column in range(x.shape[1]):
                out[place, column] = x[row, column]
    return float(total)
