"""Many requests at once, over as many connections as wished."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Answered:
    """What became of one request; `status` 0 means that no whole answer came."""

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
    """Send each request once, over `connections` connections that are kept open."""
    return asyncio.run(_send_all(url, headers, iter(requests), connections))


async def _send_all(
    url: str, headers: dict[str, str], requests: Iterator[Any], connections: int
) -> list[Answered]:
    answered: list[Answered] = []
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def work() -> None:
            for request in requests:
                answered.append(await _send(session, url, request))

        await asyncio.gather(*(work() for _ in range(connections)))
    return answered


async def _send(session: aiohttp.ClientSession, url: str, request: Any) -> Answered:
    started = time.perf_counter()
    options = (
        {"data": request.body, "headers": request.headers} if isinstance(request, Sent) else {"json": request}
    )
    try:
        async with session.post(url, **options) as response:
            status, body = response.status, await response.read()
    except aiohttp.ClientError:
        status, body = 0, b""
    return Answered(request, status, body, time.perf_counter() - started)
