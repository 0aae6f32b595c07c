"""A real balancer in front of stand-ins for hosts, which can be told how to behave."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import trustme
import yaml
from aiohttp import web
from click.testing import CliRunner

from gateway.envoy.admin import Admin
from gateway.envoy.hosts import HOSTS
from gateway.hosts.place import Balancer
from gateway.process import kill_gateway, start_gateway
from gateway.tuning.load import Sent, send_all
from scripts.cli.main import hopserve
from tests.live_servers import until
from tests.servers import free_ports

_KEY = "host-0123456789abcdef"


@dataclass
class Host:
    """What stands in for a host's gateway.

    Args:
        status, headers: of its answers.
        is_ready: what it says at `/ready`.
        delay_s: before each answer.
    """

    name: str
    port: int
    tls: ssl.SSLContext | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_ready: bool = True
    delay_s: float = 0.0
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/ready", self._ready)
        app.router.add_route("*", "/v1/{model}/{verb}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls).start()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if self.is_ready else 503)

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((await request.text(), dict(request.headers)))
        await asyncio.sleep(self.delay_s)
        return web.json_response({"host": self.name}, status=self.status, headers=self.headers)


@dataclass(frozen=True)
class Balanced:
    file: Path
    hosts: dict[str, Host]

    @property
    def url(self) -> str:
        return Balancer.of(self.file).url

    def ask(self, request: Any, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/m/predict", json=request, headers=headers, timeout=30)

    def owner(self, node: int) -> str:
        name: str = self.ask({"node_id": node}).json()["host"]
        return name

    def states(self) -> list[str]:
        with Admin(Balancer.of(self.file).settings.admin_port) as admin:
            return [each.state for each in admin.endpoints(HOSTS)]

    def run(self, command: str) -> tuple[int, str]:
        result = CliRunner().invoke(
            hopserve, ["balancer", command, "--hosts", str(self.file)], standalone_mode=False
        )
        return int(result.return_value or 0), result.stdout

    def write(self, **settings: Any) -> None:
        self.file.write_text(yaml.safe_dump({**yaml.safe_load(self.file.read_text()), **settings}))


def _listed(hosts: Mapping[str, Host]) -> list[dict[str, str]]:
    return [{"name": name, "address": f"127.0.0.1:{host.port}"} for name, host in hosts.items()]


@contextmanager
def _balanced(
    folder: Path, names: str = "abc", context: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[Balanced]:
    *ports, port, admin_port = free_ports(len(names) + 2)
    hosts = {name: Host(name, ports[number], context) for number, name in enumerate(names)}
    file = folder / "hosts.yaml"
    content = {"listen": {"port": port}, "admin_port": admin_port, "health_s": 0.2, "hosts": _listed(hosts)}
    file.write_text(yaml.safe_dump({**content, **settings}))
    balanced = Balanced(file, hosts)
    try:
        for host in hosts.values():
            host.__enter__()
        start_gateway(Balancer.of(file))
        until(lambda: set(balanced.states()) == {"ready"})
        yield balanced
    finally:
        kill_gateway(Balancer.of(file))
        for host in hosts.values():
            host.__exit__()


def _shares(balanced: Balanced, num_nodes: int = 300) -> dict[int, str]:
    answers = send_all(
        f"{balanced.url}/v1/m/predict", {}, [{"node_id": node} for node in range(num_nodes)], 4
    )
    return {answer.request["node_id"]: json.loads(answer.body)["host"] for answer in answers}


def test_most_nodes_stay_when_a_host_goes_and_all_come_back(tmp_path: Path) -> None:
    with _balanced(tmp_path, max_load=100) as balanced:
        before = _shares(balanced)
        assert min(Counter(before.values()).values()) > 300 / 3 / 2
        balanced.hosts["b"].is_ready = False
        until(lambda: sorted(balanced.states()) == ["not ready", "ready", "ready"])
        assert balanced.run("status")[0] == 1
        during = _shares(balanced)
        assert set(during.values()) == {"a", "c"}
        # Those that are left get more points on the ring, and so some of each other's nodes.
        moved = [node for node in before if before[node] not in {"b", during[node]}]
        assert len(moved) < 300 / 4
        balanced.hosts["b"].is_ready = True
        until(lambda: set(balanced.states()) == {"ready"})
        assert _shares(balanced) == before
        assert balanced.run("status")[0] == 0


def test_hosts_and_keys_may_change_while_it_runs(tmp_path: Path) -> None:
    with _balanced(tmp_path) as balanced:
        first_two = {name: host for name, host in balanced.hosts.items() if name != "c"}
        balanced.write(hosts=_listed(first_two))
        until(lambda: len(balanced.states()) == 2)
        assert set(_shares(balanced, 60).values()) == {"a", "b"}
        (tmp_path / "keys.yaml").write_text("me: client-0123456789abcdef\n")
        (tmp_path / "key").write_text(_KEY + "\n")
        balanced.write(
            api_keys={"file": "keys.yaml", "required": True},
            host_key={"file": "key"},
            hosts=_listed(balanced.hosts),
        )
        until(lambda: balanced.ask({"node_id": 1}).status_code == 401)
        until(lambda: len(balanced.states()) == 3 and set(balanced.states()) == {"ready"})
        answer = balanced.ask({"node_id": 1}, **{"x-api-key": "client-0123456789abcdef"})
        assert answer.status_code == 200
        _, sent = balanced.hosts[answer.json()["host"]].asked[-1]
        assert sent["X-Api-Key" if "X-Api-Key" in sent else "x-api-key"] == _KEY
        good = balanced.file.read_text()
        balanced.write(hosts=[])
        time.sleep(2)
        balanced.file.write_text(good)
        assert balanced.ask({"node_id": 1}, **{"x-api-key": "client-0123456789abcdef"}).status_code == 200
        log = Balancer.of(balanced.file).log.read_text()
        assert "hosts.yaml: Expected `array` of length >= 1 - at `$.hosts`" in log


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (503, {}),
        (502, {}),
        (504, {}),
        (200, {"x-hopserve-degraded": "precomputed"}),
        (503, {"x-hopserve-degraded": "unavailable"}),
    ],
)
def test_what_a_host_cannot_answer_another_is_asked(
    tmp_path: Path, status: int, headers: dict[str, str]
) -> None:
    with _balanced(tmp_path, "ab") as balanced:
        one = balanced.hosts[balanced.owner(7)]
        one.status, one.headers = status, headers
        answer = balanced.ask({"node_id": 7})
        assert (answer.status_code, answer.json()["host"]) == (200, "b" if one.name == "a" else "a")
        # What neither can answer better is what the client gets.
        for host in balanced.hosts.values():
            host.status, host.headers = status, headers
        answer = balanced.ask({"node_id": 7})
        assert answer.status_code == status
        assert answer.headers.get("x-hopserve-degraded") == headers.get("x-hopserve-degraded")


def test_other_answers_are_not_asked_for_again(tmp_path: Path) -> None:
    with _balanced(tmp_path, "ab") as balanced:
        for status in (400, 401, 404, 413, 429, 500):
            for host in balanced.hosts.values():
                host.status = status
                host.asked.clear()
            assert balanced.ask({"node_id": 7}).status_code == status
            assert sum(len(host.asked) for host in balanced.hosts.values()) == 1
        for host in balanced.hosts.values():
            host.status = 503
            host.asked.clear()
        stored = {"node": {"node_id": 9, "x": [1.0]}, "store": True}
        assert balanced.ask(stored).status_code == 503
        assert sum(len(host.asked) for host in balanced.hosts.values()) == 1


def test_none_ready_is_better_asked_than_refused(tmp_path: Path) -> None:
    """It may be only what says so that is gone."""
    with _balanced(tmp_path, "ab") as balanced:
        assert httpx.get(f"{balanced.url}/ready").status_code == 200
        for host in balanced.hosts.values():
            host.is_ready = False
        until(lambda: set(balanced.states()) == {"not ready"})
        assert balanced.ask({"node_id": 7}).status_code == 200
        assert httpx.get(f"{balanced.url}/ready").status_code == 503


def test_a_node_that_everybody_asks_for_does_not_bury_its_host(tmp_path: Path) -> None:
    with _balanced(tmp_path, "abc", max_load=1.2) as balanced:
        for host in balanced.hosts.values():
            host.delay_s = 0.05
        request = Sent(b'{"node_id": 7}', {"content-type": "application/json"})
        answers = send_all(f"{balanced.url}/v1/m/predict", {}, [request] * 240, 24)
        assert {answer.status for answer in answers} == {200}
        asked = Counter({name: len(host.asked) for name, host in balanced.hosts.items()})
        assert max(asked.values()) < 0.85 * 240


def test_hosts_are_told_nothing_that_clients_make_up(tmp_path: Path) -> None:
    with _balanced(tmp_path, "ab") as balanced:
        made_up = {"x-hopserve-affinity": "7", "x-hopserve-verb": "models", "authorization": "Bearer x"}
        name = balanced.ask({"node_id": 8}, **made_up).json()["host"]
        assert name == balanced.owner(8)
        _, sent = balanced.hosts[name].asked[0]
        names = {header.lower() for header in sent}
        assert not {"x-hopserve-verb", "authorization"} & names


def test_connections_to_hosts_are_encrypted_and_checked(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hosts.test").configure_cert(context)
    tls = {"authority": "authority.pem", "server_name": "hosts.test"}
    with _balanced(tmp_path, "ab", context, tls=tls) as balanced:
        assert balanced.ask({"node_id": 7}).status_code == 200
        balanced.write(tls={**tls, "server_name": "other.test"})
        until(lambda: set(balanced.states()) == {"not ready"})
        assert balanced.ask({"node_id": 7}).status_code == 503
