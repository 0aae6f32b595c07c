"""Real TorchServe servers, on free ports, each in a folder of its own."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from gateway.place import SETTINGS_NAME, Gateway
from gateway.process import kill_gateway
from gateway.upstream.client import Client
from gateway.upstream.process import find_server, kill_server, start_server, wait_until_ready
from gateway.upstream.properties import ServerProperties, read_properties
from gateway.upstream.store import list_archives
from gateway.upstream.tokens import Tokens

_ROOT = Path(__file__).parents[1]
_ADDRESSES = re.compile(r"127\.0\.0\.1:(80\d\d)|(?<=_port=)(70\d\d)")


@dataclass(frozen=True)
class Server:
    """A running server, and a way to ask it."""

    properties: ServerProperties
    process: psutil.Process
    grpc_port: int

    @property
    def folder(self) -> Path:
        return self.properties.file.parent

    def headers(self) -> dict[str, str]:
        return Tokens(self.properties).headers("inference")

    def url(self, model: str = "graphsage", version: str = "") -> str:
        return f"{self.properties.inference_url}/predictions/{model}" + (version and f"/{version}")

    def ask(
        self, request: Any, *, model: str = "graphsage", version: str = "", timeout_s: float = 60
    ) -> httpx.Response:
        url = self.url(model, version)
        return httpx.post(url, json=request, headers=self.headers(), timeout=timeout_s)

    def client(self) -> Client:
        return Client(self.properties)

    def worker_pids(self, model: str = "graphsage", version: str = "1.0") -> list[int]:
        with self.client() as client:
            return [worker.pid for worker in client.version(model, version).workers]

    def ready_pids(self, model: str) -> list[int]:
        """The workers of a model's default version that take requests."""
        with self.client() as client:
            return [worker.pid for worker in client.version(model).workers if worker.status == "READY"]

    def metrics(self) -> str:
        return httpx.get(f"{self.properties.metrics_url}/metrics").text


def make_root(folder: Path) -> int:
    """The project's own configuration, and one of a gateway, with free ports; returns that of gRPC."""
    text = (_ROOT / "config.properties").read_text()
    ports: dict[str, int] = {}
    with ExitStack() as reserved:
        for match in _ADDRESSES.finditer(text):
            probe = reserved.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports[_port(match)] = probe.getsockname()[1]
    # All at once: a new port may hold the digits of another old one.
    text = _ADDRESSES.sub(lambda found: found[0].replace(_port(found), str(ports[_port(found)])), text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.properties").write_text(text)
    shutil.copytree(_ROOT / "deploy", folder / "deploy")
    (folder / "model_store").mkdir()
    write_settings(folder, {})
    return ports["7070"]


def _port(address: re.Match[str]) -> str:
    return address[1] or address[2]


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as reserved:
        probes = [reserved.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a `gateway.yaml` with free ports."""
    port, admin_port, controller_port = free_ports(3)
    listen = {"port": port, **settings.get("listen", {})}
    ports = {"admin_port": admin_port, "controller_port": controller_port}
    (folder / SETTINGS_NAME).write_text(yaml.safe_dump({**ports, **settings, "listen": listen}))


@contextmanager
def running(folder: Path, *archives: Path) -> Iterator[Server]:
    """A server of these archives, until the end of the block."""
    grpc_port = make_root(folder)
    properties = read_properties(folder / "config.properties")
    for archive in archives:
        shutil.copy(archive, properties.model_store)
    try:
        yield Server(properties, _start(properties, [archive.name for archive in archives]), grpc_port)
    finally:
        kill_all(properties)


def kill_all(properties: ServerProperties) -> None:
    """Kill whatever of a server and its gateway still runs."""
    kill_gateway(Gateway.of(properties))
    left = find_server(properties)
    if left is not None:
        kill_server(left)


def kill_and_start_again(server: Server) -> None:
    """Kill a server and all that it has started (-9), and start one in the same folder."""
    left = find_server(server.properties)
    if left is not None:
        kill_server(left)
    archives = [stored.file_name for stored in list_archives(server.properties.model_store)]
    _start(server.properties, archives)


def _start(properties: ServerProperties, archives: list[str]) -> psutil.Process:
    process = start_server(properties, archives, properties.file.parent / "tmp")
    expected = [(stored.model, stored.version) for stored in list_archives(properties.model_store)]
    wait_until_ready(process, properties, expected, timeout_s=300)
    return process
