"""Clients of a gateway that ask it all the time."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, Self

import aiohttp

from tests.live_servers import until


class Asked(Protocol):
    """A gateway or a balancer."""

    def url(self) -> str: ...


class Clients:
    """Ask the gateway so many times a second, whatever it answers; a context manager.

    Args:
        options: of each request, besides its node.
        heard: is told each node, status and content that came.
    """

    def __init__(
        self,
        front: Asked,
        rate: float = 100,
        headers: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
        heard: Callable[[int, Any, Any], None] = lambda node, status, content: None,
    ) -> None:
        self.statuses: Counter[Any] = Counter()
        self.versions: Counter[str] = Counter()
        self.degraded = 0
        self.failures: list[Any] = []
        self._url = front.url()
        self._rate = rate
        self._headers = headers or {}
        self._options = options or {}
        self._heard = heard
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)

    def wait_for(self, num_answers: int) -> None:
        """Wait until so many requests more were answered."""
        wanted = self.statuses.total() + num_answers
        until(lambda: self.statuses.total() >= wanted)

    async def _run(self) -> None:
        draw, started, sent, tasks = random.Random(0), time.monotonic(), 0, set()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=self._headers) as session:
            while not self._stopping.is_set():
                task = asyncio.create_task(self._ask(session, draw.randrange(1_797)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
                await asyncio.sleep(max(0.0, started + sent / self._rate - time.monotonic()))
            await asyncio.gather(*tasks)

    async def _ask(self, session: aiohttp.ClientSession, node: int) -> None:
        try:
            async with session.post(self._url, json={"node_id": node} | self._options) as response:
                content, status = await response.json(), response.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            content, status = repr(error), type(error).__name__
        self.statuses[status] += 1
        self._heard(node, status, content)
        if status == 200:
            self.versions[content["model_version"]] += 1
            self.degraded += content.get("degraded", False)
        else:
            self.failures.append((status, content))
