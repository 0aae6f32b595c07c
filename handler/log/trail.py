"""What one process has seen of a log, by which it notices that another history took that one's place."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from handler.errors import LogCorrupt, LogGap
from handler.log.protocol import Record
from handler.log.record import NO_TAG, Linked, Tail

_NUM_REMEMBERED = 1024


class Trail:
    """The latest mutations that were read or appended here; safe to use from several threads.

    A store that was brought back from an older copy has lost mutations that were acknowledged. As soon as
    others get their numbers, nothing but their tags tells them apart.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._tags: dict[int, bytes] = {}
        self._seen_seq = 0

    @property
    def seen_seq(self) -> int:
        """The latest mutation that was seen here. Read it before the log is asked how far it goes."""
        return self._seen_seq

    def known_tag(self, seq: int) -> bytes | None:
        """The tag of the record that ended with `seq` when it was seen here."""
        return self._tags.get(seq) if seq else NO_TAG

    def check_tail(self, tail: Tail, seen_seq: int) -> None:
        """Raise `LogCorrupt` if a log that ends here cannot be the one of which `seen_seq` was seen."""
        if tail.seq < seen_seq:
            raise LogCorrupt(
                self._where,
                f"it ends with mutation {tail.seq}, but {seen_seq} had been seen in it:"
                " it was brought back from an older copy, and acknowledged mutations are lost",
            )
        self._check_tag(tail.seq, tail.tag)

    def follow(self, after_seq: int, run: Sequence[Linked], tail: Tail) -> list[Record]:
        """What was read after `after_seq` from a log that ends with `tail`, if nothing is missing.

        Raises:
            LogGap: something is.
            LogCorrupt: it does not continue what was seen here.
        """
        if not run and tail.seq != after_seq:
            raise LogGap(after_seq, tail.seq + 1)
        previous = self.known_tag(after_seq)
        for linked in run:
            record = linked.record
            if record.first_seq != after_seq + 1:
                raise LogGap(
                    after_seq, record.first_seq if record.first_seq > after_seq else record.last_seq + 1
                )
            if previous is not None and linked.previous != previous:
                self._refuse(after_seq)
            after_seq, previous = record.last_seq, linked.tag
            self.pass_by(Tail(after_seq, linked.tag))
        return [linked.record for linked in run]

    def pass_by(self, tail: Tail) -> None:
        """Remember that a record was seen here."""
        with self._lock:
            self._tags[tail.seq] = tail.tag
            self._seen_seq = max(self._seen_seq, tail.seq)
            if len(self._tags) > _NUM_REMEMBERED:
                del self._tags[next(iter(self._tags))]

    def _check_tag(self, seq: int, tag: bytes) -> None:
        if self.known_tag(seq) not in {None, tag}:
            self._refuse(seq)

    def _refuse(self, seq: int) -> None:
        raise LogCorrupt(
            self._where,
            f"mutation {seq} is another than the one that had been seen: the log was brought back from"
            " an older copy, and acknowledged mutations are lost",
        )
