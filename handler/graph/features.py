"""Node features as mapped matrices, gathered row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from handler.graph.feature_kernels import copy_rows

FeatureKind = Literal["dense", "csr"]
_CHECKED_ROWS = 1 << 16  # at once, so that a check needs no second matrix


class Features(Protocol):
    """A [num_nodes, feature_dim] matrix of float32 or float16."""

    kind: ClassVar[FeatureKind]

    @property
    def shape(self) -> tuple[int, int]:
        """(num_nodes, feature_dim)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values as they are stored."""
        ...

    def non_finite_rows(self) -> NDArray[np.int64]:
        """The nodes with a feature that is NaN or infinite, ascending."""
        ...

    def empty_rows(self) -> NDArray[np.int64]:
        """The nodes whose features are all zero, ascending."""
        ...

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """float32 [len(index), feature_dim]: a copy of the rows at `index`, in `out` if that is given."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a snapshot stores of them, by array name."""
        ...


class DenseFeatures:
    """Features stored row after row."""

    kind: ClassVar[FeatureKind] = "dense"

    def __init__(self, x: NDArray[np.floating]) -> None:
        self._x = x

    @property
    def shape(self) -> tuple[int, int]:
        return self._x.shape[0], self._x.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._x.dtype

    def non_finite_rows(self) -> NDArray[np.int64]:
        return self._rows_where(lambda part: (~np.isfinite(part)).any(axis=1))

    def empty_rows(self) -> NDArray[np.int64]:
        return self._rows_where(lambda part: ~part.any(axis=1))

    def _rows_where(self, test: Callable[[NDArray[Any]], Any]) -> NDArray[np.int64]:
        starts = range(0, len(self._x), _CHECKED_ROWS)
        found = [start + np.flatnonzero(test(self._x[start : start + _CHECKED_ROWS])) for start in starts]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        if out is None:
            out = np.empty((len(index), self._x.shape[1]), dtype=np.float32)
        if self._x.dtype == np.float32:
            copy_rows(self._x, index, out)
        else:
            out[:] = np.take(self._x, index, axis=0)
        return out

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"x": self._x}


class CsrFeatures:
    """Features of which only the non-zero ones are stored, as compressed sparse rows.

    Args:
        indptr: int64 [num_nodes + 1], row offsets.
        indices: int32 [num_nonzero], columns.
        data: float32 or float16 [num_nonzero], values.
        feature_dim: number of columns.
    """

    kind: ClassVar[FeatureKind] = "csr"

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        data: NDArray[np.floating],
        feature_dim: int,
    ) -> None:
        self._indptr = indptr
        self._indices = indices
        self._data = data
        self._feature_dim = feature_dim

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._indptr) - 1, self._feature_dim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._data.dtype

    def non_finite_rows(self) -> NDArray[np.int64]:
        bad = np.flatnonzero(~np.isfinite(self._data))
        return np.unique(np.searchsorted(self._indptr, bad, side="right") - 1)

    def empty_rows(self) -> NDArray[np.int64]:
        filled = np.searchsorted(self._indptr, np.flatnonzero(self._data), side="right") - 1
        return np.setdiff1d(np.arange(self.shape[0]), filled)

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        starts = self._indptr[index]
        counts = self._indptr[index + 1] - starts
        row = np.repeat(np.arange(len(index)), counts)
        position = positions(starts, counts)
        if out is None:
            out = np.zeros((len(index), self._feature_dim), dtype=np.float32)
        else:
            out[:] = 0
        out[row, self._indices[position]] = self._data[position]
        return out

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"x_indptr": self._indptr, "x_indices": self._indices, "x_data": self._data}


def positions(start: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [sum of count]: the positions from each start on, so many of each."""
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(int(count.sum()))
