"""The cache of outputs in a Redis or Valkey server, for the workers of several hosts.

Every entry has a time to live, and the server decides what goes when its memory is full: with `maxmemory` and
`maxmemory-policy volatile-lru` those entries that were not used for longest, while a log of mutations, which
has no time to live, stays. (A log on the same server asks for a server of its own or `noeviction`.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote

import pybreaker
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from handler.cache.outputs import Outputs
from handler.cache.protocol import Failure, Found, OnFailure, ignore_failure
from handler.cache.value import Values
from handler.cache.writing import Put, WriteBehind
from handler.errors import LogUnavailable, in_one_line

_Answer = TypeVar("_Answer")

_CONNECT_TIMEOUT_S = 0.05
_WRITE_TIMEOUT_S = 0.1
_NUM_WRITTEN_AT_ONCE = 512
_MAX_FAILURES = 3
_OPEN_S = 1.0
_ERRORS = (redis.RedisError, OSError, pybreaker.CircuitBreakerError)


class RedisCache:
    """A cache on a server that may be slow or away at any time: then it is not waited for.

    What the cache promises is in `handler.cache.protocol`.
    """

    def __init__(self, url: str, values: Values, ttl_s: int, timeout_ms: int, on_failure: OnFailure) -> None:
        self._values, self._ttl_s, self._on_failure = values, ttl_s, on_failure
        # Apart, because a breaker lets one call through at a time: reading must not wait for writing.
        self._reading = _Guarded(url, timeout_ms / 1000)
        self._writing = _Guarded(url, max(timeout_ms / 1000, _WRITE_TIMEOUT_S))
        self._closed = threading.Event()
        self._writer = WriteBehind(self._write, on_failure)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        prefix: str,
        version: str,
        tag: int,
        dim: int,
        ttl_s: int = 604_800,
        timeout_ms: int = 5,
        on_failure: OnFailure = ignore_failure,
    ) -> Self:
        """Open a cache, whether or not its server can be reached now.

        Args:
            url: as `redis://[user:password@]host:port/0`, `rediss://...` or `unix:///path`.
            prefix: tells apart the models that share a server.
            version, tag, dim: see `handler.cache.value.Values`.
            ttl_s: how long an entry lives after it was written.
            timeout_ms: how long the server may take to answer.

        Raises:
            LogUnavailable: that is no such URL.
        """
        return cls(url, Values(version, tag, dim, space_of(prefix)), ttl_s, timeout_ms, on_failure)

    def get(self, node_ids: Sequence[int | str]) -> Found:
        # The server refuses to look for nothing.
        if not node_ids or self._closed.is_set():
            return self._values.nothing()
        keys = self._values.keys(node_ids)
        try:
            values = self._reading.call(lambda client: client.mget(keys))
        except _ERRORS as error:
            self._on_failure(_kind_of(error))
            return self._values.nothing()
        unpacked = self._values.unpack(keys, values)
        for _ in range(unpacked.num_corrupt):
            self._on_failure("corrupt")
        return unpacked.found

    def put(self, node_ids: Sequence[int | str], outputs: Outputs) -> None:
        self._writer.put(Put(node_ids, outputs))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._closed.set()
        self._writer.close()
        self._reading.close()
        self._writing.close()

    def _write(self, puts: list[Put]) -> None:
        rows: list[tuple[bytes, bytes]] = []
        for put in puts:
            keys = self._values.keys(put.node_ids)
            rows += zip(keys, self._values.pack(keys, put.outputs), strict=True)
        try:
            for start in range(0, len(rows), _NUM_WRITTEN_AT_ONCE):
                self._send(rows[start : start + _NUM_WRITTEN_AT_ONCE])
        except _ERRORS as error:
            self._on_failure(_kind_of(error))

    def _send(self, rows: list[tuple[bytes, bytes]]) -> None:
        def send(client: Any) -> None:
            with client.pipeline(transaction=False) as pipeline:
                for key, value in rows:
                    pipeline.set(key, value, ex=self._ttl_s)
                pipeline.execute()

        self._writing.call(send)


class _Guarded:
    """Connections to a server that is not asked for a while after it has failed several times in a row."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._client = connect(url, timeout_s, _CONNECT_TIMEOUT_S)
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=_MAX_FAILURES, reset_timeout=_OPEN_S, throw_new_error_on_trip=False
        )

    def call(self, ask: Callable[[Any], _Answer]) -> _Answer:
        return self._breaker.call(ask, self._client)

    def close(self) -> None:
        self._client.close()


def connect(url: str, timeout_s: float, connect_timeout_s: float) -> Any:
    """A client that asks once; a URL that is none is `LogUnavailable`."""
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            # No word on who we are, which would be another round trip whenever a connection is made.
            driver_info=None,
            socket_timeout=timeout_s,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise LogUnavailable(f"not the URL of a Redis server: {in_one_line(error)}") from None


def space_of(prefix: str) -> str:
    """What the keys of a model begin with."""
    return f"hopserve:{quote(prefix, safe='')}:"


def _kind_of(error: BaseException) -> Failure:
    if isinstance(error, pybreaker.CircuitBreakerError):
        return "open"
    if isinstance(error, redis.OutOfMemoryError):
        return "full"
    return "timeout" if isinstance(error, (redis.TimeoutError, TimeoutError)) else "unavailable"
