"""Which kind of table a file has."""

from __future__ import annotations

from pathlib import Path

from archive.tables.format import TableFormat
from archive.tables.parquet import ParquetTable
from archive.tables.table import Table
from archive.tables.text import TextTable
from archive.tables.text_file import TextFile
from handler.errors import GraphInputError

_PARQUET = {".parquet", ".pq"}


def open_table(path: Path, table_format: TableFormat) -> Table:
    """The table in a file: Parquet if it is called so, else text, which may be compressed.

    Text is UTF-8, its quoting is that of RFC 4180, but a line always ends its row. Lines that start with
    `#` or `%` before the first row are comments; empty lines are none at all. Without a header the columns
    are called "0", "1" and so on.

    Raises:
        GraphInputError: there is no table in the file.
    """
    if path.is_dir():
        raise GraphInputError(f"{path}: is a folder, not a table")
    return ParquetTable(path) if is_parquet(path) else TextTable(TextFile(path), table_format)


def is_parquet(path: Path) -> bool:
    """Whether a file is called as Parquet files are."""
    return path.suffix.lower() in _PARQUET
