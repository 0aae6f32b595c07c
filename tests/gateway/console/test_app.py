"""Who may see the console, what it answers, and how it asks for explanations."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.console.app import PREFIX, Console
from gateway.console.look import Looker
from gateway.errors import RolloutError
from gateway.rollout.manifest import Manifest, Model
from gateway.upstream.properties import ServerProperties
from tests.gateway.console.fakes import ONE, Fakes

Client = TestClient[Any, Any]
_FILES = (
    "",
    "/",
    "/console.css",
    "/console.js",
    "/charts.js",
    "/dom.js",
    "/graph.js",
    "/tables.js",
    "/icon.svg",
)
_EXPLANATION = {"node_id": 42, "nodes": [], "edges": [], "features": []}
_ASKED = {"model": "sage", "node_id": "42"}


class _Explainer:
    """A TorchServe that explains as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, str | None]] = []
        self.answer: Callable[[Any], tuple[int, Any]] = lambda node: (200, _EXPLANATION)
        self.waiting: asyncio.Event | None = None
        self.app = web.Application()
        self.app.router.add_post("/{path:.*}", self._explain)

    async def _explain(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.asked.append((request.path, asked["node_id"], request.headers.get("Authorization")))
        assert asked["top"] == 1000
        if self.waiting is not None:
            await self.waiting.wait()
        status, content = self.answer(asked["node_id"])
        if isinstance(content, bytes):
            return web.Response(status=status, body=content)
        return web.json_response(content, status=status)


class _Opened:
    """A console, and a client of it."""

    def __init__(self) -> None:
        self.fakes = Fakes()
        self.explainer = _Explainer()
        self.manifest: Callable[[], Manifest] = lambda: Manifest(models={"sage": Model()})
        self.client: Client

    def use(self, asking: Callable[[_Opened], Awaitable[None]], folder: Path) -> None:
        async def run() -> None:
            async with TestServer(self.explainer.app) as torchserve:
                url = str(torchserve.make_url("")).rstrip("/")
                properties = _properties(folder, url)
                status: dict[str, Any] = {"decisions": {}, "problems": ["a problem"]}
                console = Console(self.manifest, self.fakes.sampler, Looker(properties), lambda: status)
                app = web.Application()
                app.add_subapp(PREFIX, console.app)
                async with TestClient(TestServer(app)) as self.client:
                    await asking(self)

        asyncio.run(run())

    async def get(self, path: str, **headers: str) -> tuple[int, bytes, Any]:
        async with self.client.get(PREFIX + path, headers=headers) as response:
            return response.status, await response.read(), response.headers

    async def look(self, asked: Any, **headers: str) -> tuple[int, Any]:
        body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
        headers = {"Content-Type": "application/json", **headers}
        async with self.client.post(f"{PREFIX}/look", data=body, headers=headers) as response:
            content = await response.json()
            return response.status, content


def _properties(folder: Path, inference_url: str) -> ServerProperties:
    key = {"key": "secret", "expiration time": "2999-01-01T00:00:00Z"}
    keys = folder / "key_file.json"
    keys.write_text(json.dumps({"inference": key, "management": key, "API": {"key": "api"}}))
    return ServerProperties(
        file=folder / "config.properties",
        inference_url=inference_url,
        management_url="http://127.0.0.1:1",
        metrics_url="http://127.0.0.1:1",
        model_store=folder,
        key_file=keys,
        token_auth=True,
    )


@pytest.fixture
def opened() -> _Opened:
    return _Opened()


@pytest.mark.parametrize("path", [*_FILES, "/state", "/nothing"])
def test_every_answer_forbids_what_is_not_its_own(opened: _Opened, path: str, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        status, body, headers = await opened.get(path)
        assert status == (404 if path == "/nothing" else 200)
        assert body
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"

    opened.use(asking, tmp_path)


@pytest.mark.parametrize("path", ["", "/state", "/console.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8002"},
        {"Host": "localhost.evil.example"},
        {"Host": "10.0.0.1:8002"},
        {"Host": "[fe80::1]:8002"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_other_sites_and_other_names_get_nothing(
    opened: _Opened, path: str, headers: dict[str, str], tmp_path: Path
) -> None:
    async def asking(opened: _Opened) -> None:
        status, body, _ = await opened.get(path, **headers)
        assert (status, json.loads(body)["error"]["code"]) == (403, "forbidden")
        status, content = await opened.look(_ASKED, **headers)
        assert (status, content["error"]["code"]) == (403, "forbidden")
        assert opened.explainer.asked == []

    opened.use(asking, tmp_path)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:9000"},
        {"Host": "LOCALHOST"},
        {"Host": "[::1]:8002", "Origin": "http://[::1]:8002"},
        {"Host": "127.0.0.1:9000", "Origin": "http://127.0.0.1:9000", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_loopback_by_any_name_and_port_is_let_in(
    opened: _Opened, headers: dict[str, str], tmp_path: Path
) -> None:
    async def asking(opened: _Opened) -> None:
        assert (await opened.get("/state", **headers))[0] == 200
        assert (await opened.look(_ASKED, **headers))[0] == 200

    opened.use(asking, tmp_path)


def test_a_link_elsewhere_may_lead_to_the_page(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await opened.get("", **headers))[0] == 200
        assert (await opened.look(_ASKED, **headers))[0] == 403

    opened.use(asking, tmp_path)


def test_the_look_up_takes_json_alone(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert (await opened.look(_ASKED, **{"Content-Type": kind}))[0] == 403
        assert (await opened.get("/look"))[0] == 405
        async with opened.client.post(f"{PREFIX}/state", json={}) as response:
            assert response.status == 405
        for bad in (
            b"{",
            b"[]",
            {},
            {**_ASKED, "more": 1},
            {**_ASKED, "node_id": 42},
            {**_ASKED, "node_id": ""},
            {**_ASKED, "model": "../models"},
            {**_ASKED, "version": "1.0/../../x"},
            {**_ASKED, "version": "1.0?x"},
        ):
            status, content = await opened.look(bad)
            assert (status, content["error"]["code"]) == (400, "malformed"), bad
        status, content = await opened.look({**_ASKED, "node_id": "x" * 20_000})
        assert (status, content["error"]["code"]) == (413, "request_too_large")
        assert opened.explainer.asked == []

    opened.use(asking, tmp_path)


def test_points_are_sent_once_to_each_page(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        for requests in (0, 20, 40):
            opened.fakes.envoy = {ONE: (requests, 0, 0)}
            opened.fakes.sample()
        first = json.loads((await opened.get("/state"))[1])
        assert (first["first"], first["last"]) == (1, 3)
        assert first["models"]["sage"]["series"]["1.0"]["rate"] == [None, 10.0, 10.0]
        assert first["problems"] == ["a problem"]
        opened.fakes.sample()
        query = f"?run={first['run']}&since=3"
        assert json.loads((await opened.get(f"/state{query}"))[1])["first"] == 4
        for other in ("?run=other&since=3", f"?run={first['run']}&since=x", f"?run={first['run']}&since=99"):
            assert json.loads((await opened.get(f"/state{other}"))[1])["first"] == 1

    opened.use(asking, tmp_path)


def test_a_state_that_cannot_be_read_is_a_problem_to_show(opened: _Opened, tmp_path: Path) -> None:
    def unreadable() -> Manifest:
        raise RolloutError("rollouts.json: is no state of rollouts")

    async def asking(opened: _Opened) -> None:
        status, body, _ = await opened.get("/state")
        problems = json.loads(body)["problems"]
        assert (status, problems) == (200, ["a problem", "rollouts.json: is no state of rollouts"])

    opened.manifest = unreadable
    opened.use(asking, tmp_path)


def test_an_explanation_is_asked_for_with_torchserves_key(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        assert await opened.look(_ASKED) == (200, {"status": 200, "answer": _EXPLANATION})
        await opened.look({**_ASKED, "version": "2.0", "node_id": "paper-7"})
        assert opened.explainer.asked == [
            ("/explanations/sage", 42, "Bearer secret"),
            ("/explanations/sage/2.0", "paper-7", "Bearer secret"),
        ]

    opened.use(asking, tmp_path)


def test_numbers_are_asked_for_as_texts_where_ids_are_texts(opened: _Opened, tmp_path: Path) -> None:
    error = {"error": {"code": "malformed", "message": "node_id: the graph's ids are texts"}}
    opened.explainer.answer = lambda node: (200, _EXPLANATION) if node == "42" else (400, error)

    async def asking(opened: _Opened) -> None:
        assert (await opened.look(_ASKED))[1]["status"] == 200
        assert [node for _, node, _ in opened.explainer.asked] == [42, "42"]
        # Where neither will do, the first answer counts, and what is no number in its one form is a text.
        assert (await opened.look({**_ASKED, "node_id": "7"}))[1] == {"status": 400, "answer": error}
        opened.explainer.asked.clear()
        for text in ("042", "+42", "4_2", "4.0", str(2**63)):
            await opened.look({**_ASKED, "node_id": text})
        assert [node for _, node, _ in opened.explainer.asked] == ["042", "+42", "4_2", "4.0", str(2**63)]

    opened.use(asking, tmp_path)


@pytest.mark.parametrize(
    ("status", "content", "shown"),
    [
        (
            404,
            {"error": {"code": "unknown_node", "message": "no node 42"}},
            (404, "unknown_node", "no node 42"),
        ),
        (
            404,
            {"code": 404, "type": "T", "message": "Model not found"},
            (404, "torchserve", "Model not found"),
        ),
        (503, b"<html>", (503, "torchserve", "TorchServe answered 503")),
        (302, b"", (502, "torchserve", "TorchServe answered 302")),
        (200, {"node_id": 42}, (502, "no_explanation", "TorchServe's answer is no explanation")),
        (200, b"x" * 17_000_000, (502, "no_explanation", "TorchServe's answer is no explanation")),
    ],
)
def test_errors_have_one_form(
    opened: _Opened, status: int, content: Any, shown: tuple[int, str, str], tmp_path: Path
) -> None:
    opened.explainer.answer = lambda node: (status, content)

    async def asking(opened: _Opened) -> None:
        http_status, answer = await opened.look(_ASKED)
        error = answer["answer"]["error"]
        assert (http_status, answer["status"], error["code"]) == (200, *shown[:2])
        assert error["message"].startswith(shown[2])

    opened.use(asking, tmp_path)


def test_a_few_nodes_are_looked_up_at_once(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        opened.explainer.waiting = asyncio.Event()
        looks = [asyncio.create_task(opened.look(_ASKED)) for _ in range(4)]
        while len(opened.explainer.asked) < 4:  # noqa: ASYNC110 - a server's requests wake nobody here
            await asyncio.sleep(0.01)
        _, busy = await opened.look(_ASKED)
        assert (busy["status"], busy["answer"]["error"]["code"]) == (429, "busy")
        opened.explainer.waiting.set()
        assert {answer["status"] for _, answer in await asyncio.gather(*looks)} == {200}

    opened.use(asking, tmp_path)


def test_a_torchserve_that_is_away_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        away = Looker(dataclasses.replace(_properties(tmp_path, "http://127.0.0.1:1")))
        console = Console(Manifest, Fakes().sampler, away, dict)
        app = web.Application()
        app.add_subapp(PREFIX, console.app)
        async with (
            TestClient(TestServer(app)) as client,
            client.post(f"{PREFIX}/look", json=_ASKED) as response,
        ):
            answer = await response.json()
            assert (answer["status"], answer["answer"]["error"]["code"]) == (502, "unavailable")

    asyncio.run(run())


def test_the_page_names_nothing_outside(opened: _Opened, tmp_path: Path) -> None:
    async def asking(opened: _Opened) -> None:
        for path in _FILES:
            text = (await opened.get(path))[1].decode()
            rest = text.replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in rest
            assert "https:" not in rest
            assert "innerHTML" not in rest
            assert "style=" not in rest

    opened.use(asking, tmp_path)
