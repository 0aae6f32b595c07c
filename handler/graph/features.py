"""Node features as mapped matrices, gathered row by row."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FeatureKind = Literal["dense", "csr"]


class Features(Protocol):
    """A [num_nodes, feature_dim] matrix of float32 or float16."""

    kind: ClassVar[FeatureKind]

    @property
    def shape(self) -> tuple[int, int]:
        """(num_nodes, feature_dim)."""
        ...

    def gather(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [len(index), feature_dim]: a copy of the rows at `index`."""
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

    def gather(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.take(self._x, index, axis=0).astype(np.float32, copy=False)

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

    def gather(self, index: NDArray[np.int64]) -> NDArray[np.float32]:
        starts = self._indptr[index]
        counts = self._indptr[index + 1] - starts
        ends = np.cumsum(counts)
        row = np.repeat(np.arange(len(index)), counts)
        position = np.arange(len(row)) + np.repeat(starts - ends + counts, counts)
        out = np.zeros((len(index), self._feature_dim), dtype=np.float32)
        out[row, self._indices[position]] = self._data[position]
        return out

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"x_indptr": self._indptr, "x_indices": self._indices, "x_data": self._data}
