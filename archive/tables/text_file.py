"""Where the lines of a table of text come from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa

from archive.tables.blocks import Block, row_blocks
from archive.tables.format import codec_of
from archive.tables.table import reading
from handler.errors import GraphInputError
from handler.graph.progress import Progress


class Text(Protocol):
    """Lines of UTF-8; `path` is what errors call it."""

    path: Path

    def first_line(self) -> Block:
        """The first that is neither a comment nor empty; a `GraphInputError` if there is none."""
        ...

    def blocks(self, progress: Progress) -> Iterator[Block]:
        """All lines from the first one on."""
        ...


class TextFile:
    """The text of a file, which may be compressed.

    Args:
        path: the file.
        block_bytes: how much text a block has at most; by default as is best for long tables.
    """

    def __init__(self, path: Path, block_bytes: int | None = None) -> None:
        self.path = path
        self._codec = codec_of(path)
        self._block_bytes = block_bytes

    def first_line(self) -> Block:
        with self._opened() as (_, text):
            return first_line_of(self.path, row_blocks(self.path, text, self._block_bytes))

    def blocks(self, progress: Progress) -> Iterator[Block]:
        step, total = f"reading {self.path.name}", self.path.stat().st_size
        with self._opened() as (raw, text), progress.bar(step, total, "B") as advance:
            done = 0
            for block in row_blocks(self.path, text, self._block_bytes):
                yield block
                advance(raw.tell() - done)
                done = raw.tell()

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The file, and the text in it."""
        with reading(self.path), self.path.open("rb") as raw:
            yield raw, pa.CompressedInputStream(raw, self._codec) if self._codec else raw


def first_line_of(path: Path, blocks: Iterator[Block]) -> Block:
    """The first line of some blocks, as a block of its own; a `GraphInputError` if there is none."""
    for block in blocks:
        return Block(block.line, block.text.partition(b"\n")[0])
    raise GraphInputError(f"{path}: the file has neither rows nor a header")
