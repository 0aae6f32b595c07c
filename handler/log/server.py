"""One Redis or Valkey server: sends it scripts, and calls whatever goes wrong `LogUnavailable`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from handler.errors import LogUnavailable, LogUncertain, in_one_line

_NUM_RETRIES = 3
_CONNECT_TIMEOUT_S = 2.0
_NO_FILE = (
    "the server keeps no append-only file, so nothing is durable: set `appendonly yes`,"
    " and `appendfsync always` for the lowest latency"
)


class Server:
    """A connection pool to a server; safe to use from several threads.

    A connection that breaks is made again a few times, within about a second. A server that does not answer
    in time is not asked again.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_ms = int(timeout_s * 1000)
        try:
            self._client: Any = redis.Redis.from_url(
                url,
                protocol=2,
                # Longer than the server itself may wait for its disk.
                socket_timeout=timeout_s + 1,
                socket_connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
                retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), _NUM_RETRIES, (redis.ConnectionError,)),
            )
        except ValueError as error:
            raise LogUnavailable(f"not the URL of a Redis server: {in_one_line(error)}") from None
        to = self._client.connection_pool.connection_kwargs
        # Not the URL itself, which may hold a password.
        self.name = to.get("path") or f"{to.get('host', 'localhost')}:{to.get('port', 6379)}"

    def check_durable(self) -> None:
        """Raise `LogUnavailable` if the server would lose what it is given, on a crash or of its own will."""
        with self._translated():
            memory = self._client.info("memory")
            persistence = self._client.info("persistence")
        policy = str(memory.get("maxmemory_policy"))
        if policy.startswith("allkeys"):
            raise LogUnavailable(
                f"{self.name}: with `maxmemory-policy {policy}` the server drops what it holds when its"
                " memory is full: set `noeviction`"
            )
        if not persistence.get("aof_enabled"):
            raise LogUnavailable(f"{self.name}: {_NO_FILE}")

    def ask(self, script: str, keys: Sequence[str], values: Sequence[Any] = ()) -> Any:
        """Run a Lua script; what it answers."""
        with self._translated():
            return self._client.eval(script, len(keys), *keys, *values)

    def change(self, script: str, keys: Sequence[str], values: Sequence[Any]) -> Any:
        """Run a Lua script and wait until all that it wrote is on the server's disk; what it answers.

        The script may be run more than once, when a connection breaks, so it has to know its own work. It
        answers a list that begins with b"volatile" if it found no append-only file and wrote nothing.
        """
        # WAITAOF waits for what its own connection wrote, so both must go over the same.
        try:
            with self._translated():
                answer, synced = self._change(script, keys, values)
        except LogUnavailable as error:
            raise LogUncertain(str(error)) from None
        if answer[0] == b"volatile":
            raise LogUnavailable(f"{self.name}: {_NO_FILE}")
        if isinstance(synced, Exception) or not synced[0]:
            why = in_one_line(synced) if isinstance(synced, Exception) else "its disk is too slow"
            raise LogUncertain(f"{self.name}: the server cannot say that it is durable ({why})")
        return answer

    def _change(self, script: str, keys: Sequence[str], values: Sequence[Any]) -> tuple[Any, Any]:
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.eval(script, len(keys), *keys, *values)
            pipeline.waitaof(1, 0, self._timeout_ms)
            answer, synced = pipeline.execute(raise_on_error=False)
            if isinstance(answer, Exception):
                raise answer
        return answer, synced

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except redis.TimeoutError:
            raise LogUnavailable(f"{self.name}: no answer within {self._timeout_ms / 1000 + 1:g} s") from None
        except (redis.RedisError, OSError) as error:
            raise LogUnavailable(f"{self.name}: {in_one_line(error)}") from None
