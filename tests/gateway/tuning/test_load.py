"""What clients of both kinds measure, of a server whose times are known."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from aiohttp import web

from gateway.tuning.load import send_all, send_at_rate


class _Server:
    """Answers at once, but stands still for a while after so many requests."""

    def __init__(self, stands_still_after: int, seconds: float) -> None:
        self.url = ""
        self.most_at_once = 0
        self._after, self._seconds = stands_still_after, seconds
        self._asked = self._at_once = 0
        self._moves = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self._asked += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        if self._asked == self._after:
            time.sleep(self._seconds)  # noqa: ASYNC251 - so that nobody is answered
        await asyncio.sleep(0.001)
        self._at_once -= 1
        return web.json_response(await request.json())

    @contextmanager
    def running(self) -> Iterator[None]:
        loop, ready = asyncio.new_event_loop(), threading.Event()
        app = web.Application()
        app.router.add_post("/", self.answer)
        runner = web.AppRunner(app)

        async def start() -> None:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            (socket,) = runner.addresses
            self.url = f"http://127.0.0.1:{socket[1]}/"
            ready.set()

        def run() -> None:
            loop.run_until_complete(start())
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait(10)
        yield
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(100, 0.5)
    with server.running():
        yield server


def test_a_closed_loop_asks_by_so_many_at_once(server: _Server) -> None:
    answers = send_all(server.url, {}, [{"n": n} for n in range(200)], connections=4)
    assert server.most_at_once == 4
    assert {answer.status for answer in answers} == {200}
    assert sorted(answer.request["n"] for answer in answers) == list(range(200))
    assert sum(answer.seconds > 0.25 for answer in answers) <= 4, "those in flight, and nobody else, are late"


def test_an_open_loop_omits_nobody_whom_a_pause_makes_late(server: _Server) -> None:
    answers = send_at_rate(server.url, {}, [{"n": n} for n in range(400)], rate=400, connections=4)
    assert {answer.status for answer in answers} == {200}
    late = np.array([answer.seconds for answer in answers]) > 0.25
    assert late.sum() > 60, "as many as come in half of the pause, and not one per connection"


def test_who_cannot_be_reached_is_told_by_status_0() -> None:
    (answer,) = send_at_rate("http://127.0.0.1:1/", {}, [{}], rate=100)
    assert (answer.status, answer.body) == (0, b"")
