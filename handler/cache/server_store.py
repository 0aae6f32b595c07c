"""Looks after the cache of outputs in a Redis or Valkey server: what is in it, and away with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import redis

from handler.cache.protocol import VersionStats
from handler.cache.server import connect, space_of
from handler.cache.value import HEADER_BYTES, node_prefix
from handler.cache.versions import Tally
from handler.errors import LogUnavailable, in_one_line

_TIMEOUT_S = 5.0
_NUM_AT_ONCE = 1000


class RedisStore:
    """The entries of one model on a server, for the command line.

    What comes, goes or moves inside of the server while it is counted may be missed or counted twice.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._space = space_of(prefix)

    @classmethod
    def open(cls, url: str, prefix: str) -> Self:
        """Open what workers write; `prefix` as there.

        Raises:
            LogUnavailable: the server cannot be reached.
        """
        store = cls(connect(url, _TIMEOUT_S, _TIMEOUT_S), prefix)
        try:
            with _translated():
                store._client.ping()
        except BaseException:
            store.close()
            raise
        return store

    def stats(self) -> list[VersionStats]:
        tally = Tally()
        with _translated():
            for keys in self._pages(f"{self._space}*:node[:#]*"):
                self._count(tally, keys)
        return tally.stats()

    def clear(self, version: str | None) -> int:
        first = f"{self._space}*:node" if version is None else node_prefix(version, self._space)
        with _translated():
            return sum(self._client.unlink(*keys) for keys in self._pages(f"{first}[:#]*"))

    def close(self) -> None:
        self._client.close()

    def _pages(self, pattern: str) -> Iterator[list[bytes]]:
        # No character of a pattern's own is in a prefix or version, which are quoted.
        cursor = -1
        while cursor:
            cursor, keys = self._client.scan(max(cursor, 0), match=pattern, count=_NUM_AT_ONCE)
            if keys:
                yield keys

    def _count(self, tally: Tally, keys: list[bytes]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.strlen(key)
                pipeline.getrange(key, 0, HEADER_BYTES - 1)
            answers = pipeline.execute()
        for key, num_bytes, header in zip(keys, answers[::2], answers[1::2], strict=True):
            if num_bytes:  # not gone meanwhile
                tally.add(key[len(self._space) :], num_bytes, header)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise LogUnavailable(f"the cache's server: {in_one_line(error)}") from None
