"""Whole tables and columns as lists, for tests to compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from archive.tables.bad_rows import BadRows, RowCheck
from archive.tables.files import open_table
from archive.tables.format import TableFormat
from archive.tables.table import Chunk
from archive.tables.times import TimeColumn
from handler.graph.progress import SILENT

AUTO = TableFormat()
Convert = Callable[[RowCheck, str], Any]


def as_times() -> Convert:
    columns: dict[str, TimeColumn] = {}
    return lambda check, column: columns.setdefault(column, TimeColumn(column)).read(check)


def read_column(
    path: Path, column: str, convert: Convert, layout: TableFormat = AUTO, *, skip: bool = False
) -> list[Any]:
    """The values in the rows that are data."""
    bad_rows, values = BadRows(path, skip), list[Any]()
    for chunk in open_table(path, layout).chunks([column], SILENT):
        check = RowCheck(chunk, bad_rows)
        converted = convert(check, column)
        check.report()
        values += [value for value, keep in zip(converted.tolist(), check.keep, strict=True) if keep]
    return values


def lines_of(chunk: Chunk) -> list[tuple[int, str]]:
    """Line and text of each row, for a chunk with one column."""
    (column,) = chunk.columns.values()
    return [(line, raw.as_py().decode()) for line, raw in zip(chunk.lines.tolist(), column, strict=True)]
