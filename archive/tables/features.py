"""Columns that are features, as matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from archive.tables.bad_rows import RowCheck
from archive.tables.columns import as_float
from archive.tables.table import Table, place_of
from handler.errors import GraphInputError
from handler.graph.features import DenseFeatures

FeatureDtype = Literal["float32", "float16"]

_SHOWN_NODES = 5


def feature_columns(table: Table, patterns: Sequence[str], used: Sequence[str]) -> list[str]:
    """The columns that are features, in the order of the patterns, then of the file.

    Args:
        table: which has them.
        patterns: names, or patterns such as `f*`.
        used: columns that are something else, and match no pattern.
    """
    free = [name for name in table.columns if name not in used]
    chosen: list[str] = []
    for pattern in patterns:
        matched = [pattern] if pattern in free else [name for name in free if fnmatchcase(name, pattern)]
        if not matched and pattern in used:
            raise GraphInputError(f"{table.path}: column {pattern!r} is no feature: it is used otherwise")
        if not matched:
            place_of(table, pattern)
        chosen += matched
    return list(dict.fromkeys(chosen))


def as_matrix(
    check: RowCheck, columns: Sequence[str], dtype: str, *, gaps: bool = False
) -> NDArray[np.floating]:
    """`dtype` [num_rows, len(columns)]; see `as_float`."""
    matrix = np.empty((len(check.chunk), len(columns)), dtype=dtype)
    for place, column in enumerate(columns):
        matrix[:, place] = as_float(check, column, dtype, gaps=gaps)
    return matrix


class FeatureFile:
    """The features of nodes on their way to disk; nodes that lack some are told of together.

    Args:
        path: of the file, which is made.
        columns: names, which may be none.
        dtype: of the values.
    """

    def __init__(self, path: Path, columns: Sequence[str], dtype: FeatureDtype) -> None:
        self.columns = columns
        self.dtype = dtype
        self._path = path
        self._file = path.open("wb")
        self._num_nodes = 0
        self._num_incomplete = 0
        self._shown: list[str] = []

    def append(self, x: NDArray[np.floating], shown: Callable[[int], str]) -> None:
        """Write some rows, NaN where there is a gap; `shown` is the id of one for an error message."""
        self._file.write(x.data)
        self._num_nodes += len(x)
        rows = np.flatnonzero(np.isnan(x).any(axis=1))
        self._num_incomplete += len(rows)
        for row in rows[: _SHOWN_NODES - len(self._shown)].tolist():
            self._shown.append(f"{shown(row)} ({self.first_gap(x[row])})")

    def first_gap(self, row: NDArray[np.floating]) -> str:
        """The first column that a row lacks."""
        return self.columns[int(np.isnan(row).argmax())]

    def finish(self, table: Path) -> DenseFeatures | None:
        """The features, mapped; `GraphInputError` if nodes of `table` lack some."""
        self._file.flush()
        if self._num_incomplete:
            who = "1 node has" if self._num_incomplete == 1 else f"{self._num_incomplete} nodes have"
            more = ", ..." if self._num_incomplete > len(self._shown) else ""
            raise GraphInputError(
                f"{table}: {who} missing or non-finite features: {', '.join(self._shown)}{more}"
            )
        if not self.columns:
            return None
        shape = (self._num_nodes, len(self.columns))
        if not self._num_nodes:  # no file that is empty can be mapped
            return DenseFeatures(np.empty(shape, dtype=self.dtype))
        return DenseFeatures(np.memmap(self._path, dtype=self.dtype, mode="r", shape=shape))

    def close(self) -> None:
        self._file.close()
