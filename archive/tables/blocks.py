"""Text in blocks of whole lines that know their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError

_BLOCK_BYTES = 8 << 20
_LONGEST_LINE_BYTES = 64 << 20
_COMMENTS = re.compile(rb"(?:[ \t]*(?:[#%][^\n]*)?\n)*")


@dataclass(frozen=True)
class Block:
    """Whole lines, each of which ends with one line feed.

    Args:
        line: the number of the first.
        text: at least one line.
    """

    line: int
    text: bytes

    def after_first_line(self) -> Block:
        """What is left without the first line, which may be nothing."""
        return self._cut_at(self.text.index(b"\n") + 1)[1]

    def halves(self) -> tuple[Block, Block]:
        """Two blocks of about as many bytes; there must be two lines."""
        middle = self.text.rfind(b"\n", 0, len(self.text) // 2) + 1
        return self._cut_at(middle or self.text.index(b"\n") + 1)

    def filled_lines(self) -> NDArray[np.int64]:
        """Which lines, counted from 0, are not empty."""
        if b"\n\n" not in self.text and not self.text.startswith(b"\n"):
            return np.arange(self.text.count(b"\n"))
        ends = np.flatnonzero(np.frombuffer(self.text, dtype=np.uint8) == ord("\n"))
        return np.flatnonzero(np.diff(ends, prepend=-1) > 1)

    def _cut_at(self, end: int) -> tuple[Block, Block]:
        line = self.line + self.text.count(b"\n", 0, end)
        return Block(self.line, self.text[:end]), Block(line, self.text[end:])


def row_blocks(path: Path, text: IO[bytes], block_bytes: int | None = None) -> Iterator[Block]:
    """The blocks from the first line on that is neither a comment nor empty.

    Args:
        path: for errors.
        text: what is read, `block_bytes` at a time; it may give fewer, and the lines in them are a block.
    """
    line, is_leading = 1, True
    for lines in _whole_lines(path, text, block_bytes or _BLOCK_BYTES):
        rest = lines
        if is_leading:
            match = _COMMENTS.match(lines)
            end = match.end() if match else 0
            line += lines.count(b"\n", 0, end)
            rest = lines[end:]
            is_leading = not rest
        if rest:
            yield Block(line, rest)
            line += rest.count(b"\n")


def _whole_lines(path: Path, text: IO[bytes], block_bytes: int) -> Iterator[bytes]:
    rest, is_first = b"", True
    while data := text.read(block_bytes):
        if is_first and data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise GraphInputError(f"{path}: is UTF-16, but a table must be UTF-8 text")
        data = rest + (data.removeprefix(b"\xef\xbb\xbf") if is_first else data)
        is_first = False
        # Old line ends count too; the very last byte may be the first half of a newer one.
        end = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, -1) + 1
        if end:
            yield _with_line_feeds(data[:end])
        rest = data[end:]
        if len(rest) > _LONGEST_LINE_BYTES:
            raise GraphInputError(
                f"{path}: is no table: a line is longer than {_LONGEST_LINE_BYTES >> 20} MiB"
            )
    if rest:
        yield _with_line_feeds(rest + b"\n")


def _with_line_feeds(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text
