"""Versions side by side, managed through `hopserve models` and through REST."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import handler
from gateway.errors import Refused, UpstreamError
from gateway.tuning.load import Answered, send_all
from gateway.upstream.tokens import Tokens
from scripts.cli.main import hopserve
from tests.servers import Server

RunServer = Callable[..., AbstractContextManager[Server]]


def _hopserve(server: Server, *arguments: str) -> str:
    result = CliRunner().invoke(
        hopserve, [*arguments, "--ts-config", str(server.properties.file)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def _listed(server: Server) -> dict[str, dict[str, Any]]:
    return {row["version"]: row for row in json.loads(_hopserve(server, "models", "list"))}


def test_a_second_version_beside_the_first(archive_of: Callable[..., Path], run_server: RunServer) -> None:
    first, second = archive_of("1.0"), archive_of("2.0", batch_size=8)
    with run_server(first) as server:
        shutil.copy(second, server.properties.model_store)
        assert "2.0" in _hopserve(server, "models", "register", "graphsage-2.0.mar")
        versions = {
            "1.0": server.ask({"node_id": 42}, version="1.0"),
            "2.0": server.ask({"node_id": 42}, version="2.0"),
        }
        assert {name: answer.json()["model_version"] for name, answer in versions.items()} == {
            "1.0": "1.0",
            "2.0": "2.0",
        }
        listed = _listed(server)
        assert (listed["1.0"]["default"], listed["2.0"]["default"]) == (True, False)
        assert (listed["1.0"]["batch_size"], listed["2.0"]["batch_size"]) == (64, 8)
        assert server.ask({"node_id": 42}).json()["model_version"] == "1.0"

        _hopserve(server, "models", "set-default", "graphsage", "2.0")
        assert server.ask({"node_id": 42}).json()["model_version"] == "2.0"

        _hopserve(server, "models", "scale", "graphsage", "2.0", "2")
        assert _listed(server)["2.0"]["workers"] == {"ready": 2, "min": 2, "max": 2}
        assert len(set(server.worker_pids(version="2.0"))) == 2

        _hopserve(server, "models", "unregister", "graphsage", "1.0")
        assert list(_listed(server)) == ["2.0"]
        assert server.ask({"node_id": 42}, version="1.0").status_code == 404


def test_two_versions_run_their_own_handler_code(
    archive_of: Callable[..., Path], run_server: RunServer, tmp_path: Path
) -> None:
    package = tmp_path / "handler"
    shutil.copytree(Path(handler.__file__).parent, package)
    answers = package / "answers.py"
    text = answers.read_text()
    assert '"source": source' in text
    answers.write_text(text.replace('"source": source', '"source": "fallback"'))
    other = archive_of("1.1", handler_package=package)
    with run_server(archive_of("1.0"), other) as server:
        sources = [
            server.ask({"node_id": 42, "max_staleness_ms": 0}, version=version).json()["source"]
            for version in ("1.0", "1.1")
        ]
        assert sources == ["live", "fallback"]


def test_the_readmes_curls_on_the_management_api(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    """The same as `hopserve models`, by hand."""
    with run_server(archive_of("1.0")) as server:
        shutil.copy(archive_of("2.0"), server.properties.model_store)
        headers = {"Authorization": f"Bearer {Tokens(server.properties).get('management')}"}
        url = server.properties.management_url
        with httpx.Client(headers=headers, timeout=60) as http:
            added = {"url": "graphsage-2.0.mar", "initial_workers": 1, "synchronous": "true"}
            assert http.post(f"{url}/models", params=added).status_code == 200
            scaled = {"min_worker": 2, "synchronous": "true"}
            assert http.put(f"{url}/models/graphsage/2.0", params=scaled).status_code == 200
            assert http.put(f"{url}/models/graphsage/2.0/set-default").status_code == 200
        assert server.ask({"node_id": 42}).json()["model_version"] == "2.0"
        assert len(server.worker_pids(version="2.0")) == 2


def test_what_cannot_be_registered_is_refused_with_the_reason(
    server: Server, archive_of: Callable[..., Path]
) -> None:
    with server.client() as client:
        with pytest.raises(Refused, match="409"):
            client.register("graphsage-1.0.mar")
        for elsewhere in ("https://127.0.0.1:9/model.mar", f"file://{server.folder}/model.mar"):
            with pytest.raises(Refused, match="does not match any allowed URL"):
                client.register(elsewhere)
        for missing in ("../model.mar", "missing.mar"):
            with pytest.raises(Refused):
                client.register(missing)
    for group in ("models", "rollout"):
        result = CliRunner().invoke(
            hopserve, [group, "register", "missing.mar", "--ts-config", str(server.properties.file)]
        )
        assert "missing.mar is not a file in the model store" in str(result.exception)


def test_a_version_that_cannot_load_is_refused_and_leaves_the_others(
    archive_of: Callable[..., Path], run_server: RunServer, tmp_path: Path, example: Any
) -> None:
    graph = tmp_path / "doomed"
    shutil.copytree(example.graph, graph)
    doomed = archive_of("6.6", graph_folder=graph)
    shutil.rmtree(graph)
    with run_server(archive_of("1.0")) as server:
        shutil.copy(doomed, server.properties.model_store)
        failed = CliRunner().invoke(
            hopserve,
            ["models", "register", "graphsage-6.6.mar", "--ts-config", str(server.properties.file)],
        )
        assert isinstance(failed.exception, UpstreamError)
        assert "cannot serve graphsage: " in str(failed.exception)
        assert "manifest.json: missing" in str(failed.exception)
        assert list(_listed(server)) == ["1.0"]
        assert server.ask({"node_id": 42}).status_code == 200
        assert "Hopserve is ready" in _hopserve(server, "serve", "--detach"), "a failure of the past"


def test_unregistering_waits_for_requests_in_flight(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    with run_server(archive_of("1.0"), archive_of("2.0")) as server:
        slow = {"node_ids": list(range(1797))}
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask(slow, version="2.0"))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        _hopserve(server, "models", "unregister", "graphsage", "2.0")
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 8
        assert {len(answer.json()["predictions"]) for answer in answers} == {1797}


def test_scaling_down_waits_for_requests_in_flight(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    with run_server(archive_of("1.0", num_workers=2)) as server:
        slow = {"node_ids": list(range(1797))}
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask(slow).status_code)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        _hopserve(server, "models", "scale", "graphsage", "1.0", "1")
        for thread in threads:
            thread.join()
        assert answers == [200] * 8
        assert len(server.worker_pids()) == 1


def test_a_drain_ends_also_when_clients_never_pause(server: Server) -> None:
    until = time.monotonic() + 6
    endless = iter(lambda: {"node_ids": list(range(50))} if time.monotonic() < until else None, None)
    answers: list[Answered] = []
    clients = threading.Thread(
        target=lambda: answers.extend(send_all(server.url(), server.headers(), endless, connections=16))
    )
    clients.start()
    time.sleep(1)
    with server.client() as client:
        client.drain("graphsage", "1.0", timeout_s=4)
    assert clients.is_alive(), "the clients paused"
    clients.join()
    assert {answer.status for answer in answers} == {200}


def test_a_drain_that_takes_too_long_removes_nothing(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    with run_server(archive_of("1.0"), archive_of("2.0")) as server, server.client() as client:
        thread = threading.Thread(target=lambda: server.ask({"node_ids": list(range(1797))}, version="2.0"))
        thread.start()
        time.sleep(0.05)
        with pytest.raises(UpstreamError, match="still answering requests after 0 s"):
            client.drain("graphsage", "2.0", timeout_s=0)
        thread.join()
        assert server.ask({"node_id": 1}, version="2.0").status_code == 200
