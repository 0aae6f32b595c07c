"""Configurations that a real Envoy checks, and one that it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import pytest

from gateway.envoy.bootstrap import EnvoyFiles
from gateway.envoy.control import EnvoyControl
from gateway.envoy.process import find_envoy, kill_envoy, start_envoy, stop_envoy
from gateway.errors import GatewayError
from gateway.settings import GatewaySettings
from gateway.traffic import WHOLE, ModelTraffic, Traffic, VersionTraffic
from gateway.upstream.properties import ServerProperties
from tests.live_servers import until
from tests.servers import free_ports

_KEYS = {"alice": "0123456789abcdef"}


def _traffic(**weights: int) -> Traffic:
    versions = [
        VersionTraffic(name.removeprefix("v").replace("_", "."), weight) for name, weight in weights.items()
    ]
    return Traffic((ModelTraffic("graphsage", tuple(versions)),))


def _control(folder: Path, settings: GatewaySettings, port: int | None = None) -> EnvoyControl:
    url = metrics_url = f"http://127.0.0.1:{port or free_ports(1)[0]}"
    properties = ServerProperties(
        folder / "config.properties", url, url, metrics_url, folder, folder / "key_file.json", token_auth=True
    )
    return EnvoyControl(_files(folder), settings, properties)


def _files(folder: Path) -> EnvoyFiles:
    return EnvoyFiles(folder / "envoy", folder / "gateway.log")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"api_keys": {"required": True}},
        {
            "limits": {
                "per_key": {"requests_per_s": 0.1, "burst": 1},
                "per_address": {"requests_per_s": 1e6, "burst": 1_000_000},
                "keys": {"alice": {"requests_per_s": 7.5, "burst": 3}},
            }
        },
        {"tracing": {"host": "collector.example"}},
        {"tracing": {"host": "collector.example"}, "metrics": {"address": "0.0.0.0"}},
        {"breaker": {"error_rate": 0, "low_share": 0.0001}},
        {"retries": {"tries": 0, "budget": 0}, "time_outs": {"answer_s": 0.5, "try_s": 86_400}},
        {"listen": {"address": "0.0.0.0", "trusted_proxies": 2}, "log": {"sample": 1}},
    ],
)
@pytest.mark.parametrize("keys", [{}, _KEYS])
def test_envoy_takes_what_is_rendered(
    tmp_path: Path, settings: dict[str, object], keys: dict[str, str]
) -> None:
    shadowed = ModelTraffic(
        "fraud", (VersionTraffic("1.0", WHOLE), VersionTraffic("2.1", 0)), "2.1", 0.25, 1.0
    )
    empty = ModelTraffic("empty", ())
    traffic = Traffic((*_traffic(v1_0=9_000, v2_0=1_000).models, shadowed, empty))
    control = _control(tmp_path, msgspec.convert(settings, GatewaySettings))
    control.check(traffic, keys)


def test_what_envoy_refuses_is_said(tmp_path: Path) -> None:
    settings = msgspec.convert({"listen": {"address": "nowhere"}}, GatewaySettings)
    with pytest.raises(GatewayError, match="Envoy refuses its configuration: .*nowhere"):
        _control(tmp_path, settings).check(_traffic(v1_0=WHOLE), {})


@pytest.fixture
def settings() -> GatewaySettings:
    port, admin_port, controller_port = free_ports(3)
    ports = {"listen": {"port": port}, "admin_port": admin_port, "controller_port": controller_port}
    return msgspec.convert(ports, GatewaySettings)


@pytest.fixture
def control(tmp_path: Path, settings: GatewaySettings) -> Iterator[EnvoyControl]:
    """A running Envoy, behind which there is nothing."""
    control = _control(tmp_path, settings)
    control.write_all(_traffic(v1_0=WHOLE), {}, "secret-key")
    start_envoy(_files(tmp_path), settings, tmp_path / "envoy.log")
    yield control
    left = find_envoy(_files(tmp_path))
    if left is not None:
        kill_envoy(left)


def test_traffic_moves_and_files_say_so(
    tmp_path: Path, settings: GatewaySettings, control: EnvoyControl
) -> None:
    url = f"http://127.0.0.1:{settings.listen.port}/v1/graphsage/predict"

    def status_of(version: str) -> int:
        return httpx.post(url, json={}, headers={"x-model-version": version}).status_code

    # Nobody is behind it: what is routed is answered 503.
    assert (status_of("1.0"), status_of("2.0")) == (503, 404)
    moved = _traffic(v1_0=5_000, v2_0=5_000)
    assert control.is_current(_traffic(v1_0=WHOLE))
    assert not control.is_current(moved)
    control.move(moved)
    assert control.is_current(moved)
    assert (status_of("1.0"), status_of("2.0")) == (503, 503)
    control.move(_traffic(v2_0=WHOLE))
    assert (status_of("1.0"), status_of("2.0")) == (404, 503)
    assert "graphsage@1.0" not in _files(tmp_path).clusters.read_text()
    control.move(_traffic(v2_0=WHOLE))  # once more is no harm


def test_files_with_keys_are_nobody_elses(tmp_path: Path, control: EnvoyControl) -> None:
    folder = _files(tmp_path).folder
    assert folder.stat().st_mode & 0o077 == 0
    assert "secret-key" in _files(tmp_path).key.read_text()


def test_an_address_that_is_taken_is_said(
    tmp_path: Path, settings: GatewaySettings, control: EnvoyControl
) -> None:
    other = _control(tmp_path / "other", settings)
    other.write_all(_traffic(v1_0=WHOLE), {}, "key")
    with pytest.raises(GatewayError, match="Envoy does not start: .*[Aa]ddress"):
        start_envoy(_files(tmp_path / "other"), settings, tmp_path / "other.log")


def test_it_stops_when_it_is_told(tmp_path: Path, settings: GatewaySettings, control: EnvoyControl) -> None:
    running = find_envoy(_files(tmp_path))
    assert running is not None
    stop_envoy(running, settings, drain_timeout_s=10)
    assert find_envoy(_files(tmp_path)) is None


class _Failing(BaseHTTPRequestHandler):
    """A server that is healthy, but fails at whatever it is asked, as TorchServe does when a worker dies."""

    asked: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["content-length"])))
        self._answer(500)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is there
        pass


def test_only_what_reads_is_sent_again(tmp_path: Path, settings: GatewaySettings) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        control = _control(tmp_path, settings, port=server.server_port)
        control.write_all(_traffic(v1_0=WHOLE), {}, "secret-key")
        started = start_envoy(_files(tmp_path), settings, tmp_path / "envoy.log")
        try:
            reads, stores = b'{"node_id": 1}', b'{"node": {"node_id": 1}, "store": true}'
            url = f"http://127.0.0.1:{settings.listen.port}/v1/graphsage/predict"
            until(lambda: httpx.post(url, content=b"{}").status_code == 500)
            for body in (reads, stores):
                httpx.post(url, content=body)
            assert _Failing.asked.count(reads) > 1
            assert _Failing.asked.count(stores) == 1
        finally:
            kill_envoy(started)
            server.shutdown()
