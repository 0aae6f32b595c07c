"""Writes one `.npy` file piece by piece, before its length is known."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


class NpyWriter:
    """A `.npy` file that grows along its first axis; used as a context manager.

    Plain writes, not a memory map: a full disk is then an `OSError`, and not the end of the process.

    Args:
        shape: of one element, () for a flat array.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> None:
        self.path = path
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._num_rows = 0
        self._file = path.open("wb")
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.seek(0)
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what was written so far."""
        return (self._num_rows, *self._shape)

    def append(self, values: NDArray[Any]) -> None:
        """Add rows; they are cast to the file's dtype."""
        values = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1, *self._shape)
        self._file.write(values.data.cast("B") if values.size else b"")
        self._num_rows += len(values)

    def _write_header(self) -> None:
        # NumPy leaves room for the first axis to grow, so the second header is as long as the first.
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": self.shape,
        }
        np.lib.format.write_array_header_1_0(self._file, header)
