"""Asks the shards of a Redis Cluster, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pybreaker
import redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from handler.errors import GraphUnavailable, in_one_line

Command = tuple[Any, ...]
_NUM_RETRIES = 3
_MAX_FAILURES, _OPEN_S = 3, 1.0


class Shards:
    """Connections to all masters of a cluster; not safe to use from several threads at once.

    What moves between masters meanwhile, or has failed over to a replica, is asked for again where it is
    now, a few times. After some failures in a row nobody is asked for a moment, so that answers do not wait.

    Args:
        url: of one node, such as redis://HOST:6379; the others are found by it.
        timeout_s: for each answer.

    Raises:
        GraphUnavailable: there is no cluster.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        #: How often answers were waited for.
        self.waits = 0
        self._breaker = pybreaker.CircuitBreaker(
            fail_max=_MAX_FAILURES, reset_timeout=_OPEN_S, throw_new_error_on_trip=False
        )
        with _translated():
            self._client: Any = RedisCluster.from_url(
                url,
                protocol=2,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(ExponentialBackoff(cap=0.5, base=0.02), _NUM_RETRIES),
            )

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """What the shards answer, in order: one message for each shard, and one wait for all.

        Raises:
            GraphUnavailable: some of it cannot be had.
        """
        if not commands:
            return []
        self.waits += 1
        with _translated():
            answers: list[Any] = self._breaker.call(self._ask, commands)
            return answers

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        with self._client.pipeline() as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute()
            return answers

    def get(self, key: str) -> bytes | None:
        """The value of one key."""
        (found,) = self.ask([("GET", key)])
        return None if found is None else bytes(found)

    def put(self, hashes: Mapping[str, Mapping[bytes, bytes]], strings: Iterable[tuple[str, bytes]]) -> None:
        """Write fields of hashes, and strings."""
        commands: list[Command] = []
        for key, fields in hashes.items():
            commands.append(("HSET", key, *(part for pair in fields.items() for part in pair)))
        commands += [("SET", key, value) for key, value in strings]
        self.ask(commands)

    def masters(self) -> frozenset[str]:
        """The servers that hold slots now; a failover makes it another set."""
        with _translated():
            nodes = self._client.cluster_nodes().values()
        return frozenset(
            str(node["node_id"]) for node in nodes if node["slots"] and "master" in node["flags"]
        )

    def remove(self, prefix: str) -> int:
        """Remove all keys that begin so; how many there were."""
        pattern = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in prefix) + "*"
        removed: int = 0
        with _translated():
            part: list[Any] = []
            for key in self._client.scan_iter(match=pattern, count=1000):
                part.append(key)
                if len(part) == 1000:
                    removed += len(self.ask([("UNLINK", each) for each in part]))
                    part = []
        return removed + len(self.ask([("UNLINK", each) for each in part]))

    def close(self) -> None:
        self._client.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except pybreaker.CircuitBreakerError:
        raise GraphUnavailable("the cluster of the graph failed, and is not asked for a moment") from None
    except (redis.RedisError, RedisClusterException, OSError, ValueError) as error:
        raise GraphUnavailable(f"the cluster of the graph: {in_one_line(error)}") from None
