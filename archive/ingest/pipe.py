"""Lines that arrive one after the other, such as those of `tail -f`."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

from archive.tables.blocks import Block, row_blocks
from archive.tables.table import reading
from archive.tables.text_file import first_line_of
from handler.graph.progress import Progress

_LINGER_S = 1.0
_BLOCK_BYTES = 1 << 20


class PipedText:
    """The text that comes through a pipe, which is read once.

    A block is what comes within a second, or a mebibyte.

    Args:
        path: what errors call it.
        descriptor: of the pipe.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._arriving = _Arriving(path, descriptor)
        self._blocks: Iterator[Block] = row_blocks(path, cast("IO[bytes]", self._arriving), _BLOCK_BYTES)

    def first_line(self) -> Block:
        seen = list(islice(self._blocks, 1))
        self._blocks = chain(seen, self._blocks)
        return first_line_of(self.path, iter(seen))

    def blocks(self, progress: Progress) -> Iterator[Block]:
        done = 0
        with progress.bar(f"reading {self.path}", 0, "B") as advance:
            for block in self._blocks:
                advance(self._arriving.num_bytes - done)
                done = self._arriving.num_bytes
                yield block


class _Arriving:
    """A stream that gives what there is a second after something came."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.num_bytes = 0

    def read(self, size: int) -> bytes:
        arrived = [self._read(size)]
        left = size - len(arrived[0])
        deadline = time.monotonic() + _LINGER_S
        while arrived[-1] and left and self._is_ready(deadline - time.monotonic()):
            arrived.append(self._read(left))
            left -= len(arrived[-1])
        self.num_bytes += size - left
        return b"".join(arrived)

    def _read(self, size: int) -> bytes:
        with reading(self._path):
            return os.read(self._descriptor, size)

    def _is_ready(self, timeout_s: float) -> bool:
        return timeout_s > 0 and bool(select.select([self._descriptor], [], [], timeout_s)[0])
