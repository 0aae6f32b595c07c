"""How a table of text is laid out: what its user says of it, and what its file shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handler.errors import GraphInputError

NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_SNIFFED = "\t,;|"


@dataclass(frozen=True)
class TableFormat:
    """How a table of text is laid out; a Parquet file says so itself.

    Args:
        delimiter: one ASCII character. Without it the file's name decides (`.csv`, `.tsv`, `.tab`), else
            what the first line has most of among tab, comma, semicolon and bar; if it has none, the space.
        header: whether the first line names the columns. Without it, it does unless it has nothing but
            numbers (and empty fields).

    Raises:
        GraphInputError: the delimiter is none.
    """

    delimiter: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        given = self.delimiter
        if given is not None and (
            len(given) != 1 or not given.isascii() or given.isalnum() or given in '\r\n\0"+-.'
        ):
            raise GraphInputError(
                f"a delimiter must be one ASCII character such as , ; | or a tab, not {given!r}"
            )

    def delimiter_of(self, path: Path, first_line: bytes) -> str:
        """What stands between the columns of a file."""
        names = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _CODECS]
        return self.delimiter or _DELIMITERS.get(names[-1] if names else "") or _sniffed(first_line)

    def has_header(self, first_fields: Sequence[str]) -> bool:
        """Whether the first line names the columns."""
        if self.header is not None:
            return self.header
        filled = [text for text in first_fields if text]
        return not filled or not all(re.match(NUMBER, text) for text in filled)


def codec_of(path: Path) -> str | None:
    """How a file is compressed, by its name."""
    return _CODECS.get(path.suffix.lower())


def _sniffed(line: bytes) -> str:
    best = max(_SNIFFED, key=lambda delimiter: line.count(delimiter.encode()))
    if best.encode() in line:
        return best
    return " " if b" " in line.strip() else ","
