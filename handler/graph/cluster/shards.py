"""Asks the shards of a Redis Cluster, all of them at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pybreaker
import redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    MovedError,
    RedisClusterException,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.retry import Retry

from handler.errors import GraphUnavailable, in_one_line

Command = tuple[Any, ...]
_NUM_RETRIES = 3
_MAX_FAILURES, _OPEN_S = 3, 1.0
_ELSEWHERE = (AskError, TryAgainError)  # of which one is MovedError
_GONE = (redis.ConnectionError, redis.TimeoutError, OSError, SlotNotCoveredError, MovedError)
_UNASKED = (*_GONE, pybreaker.CircuitBreakerError)
_FAILURES = (redis.RedisError, RedisClusterException, OSError, ValueError)


class Replicated(list[Any]):
    """What a replica has answered: it may lack what was written last."""


class Shards:
    """Connections to all masters of a cluster; not safe to use from several threads at once.

    What moves between masters meanwhile, or has failed over to a replica, is asked for again where it is
    now. A master that has failed a few times in a row is not asked for a moment, so that answers do not wait;
    the others are.

    Args:
        url: of one node, such as redis://HOST:6379; the others are found by it.
        timeout_s: for each answer.

    Raises:
        GraphUnavailable: there is no cluster.
    """

    def __init__(self, url: str, timeout_s: float = 1.0) -> None:
        #: How often answers were waited for.
        self.waits = 0
        self._breakers: defaultdict[str, pybreaker.CircuitBreaker] = defaultdict(
            lambda: pybreaker.CircuitBreaker(
                fail_max=_MAX_FAILURES, reset_timeout=_OPEN_S, throw_new_error_on_trip=False
            )
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

        Args:
            commands: each begins with its name and the one key that it is about.

        Raises:
            GraphUnavailable: some of it cannot be had.
        """
        answers = self.ask_each(commands)
        for answer in answers:
            if isinstance(answer, GraphUnavailable):
                raise answer
        return answers

    def ask_each(self, commands: Sequence[Command], *, replicas: bool = False) -> list[Any]:
        """The same, but in place of what cannot be had stands the `GraphUnavailable` that says why.

        Args:
            replicas: of masters that cannot be asked, ask these; all commands are answered by lists, and then
                by `Replicated` ones.
        """
        if not commands:
            return []
        self.waits += 1
        answers: list[Any] = [None] * len(commands)
        self._ask(commands, range(len(commands)), answers)
        gone = [place for place, answer in enumerate(answers) if isinstance(answer, _GONE)]
        if gone and self._look_again():  # a replica may have taken over
            self._ask(commands, gone, answers)
        self._follow(commands, answers)
        if replicas:
            gone = [place for place, answer in enumerate(answers) if isinstance(answer, _UNASKED)]
            self._ask(commands, gone, answers, replicas=True)
        return [_unavailable(each) if isinstance(each, Exception) else each for each in answers]

    def _ask(
        self,
        commands: Sequence[Command],
        places: Iterable[int],
        answers: list[Any],
        *,
        replicas: bool = False,
    ) -> None:
        """Write what servers answer to some of the commands, or the errors, to `answers`."""
        asked: defaultdict[Any, list[int]] = defaultdict(list)
        for place in places:
            try:
                node = self._client.get_node_from_key(commands[place][1], replica=replicas)
                if node is not None:
                    asked[node].append(place)
            except SlotNotCoveredError as error:
                answers[place] = error
        exchanges = [
            (self._exchange(node, commands, answers, of_node, replicas), of_node)
            for node, of_node in asked.items()
        ]
        for _ in ("send", "receive"):
            for exchange, of_node in exchanges:
                try:
                    next(exchange, None)
                except (pybreaker.CircuitBreakerError, *_FAILURES) as error:
                    for place in of_node:
                        answers[place] = error

    def _exchange(
        self,
        node: Any,
        commands: Sequence[Command],
        answers: list[Any],
        places: Sequence[int],
        is_replica: bool,
    ) -> Generator[None]:
        """One message to one server and, in a second step, what it answers; an error ends both."""
        asked = [commands[place] for place in places]
        server = self._client.get_redis_connection(node)
        with self._breakers[node.name].calling():
            connection = server.connection_pool.get_connection()
            try:
                before: list[Command] = [("READONLY",)] if is_replica else []
                connection.send_packed_command(connection.pack_commands([*before, *asked]))
                yield
                for command in before:
                    server.parse_response(connection, command[0])
                for place, command in zip(places, asked, strict=True):
                    try:
                        answer = server.parse_response(connection, command[0])
                        answers[place] = Replicated(answer) if is_replica else answer
                    except redis.ResponseError as error:
                        answers[place] = error
            except BaseException:
                connection.disconnect()  # nobody else is to read these answers
                raise
            finally:
                server.connection_pool.release(connection)

    def _look_again(self) -> bool:
        """Ask where everything is now; whether anybody knows."""
        try:
            self._client.nodes_manager.initialize()
        except _FAILURES:
            return False
        return True

    def _follow(self, commands: Sequence[Command], answers: list[Any]) -> None:
        """Ask one by one for what is elsewhere; after a failure for no more of it, for each may take long."""
        failed: Exception | None = None
        for place, answer in enumerate(answers):
            if isinstance(answer, _ELSEWHERE):
                try:
                    answers[place] = failed or self._client.execute_command(*commands[place])
                except _FAILURES as error:
                    answers[place] = failed = error

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
    except _FAILURES as error:
        raise _unavailable(error) from None


def _unavailable(error: Exception) -> GraphUnavailable:
    if isinstance(error, pybreaker.CircuitBreakerError):
        return GraphUnavailable("the cluster of the graph: a server failed, and is not asked for a moment")
    return GraphUnavailable(f"the cluster of the graph: {in_one_line(error)}")
