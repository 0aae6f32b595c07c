"""Asks a server many things at once: by so many clients, or at a rate that it cannot slow down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np


@dataclass(frozen=True)
class Answered:
    """What became of one request; `status` 0 means that no whole answer came.

    Args:
        seconds: from when it was to be sent until its answer was there.
    """

    request: Any
    status: int
    body: bytes
    seconds: float


@dataclass(frozen=True)
class Sent:
    """A request to send: bytes go as they are."""

    body: bytes
    headers: dict[str, str]


def send_all(url: str, headers: dict[str, str], requests: Iterable[Any], connections: int) -> list[Answered]:
    """Send each request once, over `connections` connections that are kept open (a closed loop).

    Each client waits for its answer before it asks again: a server that is slow is asked less, and the times
    say nothing of those who would have come meanwhile. See `send_at_rate`.
    """
    return asyncio.run(_send_all(url, headers, iter(requests), connections))


def send_at_rate(
    url: str,
    headers: dict[str, str],
    requests: Iterable[Any],
    rate: float,
    *,
    connections: int = 1_024,
    seed: int = 0,
) -> list[Answered]:
    """Send each request once, at random times of which there are `rate` a second (an open loop).

    When each is to be sent does not depend on the answers, and times count from then on, also where none of
    the connections is free: a server that stands still for a second makes all the requests of that second
    late. (Otherwise they would be omitted, just when they are slow.)

    Args:
        rate: requests a second; the pauses between them are exponential.
        connections: at most so many are open.
        seed: of the pauses.
    """
    return asyncio.run(_send_at_rate(url, headers, iter(requests), rate, connections, seed))


async def _send_all(
    url: str, headers: dict[str, str], requests: Iterator[Any], connections: int
) -> list[Answered]:
    answered: list[Answered] = []
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def work() -> None:
            for request in requests:  # which are shared: each client takes the next
                answer = await _send(session, url, request, time.perf_counter())
                answered.append(answer)

        await asyncio.gather(*(work() for _ in range(connections)))
    return answered


async def _send_at_rate(
    url: str, headers: dict[str, str], requests: Iterator[Any], rate: float, connections: int, seed: int
) -> list[Answered]:
    draw, tasks = np.random.default_rng(seed), []
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        due = time.perf_counter()
        for request in requests:
            due += draw.exponential(1 / rate)
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.append(asyncio.create_task(_send(session, url, request, due)))
        return list(await asyncio.gather(*tasks))


async def _send(session: aiohttp.ClientSession, url: str, request: Any, due: float) -> Answered:
    options = (
        {"data": request.body, "headers": request.headers} if isinstance(request, Sent) else {"json": request}
    )
    try:
        async with session.post(url, **options) as response:
            status, body = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError):
        status, body = 0, b""
    return Answered(request, status, body, time.perf_counter() - due)
