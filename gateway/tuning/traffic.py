"""The requests by which a model is measured: random nodes of its graph, or real ones from a file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gateway.errors import UpstreamError
from gateway.tuning.load import Sent
from handler.errors import RequestError
from handler.graph.snapshot import Snapshot
from handler.requests import parse_request

_JSON = {"Content-Type": "application/json"}
_MOST_REQUESTS = 20_000
_FEWEST_REQUESTS = 200
_MOST_IDS = 200_000
_STORED_REQUESTS = 2_000


@dataclass(frozen=True)
class Traffic:
    """Requests that are sent again and again, in this order.

    Args:
        bodies: JSON.
        live: whether each asks to be computed.
        source: where they come from, in words.
    """

    bodies: tuple[bytes, ...]
    live: bool
    source: str

    def several(self, count: int) -> Iterator[Sent]:
        """So many."""
        return itertools.islice(self._endless(), count)

    def during(self, seconds: float) -> Iterator[Sent]:
        """As many as are taken within this time from now."""
        ends = time.monotonic() + seconds
        return itertools.takewhile(lambda _: time.monotonic() < ends, self._endless())

    def _endless(self) -> Iterator[Sent]:
        return (Sent(body, _JSON) for body in itertools.cycle(self.bodies))


def random_traffic(snapshot: Snapshot, num_nodes: int, max_nodes: int, *, live: bool) -> Traffic:
    """Requests for random nodes, the same at every call.

    Args:
        num_nodes: of each request, all different.
        max_nodes: that a request may name.
        live: whether answers are to be computed; else there are so few requests that all of them are soon
            answered from what is stored.

    Raises:
        UpstreamError: the graph or a request has not so many nodes.
    """
    if num_nodes > snapshot.num_nodes:
        raise UpstreamError(f"{num_nodes} nodes per request: the graph has only {snapshot.num_nodes}")
    if num_nodes > max_nodes:
        raise UpstreamError(f"{num_nodes} nodes per request: the archive allows {max_nodes}")
    draw = np.random.default_rng(0)
    count = int(np.clip(_MOST_IDS // num_nodes, _FEWEST_REQUESTS, _MOST_REQUESTS))
    count = count if live else min(count, _STORED_REQUESTS)
    drawn = [draw.choice(snapshot.num_nodes, num_nodes, replace=False) for _ in range(count)]
    ids = iter(snapshot.ids.id_of(np.concatenate(drawn)))
    bodies = [_asking(list(itertools.islice(ids, num_nodes)), live) for _ in drawn]
    words = "one random node" if num_nodes == 1 else f"{num_nodes} random nodes"
    return Traffic(tuple(bodies), live, f"{words} per request, {'computed' if live else 'stored'}")


def read_traffic(file: Path, max_nodes: int, *, live: bool) -> Traffic:
    """Read requests, one per line, as clients send them.

    Args:
        live: whether answers are to be computed, whatever the requests say.

    Raises:
        UpstreamError: a line is no request or would change the graph, which names the line; or there is none.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UpstreamError(f"{file}: cannot be read: {error.strerror}") from None
    bodies = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            bodies.append(_checked(f"{file}, line {number}", line, max_nodes, live))
    if not bodies:
        raise UpstreamError(f"{file}: has no requests")
    return Traffic(tuple(bodies), live, f"{len(bodies)} requests of {file.name}" + ", computed" * live)


def _checked(place: str, line: bytes, max_nodes: int, live: bool) -> bytes:
    try:
        request = parse_request(line, max_nodes)
    except RequestError as error:
        raise UpstreamError(f"{place}: {error}") from None
    for query in request.queries:
        if query.error is not None:
            raise UpstreamError(f"{place}: {query.error}")
        if query.store:
            raise UpstreamError(f"{place}: `store` would change the graph")
    return _computed(line) if live else line


def _computed(line: bytes) -> bytes:
    request: dict[str, Any] = msgspec.json.decode(line)
    for row in request.get("instances", [request]):
        row["max_staleness_ms"] = 0
    return msgspec.json.encode(request)


def _asking(ids: list[Any], live: bool) -> bytes:
    request: dict[str, Any] = {"node_id": ids[0]} if len(ids) == 1 else {"node_ids": ids}
    return msgspec.json.encode({**request, "max_staleness_ms": 0} if live else request)
