"""Mutations in batches, each as large as one request may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from archive.ingest.rows import KINDS, Kind, Segment
from handler.errors import GraphInputError


class Place(msgspec.Struct, frozen=True):
    """Where a mutation stands in a file.

    Args:
        line: of text, or the row of a Parquet file, from 1.
        part: how many mutations stand before it in this line.
    """

    line: int
    part: int = 0


@dataclass(frozen=True)
class Limits:
    """How large a batch may be.

    Args:
        num_mutations: at most so many.
        num_bytes: of its content, at most.
    """

    num_mutations: int
    num_bytes: int


@dataclass(frozen=True)
class Batch:
    """Mutations that are sent together.

    Args:
        segments: none of them empty, in the order in which a request applies kinds.
        content: a JSON object with a list per kind.
    """

    segments: tuple[Segment, ...]
    content: bytes

    def __len__(self) -> int:
        return _count(self.segments)

    @property
    def place(self) -> Place:
        """Where it begins."""
        first = self.segments[0]
        return Place(int(first.lines[0]), int(first.parts[0]))

    @property
    def last_line(self) -> int:
        """Where it ends."""
        return int(self.segments[-1].lines[-1])

    @cached_property
    def digest(self) -> str:
        """A checksum of the content."""
        return xxhash.xxh3_64_hexdigest(self.content)

    def line_of(self, kind: Kind, index: int) -> int | None:
        """The line of one mutation, by its place among those of its kind."""
        for segment in self.segments:
            if segment.kind == kind and index < len(segment):
                return int(segment.lines[index])
            index -= len(segment) if segment.kind == kind else 0
        return None

    def line_naming(self, shown_id: str) -> int | None:
        """The first line with a node whose id is shown so."""
        for segment in self.segments:
            for row in range(len(segment)):
                if shown_id in map(repr, segment.rows.ids(row)):
                    return int(segment.lines[row])
        return None


def after(blocks: Iterable[Sequence[Segment]], place: Place) -> Iterator[list[Segment]]:
    """The same mutations without those that stand before a place."""
    for block in blocks:
        rest = []
        for segment in block:
            earlier = (segment.lines < place.line) | (
                (segment.lines == place.line) & (segment.parts < place.part)
            )
            rest.append(segment.part(int(np.count_nonzero(earlier)), len(segment)))
        yield rest


def batches(
    path: Path,
    blocks: Iterable[Sequence[Segment]],
    limits: Limits,
    *,
    first_sizes: Sequence[int] = (),
    at_once: bool = False,
) -> Iterator[Batch]:
    """All mutations, in their order: what one batch applies in another order than the file is two batches.

    Args:
        path: for errors.
        blocks: segments as they were read.
        limits: of a batch.
        first_sizes: how many mutations the first batches have, whatever the limit of that number.
        at_once: do not let a block wait for the next one.

    Raises:
        GraphInputError: a single mutation has more bytes than a batch may have.
    """
    batcher = _Batcher(path, limits, list(first_sizes))
    for block in blocks:
        for segment in block:
            yield from batcher.add(segment)
        if at_once:
            yield from batcher.flush()
    yield from batcher.flush()


class _Batcher:
    def __init__(self, path: Path, limits: Limits, first_sizes: list[int]) -> None:
        self._path = path
        self._limits = limits
        self._first_sizes = first_sizes
        self._size = limits.num_mutations
        self._waiting: list[Segment] = []
        self._num_waiting = 0

    def add(self, segment: Segment) -> Iterator[Batch]:
        done = 0
        if self._waiting and KINDS.index(segment.kind) < KINDS.index(self._waiting[-1].kind):
            yield from self.flush()
        while done < len(segment):
            size = self._first_sizes[0] if self._first_sizes else self._size
            taken = segment.part(done, done + size - self._num_waiting)
            self._waiting.append(taken)
            self._num_waiting += len(taken)
            done += len(taken)
            if self._num_waiting == size:
                yield from self.flush()

    def flush(self) -> Iterator[Batch]:
        segments = tuple(self._waiting)
        self._waiting, self._num_waiting = [], 0
        if self._first_sizes:
            del self._first_sizes[0]
        if segments:
            yield from self._fitting(segments)

    def _fitting(self, segments: tuple[Segment, ...]) -> Iterator[Batch]:
        batch = Batch(segments, _content(segments))
        if len(batch.content) <= self._limits.num_bytes:
            yield batch
            return
        middle = len(batch) // 2
        if middle == 0:
            raise GraphInputError(
                f"{self._path}:{batch.last_line}: has a mutation of {len(batch.content)} bytes,"
                f" at most {self._limits.num_bytes} can be sent"
            )
        self._size = len(batch) - middle  # what comes next is likely as large
        yield from self._fitting(_part(segments, 0, middle))
        yield from self._fitting(_part(segments, middle, len(batch)))


def _count(segments: Sequence[Segment]) -> int:
    return sum(map(len, segments))


def _part(segments: Sequence[Segment], start: int, stop: int) -> tuple[Segment, ...]:
    parts, before = [], 0
    for segment in segments:
        part = segment.part(max(0, start - before), max(0, stop - before))
        before += len(segment)
        if len(part):
            parts.append(part)
    return tuple(parts)


def _content(segments: Sequence[Segment]) -> bytes:
    lists: dict[Kind, list[bytes]] = {}
    for segment in segments:
        lists.setdefault(segment.kind, []).append(segment.rows.to_json()[1:-1])
    return b"{%b}" % b",".join(
        b'"%b":[%b]' % (kind.encode(), b",".join(rows)) for kind, rows in lists.items()
    )
