"""What `hopserve ready` and `drain` say of a real server, in all its states."""

from __future__ import annotations

import shutil
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import click
import httpx
import psutil
from click.testing import CliRunner

from gateway.place import Gateway
from gateway.process import start_gateway
from gateway.readiness import Readiness, is_ready_again, look
from scripts.cli.main import hopserve
from tests.conftest import Example
from tests.live_servers import until
from tests.servers import Server

RunServer = Callable[..., AbstractContextManager[Server]]


def _run(server: Server, *arguments: str) -> tuple[int, str]:
    """Exit status of a command as the process has it, and its output."""
    command = [*arguments, "--ts-config", str(server.properties.file)]
    result = CliRunner().invoke(hopserve, command, standalone_mode=False)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        assert not isinstance(result.exception, click.UsageError), result.exception
        return 1, str(result.exception)
    return int(result.return_value or 0), result.stdout


def _look(server: Server) -> Readiness:
    return look(Gateway.of(server.properties), with_gateway=False)


def _kill_workers(server: Server) -> None:
    for pid in server.ready_pids("graphsage"):
        psutil.Process(pid).kill()


def test_loading_is_told_from_broken(
    archive_of: Callable[..., Path], example: Example, tmp_path: Path, run_server: RunServer
) -> None:
    """A worker that starts again is loading; one that TorchServe has given up is not."""
    graph = tmp_path / "graph"
    shutil.copytree(example.graph, graph)
    archive = archive_of("7.0", graph_folder=graph)
    given_up_soon = tmp_path / archive.name
    with zipfile.ZipFile(archive) as read, zipfile.ZipFile(given_up_soon, "w") as write:
        for name in read.namelist():
            added = b"maxRetryTimeoutInSec: 3\n" if name == "model-config.yaml" else b""
            write.writestr(name, added + read.read(name))
    with run_server(given_up_soon) as server:
        assert _run(server, "ready", "--no-gateway") == (0, "ready\n")
        assert _run(server, "ready") == (1, "broken: the gateway does not listen\n")

        # What lies in the store and was never registered changes nothing, while another version answers.
        shutil.copy(archive_of("8.0"), server.properties.model_store)
        assert _look(server).kind == "ready"

        _kill_workers(server)
        until(lambda: _look(server).kind == "loading")
        assert "no worker of graphsage 7.0" in _look(server).reason
        assert _run(server, "ready", "--no-gateway", "--alive")[0] == 0
        until(lambda: _look(server).kind == "ready")

        graph.rename(tmp_path / "gone")
        _kill_workers(server)
        until(lambda: _look(server).kind == "broken")
        assert "given up" in _look(server).reason
        assert _run(server, "ready", "--no-gateway", "--alive")[0] == 1

        server.process.kill()
        server.process.wait(30)
        assert "does not answer" in _look(server).reason


def test_drain_waits_for_what_is_in_flight(archive_of: Callable[..., Path], run_server: RunServer) -> None:
    with run_server(archive_of()) as server:
        start_gateway(Gateway.of(server.properties))
        _drained(server)


def _drained(server: Server) -> None:
    assert _run(server, "ready") == (0, "ready\n")
    until(lambda: _ready_over_http(server) == (200, "ready"))
    answered: list[int] = []
    asked = {"node_ids": list(range(1797)), "max_staleness_ms": 0}
    url = Gateway.of(server.properties).url + "/v1/graphsage/predict"

    def ask() -> None:
        answered.append(httpx.post(url, json=asked, timeout=60).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert _run(server, "drain", "--at-least-s", "0")[0] == 0
    for thread in threads:
        thread.join(1)  # an answer that was sent is read at once
    assert answered == [200] * 8
    assert _run(server, "ready") == (1, "draining: a stop is coming\n")
    assert _run(server, "ready", "--alive")[0] == 0
    assert _ready_over_http(server) == (503, "draining")
    is_ready_again(Gateway.of(server.properties))
    until(lambda: _ready_over_http(server) == (200, "ready"))
    with httpx.Client() as client:  # whose connection is not closed behind each answer any more
        assert "connection" not in client.post(url, json={"node_id": 1}).headers


def _ready_over_http(server: Server) -> tuple[int, str]:
    answer = httpx.get(Gateway.of(server.properties).url + "/ready")
    return answer.status_code, answer.json()["state"]
