"""Rows that are no data: the first ends the import, or all are skipped, counted and the first few told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from archive.tables.arrow import plain, python_of
from archive.tables.table import Chunk, shortened
from handler.errors import GraphInputError

_SHOWN_ROWS = 5


@dataclass(frozen=True)
class TableReport:
    """What became of a table's rows.

    Args:
        path: the file.
        num_rows: how many were read.
        num_skipped: how many of them were bad, and skipped.
        messages: what was wrong with the first few.
    """

    path: Path
    num_rows: int
    num_skipped: int
    messages: tuple[str, ...]


@dataclass
class BadRows:
    """What is known so far of the rows of one file.

    Args:
        path: the file.
        skip: whether bad rows are skipped.
    """

    path: Path
    skip: bool
    num_rows: int = 0
    num_skipped: int = 0
    messages: list[str] = field(default_factory=list)

    def count(self, num_rows: int, num_bad: int, first_bad: list[tuple[int, str]]) -> None:
        """More rows; the first of the bad ones are among `first_bad`, with line and problem.

        Raises:
            GraphInputError: there is a bad one, and they are not skipped.
        """
        messages = [f"{self.path}:{line}: {problem}" for line, problem in sorted(first_bad)[:_SHOWN_ROWS]]
        if messages and not self.skip:
            raise GraphInputError(messages[0])
        self.num_rows += num_rows
        self.num_skipped += num_bad
        self.messages += messages[: _SHOWN_ROWS - len(self.messages)]

    def report(self) -> TableReport:
        return TableReport(self.path, self.num_rows, self.num_skipped, tuple(self.messages))


class RowCheck:
    """Which rows of a chunk are data so far.

    Columns are converted whole, so what is wrong with a row comes out of order: `report` tells it in the
    order of the lines, once per row.

    Args:
        chunk: the rows.
        bad_rows: what `report` tells.
    """

    def __init__(self, chunk: Chunk, bad_rows: BadRows) -> None:
        self.chunk = chunk
        self.keep = np.ones(len(chunk), dtype=np.bool_)
        self._bad_rows = bad_rows
        self._num_refused = 0
        self._first_refused: list[tuple[int, str]] = []

    def column(self, name: str) -> pa.Array:
        """A column as an Arrow array that is neither a dictionary nor bytes of unknown meaning."""
        return plain(self.chunk.columns[name])

    def refuse(self, bad: NDArray[np.bool_], problem: Callable[[int], str]) -> None:
        """Drop the rows where `bad` is set; `problem` says why, for the number of a row in the chunk."""
        rows = np.flatnonzero(bad & self.keep)
        self.keep[rows] = False
        self._num_refused += len(rows)
        # Of each kind the first few suffice to find the first few of all.
        self._first_refused += [
            (int(self.chunk.lines[row]), problem(row)) for row in rows[:_SHOWN_ROWS].tolist()
        ]

    def refuse_value(self, bad: NDArray[np.bool_], column: str, problem: str) -> None:
        """Drop the rows where `bad` is set: the value of `column` is the problem."""
        self.refuse(bad, lambda row: f"column {column!r}: {self.shown(column, row)} {problem}")

    def shown(self, column: str, row: int) -> str:
        """A value for an error message."""
        return shortened(python_of(self.column(column)[row]))

    def wrong_type(self, column: str, expected: str) -> GraphInputError:
        """That a column has a type that no row of it can be good in."""
        given = self.chunk.columns[column].type
        return GraphInputError(f"{self._bad_rows.path}: column {column!r} holds {given}, not {expected}")

    def report(self) -> None:
        """Tell of all rows, when columns are converted; a `GraphInputError` unless bad ones are skipped."""
        broken = self.chunk.broken
        self._bad_rows.count(
            len(self.chunk) + len(broken),
            self._num_refused + len(broken),
            [*self._first_refused, *broken],
        )
