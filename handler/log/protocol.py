"""What a log of mutations promises, whatever stores it.

A log holds records in the order in which they were appended. A record is opaque bytes that hold one or more
mutations, each of which has a sequence number: 1 for the first that a graph ever had, and no number is
left out. Appending is optimistic: whoever appends says after which mutation, and is refused if another was
faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Record:
    """Some mutations that stand in the log together.

    Args:
        first_seq, last_seq: the numbers of its first and its last mutation.
        data: the mutations.
    """

    first_seq: int
    last_seq: int
    data: bytes


@dataclass(frozen=True)
class Mark:
    """A request that is in the log, by which the same request is known when it comes again.

    Args:
        request_id: as the client chose it.
        digest: of what was asked, to tell another request under the same id.
        first_seq, last_seq: of its mutations.
    """

    request_id: str
    digest: str
    first_seq: int
    last_seq: int


class Log(Protocol):
    """A durable log of one graph; safe to use from several threads and processes at once.

    Every method raises `LogUnavailable` when the store cannot be reached, written or has no room, and
    `LogCorrupt` when what it holds cannot be right.
    """

    #: Whether it can be asked for its end before every batch: it is on this host, and cannot hang.
    is_local: ClassVar[bool]

    def last_seq(self) -> int:
        """The number of the latest mutation ever appended; 0 before the first. Takes microseconds."""
        ...

    def first_seq(self) -> int:
        """The number of the earliest mutation that can still be read; last_seq() + 1 if none can."""
        ...

    def read(self, after_seq: int, max_bytes: int = 1 << 22) -> list[Record]:
        """The records that follow a mutation, in order: as many as have `max_bytes`, but one at least.

        Raises:
            LogGap: `after_seq` is not the last mutation of a record, or those that follow it are no longer
                there, or are missing between others: whoever reads would miss some.
        """
        ...

    def append(self, records: Sequence[Record], marks: Sequence[Mark], after_seq: int) -> None:
        """Add records, all or none; returns when they are durable.

        Args:
            records: the first begins at after_seq + 1, and each where the one before it ended.
            marks: of the requests that they come from, for those that have an id.
            after_seq: the latest mutation that whoever appends knows of.

        Raises:
            LogMoved: another was appended meanwhile; nothing was done.
            LogUncertain: it may be done or not; the same append again finds out. All other errors mean that
                nothing was done.
        """
        ...

    def find(self, request_id: str) -> Mark | None:
        """The request of this id, if it came within the time that ids are remembered."""
        ...

    def hold(self, reader: str, seq: int) -> None:
        """Say that a reader has read as far as `seq`, so that what follows is kept for it."""
        ...

    def release(self, reader: str) -> None:
        """Say that a reader has gone."""
        ...

    def truncate(self, through_seq: int) -> int:
        """Drop records up to a mutation, but none that a reader has yet to read; the new `first_seq`.

        Readers that died without a word do not count: those of this host are looked up, others are
        forgotten some time after they last spoke. Forgets request ids that are too old, too.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...
