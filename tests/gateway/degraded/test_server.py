"""The application speaks as workers do, signs whatever it answers, and never keeps its loop waiting."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.degraded.server import degraded_app
from gateway.degraded.tables import LastAnswers
from tests.gateway.degraded.version import Version

PATH = "/predictions/sage/1.0"
Client = TestClient[Any, Any]


@pytest.fixture
def version(tmp_path: Path) -> Version:
    version = Version(tmp_path)
    version.precompute()
    return version


def _with(last: LastAnswers, asking: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Ask a running application."""

    async def run() -> None:
        async with TestClient(TestServer(degraded_app(last, **options))) as client:
            await asking(client)

    asyncio.run(run())


async def _json(client: Client, path: str, *, method: str = "POST", **options: Any) -> tuple[int, Any, Any]:
    """Status, JSON and headers; every answer is signed and is JSON."""
    if isinstance(options.get("data"), bytes):
        options["headers"] = {"content-type": "application/json", **options.get("headers", {})}
    async with client.request(method, path, **options) as response:
        assert response.headers["x-hopserve-worker"] == "degraded"
        assert response.content_type == "application/json"
        body = await response.read()
        return response.status, json.loads(body) if body else None, response.headers


def test_a_node_is_answered_from_the_table(version: Version) -> None:
    async def asking(client: Client) -> None:
        status, row, headers = await _json(client, PATH, json={"node_id": 3})
        assert (status, row["degraded"], headers["X-Hopserve-Degraded"]) == (200, True, "precomputed")
        assert row == version.ask({"node_id": 3})[1] | {"age_ms": row["age_ms"]}
        status, answer, headers = await _json(client, PATH, json={"node_id": 99})
        assert (status, answer["error"]["code"]) == (503, "degraded")
        assert (headers["Retry-After"], headers["X-Hopserve-Degraded"]) == ("1", "unavailable")

    _with(version.last, asking)


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"data": b"{"}, 400, "malformed"),
        ({"data": b""}, 400, "malformed"),
        ({"data": b'{"node_id": 3}', "headers": {"content-type": "text/csv"}}, 400, "malformed"),
        ({"json": {"node_id": 3}, "params": {"a": "b"}}, 400, "malformed"),
        ({"json": {"node_id": 3}, "headers": {"explain": "True"}}, 400, "malformed"),
        ({"data": {"node_id": "3"}}, 400, "malformed"),
        ({"data": b" " * 2001}, 413, "request_too_large"),
        ({"method": "GET"}, 405, "method_not_allowed"),
        ({"method": "PUT", "json": {"node_id": 3}}, 405, "method_not_allowed"),
        ({"path": "/predictions/sage"}, 404, "not_found"),
        ({"path": "/"}, 404, "not_found"),
        ({"path": "/explanations/sage/1.0", "json": {"node_id": 3}}, 503, "degraded"),
        ({"path": "/predictions/sage/2.0", "json": {"node_id": 3}}, 503, "degraded"),
        ({"path": "/predictions/%00%ff/..%2f", "json": {"node_id": 3}}, 503, "degraded"),
        ({"headers": {"x-hopserve-probe": "1"}}, 503, "degraded"),
        ({"method": "GET", "headers": {"x-hopserve-probe": "1"}}, 503, "degraded"),
    ],
)
def test_refusals_have_the_form_of_those_of_workers(
    version: Version, options: dict[str, Any], status: int, code: str
) -> None:
    properties = version.properties.__class__(**{**vars(version.properties), "max_request_bytes": 2000})

    async def asking(client: Client) -> None:
        path = options.pop("path", PATH)
        found, answer, headers = await _json(client, path, **options)
        assert (found, answer["error"]["code"]) == (status, code)
        assert headers.get("retry-after") == ("1" if status == 503 else None)

    _with(LastAnswers(properties), asking)


def test_the_largest_body_that_is_allowed_is_read(version: Version) -> None:
    properties = version.properties.__class__(**{**vars(version.properties), "max_request_bytes": 2000})

    async def asking(client: Client) -> None:
        body = b'{"node_id": 3}'
        status, _, _ = await _json(client, PATH, data=body + b" " * (2000 - len(body)))
        assert status == 200

    _with(LastAnswers(properties), asking)


def test_a_probe_by_head_has_no_body(version: Version) -> None:
    async def asking(client: Client) -> None:
        status, body, _ = await _json(client, PATH, method="HEAD", headers={"x-hopserve-probe": "1"})
        assert (status, body) == (503, None)

    _with(version.last, asking)


def test_answers_are_counted_by_version_and_kind(version: Version) -> None:
    async def asking(client: Client) -> None:
        await _json(client, PATH, json={"node_id": 3})
        await _json(client, PATH, json={"node_ids": [3, 99]})
        await _json(client, PATH, json={"node_id": 99})
        await _json(client, PATH, data=b"{")
        for number in range(3):
            await _json(client, f"/predictions/made-up/{number}", json={"node_id": 1})
        async with client.get("/metrics") as response:
            assert (response.status, response.content_type) == (200, "text/plain")
            lines = [
                line
                for line in (await response.text()).splitlines()
                if line.startswith("hopserve_degraded_answers_total{")
            ]
        name = "hopserve_degraded_answers_total"
        assert sorted(lines) == [
            f'{name}{{kind="precomputed",model="sage",version="1.0"}} 2.0',
            f'{name}{{kind="refused",model="sage",version="1.0"}} 1.0',
            f'{name}{{kind="unavailable",model="",version=""}} 3.0',
            f'{name}{{kind="unavailable",model="sage",version="1.0"}} 1.0',
        ]
        async with client.get("/metrics?name[]=none") as response:
            assert (response.status, (await response.text()).strip()) == (200, "")

    _with(version.last, asking)


def test_a_failure_is_answered_and_signed(version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise MemoryError

    async def asking(client: Client) -> None:
        monkeypatch.setattr(version.last, "find", fail)
        status, answer, _ = await _json(client, PATH, json={"node_id": 3})
        assert (status, answer["error"]["code"]) == (500, "internal")

    _with(version.last, asking)


def test_the_loop_goes_on_while_tables_are_looked_at_and_too_many_are_refused(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, go_on = version.last.find, threading.Event()

    def slow(model: str, name: str) -> Any:
        go_on.wait(10)
        return find(model, name)

    async def asking(client: Client) -> None:
        monkeypatch.setattr(version.last, "find", slow)
        waiting = [asyncio.create_task(_json(client, PATH, json={"node_id": 3})) for _ in range(3)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        async with client.get("/metrics") as response:
            assert response.status == 200
        status, answer, headers = await _json(client, PATH, json={"node_id": 3})
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "degraded", "1")
        assert time.monotonic() - begun < 5
        go_on.set()
        assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200] * 3
        assert (await _json(client, PATH, json={"node_id": 3}))[0] == 200

    _with(version.last, asking, max_in_flight=3)


def test_no_answer_is_lost_while_tables_are_replaced(version: Version) -> None:
    version.last = LastAnswers(version.properties, look_s=0.005)
    stop = threading.Event()

    def replace() -> None:
        while not stop.wait(0.02):
            version.precompute()

    async def asking(client: Client) -> None:
        thread = threading.Thread(target=replace)
        thread.start()
        try:
            for _ in range(300):
                status, row, _ = await _json(client, PATH, json={"node_id": 3})
                assert (status, row["source"]) == (200, "precomputed")
        finally:
            stop.set()
            await asyncio.to_thread(thread.join)

    _with(version.last, asking)
