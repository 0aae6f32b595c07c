"""Rows in files of text, which Arrow parses block by block."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv

from archive.tables.arrow import is_utf8
from archive.tables.blocks import Block
from archive.tables.format import TableFormat
from archive.tables.table import Chunk, place_of
from archive.tables.text_file import Text
from handler.errors import GraphInputError
from handler.graph.progress import Progress

# What Arrow may show us is text: bytes that may be none become a character that is no delimiter.
_AS_ASCII = bytes(range(128)) + b"0" * 128
_OPEN_QUOTE = "a quote is not closed before the line ends"


class TextTable:
    """A row per line, quoted as RFC 4180 has it, but a line always ends its row."""

    def __init__(self, text: Text, table_format: TableFormat) -> None:
        self.path = text.path
        self._text = text
        first = text.first_line()
        self._delimiter = table_format.delimiter_of(self.path, first.text)
        fields = self._fields(first)
        self._has_header = table_format.has_header(fields)
        self._places = [str(place) for place in range(len(fields))]
        self.columns = tuple(fields if self._has_header else self._places)

    def chunks(self, columns: Sequence[str], progress: Progress) -> Iterator[Chunk]:
        places = {name: str(place_of(self, name)) for name in columns}
        is_head = self._has_header
        for block in self._text.blocks(progress):
            rows = block.after_first_line() if is_head else block
            is_head = False
            if rows.text:
                yield from self._cut(rows, places)

    def _fields(self, first: Block) -> list[str]:
        where = f"{self.path}:{first.line}: the first line"
        try:
            (fields,) = csv.reader([first.text.decode()], delimiter=self._delimiter)
        except UnicodeDecodeError:
            raise GraphInputError(f"{where} is not UTF-8 text") from None
        except csv.Error as error:
            raise GraphInputError(f"{where}: {error}") from None
        return [name.strip() for name in fields]

    def _cut(self, block: Block, places: dict[str, str]) -> Iterator[Chunk]:
        """The rows of a block; around a line whose quotes do not close, those before and after it."""
        chunk = self._rows(block, places)
        if chunk is not None:
            yield chunk
        elif block.text.count(b"\n") == 1:
            nothing = {name: pa.array([], pa.binary()) for name in places}
            yield Chunk(nothing, np.empty(0, dtype=np.int64), ((block.line, _OPEN_QUOTE),))
        else:
            for part in block.halves():
                yield from self._cut(part, places)

    def _rows(self, block: Block, places: dict[str, str]) -> Chunk | None:
        """The rows of a block, or none if a row is longer than its line."""
        ragged: list[Any] = []
        valid = is_utf8(block.text)
        wanted = sorted(set(places.values()))
        table = self._parsed(block.text if valid else block.text.translate(_AS_ASCII), wanted, ragged)
        lines = block.filled_lines()
        if table is None or table.num_rows + len(ragged) != len(lines):
            return None
        broken = tuple(
            (
                int(lines[row.number - 1]) + block.line,
                f"has {row.actual_columns} columns, not {row.expected_columns}",
            )
            for row in ragged
        )
        lines = np.delete(lines, [row.number - 1 for row in ragged])
        if not valid:
            # Arrow cannot tell of a ragged row that is not UTF-8, so now it sees none.
            split = block.text.split(b"\n")
            table = self._parsed(b"".join(split[line] + b"\n" for line in lines), wanted, [])
        columns = {name: table[place].combine_chunks() for name, place in places.items()}
        return Chunk(columns, lines + block.line, broken)

    def _parsed(self, text: bytes, wanted: list[str], ragged: list[Any]) -> Any:
        """The wanted columns by place, and what had more or fewer; nothing where it cannot be parsed."""
        has_quotes = b'"' in text
        if has_quotes:
            # An open quote at the very end would be closed silently; here it takes one row too many.
            text += self._delimiter.encode().join([b"0"] * len(self.columns)) + b"\n"
        if not text.strip(b"\n"):
            return pa.table({place: pa.array([], pa.binary()) for place in wanted})

        def note(row: Any) -> Literal["skip"]:
            ragged.append(row)
            return "skip"

        # Rows have numbers only where there is one thread and one block.
        reading_whole = pa.csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=self._places
        )
        quote = '"' if has_quotes else False
        layout = pa.csv.ParseOptions(delimiter=self._delimiter, quote_char=quote, invalid_row_handler=note)
        binary = pa.csv.ConvertOptions(
            include_columns=wanted, column_types=dict.fromkeys(wanted, pa.binary())
        )
        try:
            table = pa.csv.read_csv(pa.BufferReader(text), reading_whole, layout, binary)
        except pa.ArrowInvalid:
            return None
        return table.slice(0, max(0, table.num_rows - 1)) if has_quotes else table
