"""The log of mutations in a stream of a Redis or Valkey server, for the processes of several hosts.

With `appendfsync everysec` another worker may read a mutation up to a second before it is on the disk; should
the server crash within that time, the worker notices that it knows more than the log. With `appendfsync
always` that cannot happen.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

import msgspec
import xxhash

from handler.errors import LogCorrupt, LogMoved, LogUnavailable
from handler.log import scripts
from handler.log.marks import pack_mark, unpack_mark
from handler.log.protocol import Mark, Record
from handler.log.record import HEADER_BYTES, Linked, Tail, seal, tails_after, unseal
from handler.log.trail import Trail

if TYPE_CHECKING:
    from handler.log.server import Server

_NUM_DOUBTS = 64


class RedisLog:
    """A log on a server that keeps an append-only file.

    What it promises is in `handler.log.protocol`. `append` may fail without knowing whether the records are
    there; appending the same again to the same object then adds them if they are not, and never twice.
    """

    is_local: ClassVar[bool] = False

    def __init__(self, server: Server, graph_id: str, remember_s: int, reader_ttl_s: int) -> None:
        self._server = server
        self._remember_s, self._reader_ttl_s = remember_s, reader_ttl_s
        # In braces, so that a cluster keeps all keys of a graph in one place.
        self._prefix = f"hopserve:{{{quote(graph_id, safe='')}}}:"
        self._facts, self._stream = f"{self._prefix}facts", f"{self._prefix}records"
        self._readers = [f"{self._prefix}readers", f"{self._prefix}readers-spoke"]
        self._where = f"{server.name}, {self._stream}"
        self._trail = Trail(self._where)
        self._doubts = _Doubts()

    @classmethod
    def open(
        cls,
        url: str,
        graph_id: str,
        *,
        remember_s: int = 86_400,
        reader_ttl_s: int = 300,
        timeout_s: float = 5.0,
    ) -> Self:
        """Open a graph's log.

        Args:
            url: as `redis://[user:password@]host:port/0`, `rediss://...` or `unix:///path`.
            remember_s: how long request ids are known.
            reader_ttl_s: how long a reader counts that says nothing; it has to `hold` more often than that.
            timeout_s: how long the server may take to make something durable.

        Raises:
            LogUnavailable: it cannot be reached, would not keep what it is given, or the package is missing.
        """
        try:
            from handler.log.server import Server
        except ImportError:
            raise LogUnavailable(
                "a log in Redis needs the package redis: pip install 'hopserve[redis]'"
            ) from None
        server = Server(url, timeout_s)
        try:
            server.check_durable()
        except LogUnavailable:
            server.close()
            raise
        return cls(server, graph_id, remember_s, reader_ttl_s)

    def last_seq(self) -> int:
        seen_seq = self._trail.seen_seq
        tail = _tail(self._server.ask(scripts.TAIL, [self._facts, self._stream]))
        self._trail.check_tail(tail, seen_seq)
        return tail.seq

    def first_seq(self) -> int:
        answer = self._server.ask(scripts.FIRST, [self._facts, self._stream])
        run = self._unsealed(answer[2])
        return run[0].record.first_seq if run else _tail(answer).seq + 1

    def read(self, after_seq: int, max_bytes: int = 1 << 22) -> list[Record]:
        seen_seq = self._trail.seen_seq
        limits = [after_seq + 1, max_bytes, HEADER_BYTES]
        answer = self._server.ask(scripts.READ, [self._facts, self._stream], limits)
        tail = _tail(answer)
        self._trail.check_tail(tail, seen_seq)
        return self._trail.follow(after_seq, self._unsealed(answer[2]), tail)

    def append(self, records: Sequence[Record], marks: Sequence[Mark], after_seq: int) -> None:
        seen_seq = self._trail.seen_seq
        content = _content(records, marks, after_seq)
        tails = self._doubts.settle(content) or tuple(tails_after(records, after_seq))
        try:
            answer = self._send(records, tails, marks, after_seq)
        except BaseException:
            self._doubts.keep(content, tails)
            raise
        outcome, found = answer[0], _tail(answer[1:])
        if outcome == b"headless":
            raise LogCorrupt(self._where, "holds mutations, but no longer where the log ends")
        self._trail.check_tail(found, seen_seq)
        if outcome != b"done":
            raise LogMoved(after_seq, found.seq)
        for tail in tails:
            self._trail.pass_by(tail)

    def find(self, request_id: str) -> Mark | None:
        value = self._server.ask(scripts.FIND, [self._mark_key(request_id)])
        return None if value is None else unpack_mark(value, self._where)

    def hold(self, reader: str, seq: int) -> None:
        self._server.ask(scripts.HOLD, self._readers, [reader, seq])

    def release(self, reader: str) -> None:
        self._server.ask(scripts.RELEASE, self._readers, [reader])

    def truncate(self, through_seq: int) -> int:
        limits = [max(0, through_seq), self._reader_ttl_s]
        self._server.ask(scripts.TRUNCATE, [self._stream, *self._readers], limits)
        return self.first_seq()

    def close(self) -> None:
        self._server.close()

    def _send(
        self, records: Sequence[Record], tails: Sequence[Tail], marks: Sequence[Mark], after_seq: int
    ) -> Any:
        keys = [self._facts, self._stream, *(self._mark_key(mark.request_id) for mark in marks)]
        known_tag = self._trail.known_tag(after_seq) or b""
        values: list[Any] = [after_seq, known_tag, self._remember_s, len(records)]
        for record, tail in zip(records, tails, strict=True):
            values += [tail.seq, tail.tag, seal(record, tail.tag)]
        return self._server.change(scripts.APPEND, keys, [*values, *map(pack_mark, marks)])

    def _unsealed(self, answer: Sequence[bytes]) -> list[Linked]:
        return [
            unseal(value, int(entry_id.partition(b"-")[0]), self._where)
            for entry_id, value in zip(answer[::2], answer[1::2], strict=True)
        ]

    def _mark_key(self, request_id: str) -> str:
        return f"{self._prefix}mark:{request_id}"


class _Doubts:
    """The tags of appends that failed without a known outcome, by what was to be appended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[bytes, tuple[Tail, ...]] = {}

    def keep(self, content: bytes, tails: tuple[Tail, ...]) -> None:
        with self._lock:
            self._tails[content] = tails
            if len(self._tails) > _NUM_DOUBTS:
                del self._tails[next(iter(self._tails))]

    def settle(self, content: bytes) -> tuple[Tail, ...] | None:
        # Taken out, so that the same content from another request is another append.
        with self._lock:
            return self._tails.pop(content, None)


def _content(records: Sequence[Record], marks: Sequence[Mark], after_seq: int) -> bytes:
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode((after_seq, tuple(records), tuple(marks))))


def _tail(answer: Sequence[bytes]) -> Tail:
    return Tail(int(answer[0]), answer[1])
