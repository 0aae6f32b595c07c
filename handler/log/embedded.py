"""The log of mutations in LMDB: a folder on a local disk, for the processes of one host."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from handler.errors import LogCorrupt, LogMoved, LogUnavailable
from handler.log.databases import LogEnvironment
from handler.log.environments import check_usable, release, translated
from handler.log.facts import identify, put_tail, read_tail
from handler.log.holds import Holds
from handler.log.marks import pack_mark, unpack_mark
from handler.log.protocol import Mark, Record
from handler.log.record import HEADER_BYTES, Linked, Tail, seal, tails_after, unseal
from handler.log.trail import Trail

_TIME_FORM = struct.Struct(">Q")
# LMDB keeps the pages that a transaction touches in memory, up to a limit.
_NUM_DROPPED_AT_ONCE = 4096


class LmdbLog:
    """A log in a folder. It must be on a local file system, and not be used across a fork.

    What it promises is in `handler.log.protocol`. Several objects may have the same log open.
    """

    is_local: ClassVar[bool] = True

    def __init__(self, environment: LogEnvironment, remember_s: int) -> None:
        self._environment = environment
        self._remember_s = remember_s
        self._holds = Holds(environment.folder / "readers")
        self._where = str(environment.folder)
        self._trail = Trail(self._where)
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: Path,
        graph_id: str,
        *,
        map_bytes: int = 1 << 40,
        writable: bool = True,
        remember_s: int = 86_400,
    ) -> Self:
        """Open a graph's log; one that can be written is made if there is none.

        Args:
            map_bytes: the most that the log may take; address space only, until it is written.
            remember_s: how long request ids are known.

        Raises:
            LogUnavailable: the folder cannot be used.
            LogCorrupt: it holds another graph's log, or what is left of one.
        """
        environment = LogEnvironment.acquire(folder, map_bytes, writable=writable)
        log = cls(environment, remember_s)
        try:
            with log._usable():
                identify(environment, graph_id)
        except BaseException:
            log.close()
            raise
        return log

    def last_seq(self) -> int:
        seen_seq = self._trail.seen_seq
        with self._usable() as environment, environment.env.begin() as txn:
            tail = read_tail(self._environment, txn)
        self._trail.check_tail(tail, seen_seq)
        return tail.seq

    def first_seq(self) -> int:
        with self._begun(buffers=True) as txn:
            cursor = txn.cursor(db=self._environment.records)
            if not cursor.first():
                return read_tail(self._environment, txn).seq + 1
            return self._unseal(cursor).record.first_seq

    def read(self, after_seq: int, max_bytes: int = 1 << 22) -> list[Record]:
        seen_seq = self._trail.seen_seq
        with self._begun(buffers=True) as txn:
            tail = read_tail(self._environment, txn)
            run = list(self._run(txn, after_seq, max_bytes))
        self._trail.check_tail(tail, seen_seq)
        return self._trail.follow(after_seq, run, tail)

    def append(self, records: Sequence[Record], marks: Sequence[Mark], after_seq: int) -> None:
        tails = tuple(tails_after(records, after_seq))
        seen_seq = self._trail.seen_seq
        with self._begun(write=True) as txn:
            tail = read_tail(self._environment, txn)
            self._trail.check_tail(tail, seen_seq)
            if tail.seq != after_seq:
                raise LogMoved(after_seq, tail.seq)
            for record, next_tail in zip(records, tails, strict=True):
                self._put(txn, record, tail, next_tail)
                tail = next_tail
            put_tail(self._environment, txn, tail)
            self._remember(txn, marks)
        for each in tails:
            self._trail.pass_by(each)

    def find(self, request_id: str) -> Mark | None:
        with self._begun() as txn:
            value = txn.get(_mark_key(request_id), db=self._environment.marks)
        if value is None or _TIME_FORM.unpack_from(value)[0] <= self._forgotten_until():
            return None
        return self._read_mark(value)

    def hold(self, reader: str, seq: int) -> None:
        with self._usable():
            self._holds.hold(reader, seq)

    def release(self, reader: str) -> None:
        with self._usable():
            self._holds.release(reader)

    def truncate(self, through_seq: int) -> int:
        with self._usable() as environment:
            # A process that was killed while it read keeps LMDB from using the space of what is dropped.
            environment.env.reader_check()
            slowest = self._holds.least()
        limit = through_seq if slowest is None else min(through_seq, slowest)
        while self._drop(limit):
            pass
        self._forget()
        return self.first_seq()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._holds.release_all()
            release(self._environment.shared)

    @contextmanager
    def _usable(self) -> Iterator[LogEnvironment]:
        if self._closed:
            raise LogUnavailable(f"{self._where}: the log was closed")
        check_usable(self._environment.shared)
        with translated(self._environment.folder):
            yield self._environment

    @contextmanager
    def _begun(self, *, write: bool = False, buffers: bool = False) -> Iterator[Any]:
        with self._usable() as environment:
            if write and not environment.writable:
                raise LogUnavailable(f"{self._where}: the log was opened for reading only")
            with environment.env.begin(write=write, buffers=buffers) as txn:
                yield txn

    def _run(self, txn: Any, after_seq: int, max_bytes: int) -> Iterator[Linked]:
        num_bytes = 0
        cursor = txn.cursor(db=self._environment.records)
        found = cursor.set_range(record_key(after_seq + 1))
        while found:
            num_bytes += len(cursor.value()) - HEADER_BYTES
            linked = self._unseal(cursor)
            yield linked
            found = cursor.next() and num_bytes + len(cursor.value()) - HEADER_BYTES <= max_bytes

    def _unseal(self, cursor: Any) -> Linked:
        return unseal(cursor.value(), int.from_bytes(cursor.key(), "big"), self._where)

    def _put(self, txn: Any, record: Record, tail: Tail, next_tail: Tail) -> None:
        value = tail.tag + seal(record, next_tail.tag)
        if not txn.put(record_key(record.last_seq), value, db=self._environment.records, append=True):
            raise LogCorrupt(self._where, f"holds mutations beyond {tail.seq}, where it should end")

    def _remember(self, txn: Any, marks: Sequence[Mark]) -> None:
        now = _TIME_FORM.pack(_now_us())
        for mark in marks:
            key = _mark_key(mark.request_id)
            txn.put(key, now + pack_mark(mark), db=self._environment.marks)
            txn.put(now + key, b"", db=self._environment.mark_times)

    def _read_mark(self, value: bytes) -> Mark:
        return unpack_mark(value[_TIME_FORM.size :], self._where)

    def _drop(self, through_seq: int) -> bool:
        with self._begun(write=True) as txn:
            cursor = txn.cursor(db=self._environment.records)
            num_dropped, last_key = 0, record_key(max(0, through_seq))
            found = cursor.first()
            while found and cursor.key() <= last_key and num_dropped < _NUM_DROPPED_AT_ONCE:
                found = cursor.delete() and bool(cursor.key())
                num_dropped += 1
        return num_dropped == _NUM_DROPPED_AT_ONCE

    def _forget(self) -> None:
        last_time = _TIME_FORM.pack(self._forgotten_until())
        with self._begun(write=True) as txn:
            times = txn.cursor(db=self._environment.mark_times)
            found = times.first()
            while found and times.key()[: _TIME_FORM.size] <= last_time:
                came, key = times.key()[: _TIME_FORM.size], times.key()[_TIME_FORM.size :]
                value = txn.get(key, db=self._environment.marks)
                # The same id may have come again since.
                if value is not None and value[: _TIME_FORM.size] == came:
                    txn.delete(key, db=self._environment.marks)
                found = times.delete() and bool(times.key())

    def _forgotten_until(self) -> int:
        return max(0, _now_us() - self._remember_s * 1_000_000)


def record_key(last_seq: int) -> bytes:
    """The key of a record; keys have the order of the records."""
    return last_seq.to_bytes(8, "big")


def _mark_key(request_id: str) -> bytes:
    # LMDB's keys are short, and a client may choose what it likes.
    return hashlib.blake2b(request_id.encode(), digest_size=16).digest()


def _now_us() -> int:
    return time.time_ns() // 1000
