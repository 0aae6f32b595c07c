"""What clients get while something behind the gateway, or the gateway itself, is broken or stopped."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest
from click.testing import CliRunner

from gateway.envoy.process import find_envoy
from gateway.errors import GatewayError
from gateway.place import Gateway
from gateway.process import find_controller, start_gateway
from scripts.cli.main import hopserve
from tests.clients import Clients
from tests.gateways import Front, changed_handler, fronted
from tests.live_servers import until
from tests.servers import kill_and_start_again

# Errors come and go with a file.
_FAILING = """
    def handle(self, data, context):
        answers = super().handle(data, context)
        import pathlib
        if pathlib.Path(FILE).exists():
            for row in range(len(answers)):
                if random.random() < 0.3:
                    answers[row] = b'{"error": {"code": "internal", "message": "made up"}}'
                    context.set_response_status(500, "Internal Server Error", row)
        return answers
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file; while it is there, version 2.0 errs."""
    return tmp_path_factory.mktemp("broken") / "broken"


@pytest.fixture(scope="module")
def front(
    archive_of: Callable[..., Path], broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Front]:
    """Two versions, of which 2.0 has no table."""
    folder = tmp_path_factory.mktemp("front")
    package = changed_handler(folder, _FAILING.replace("FILE", repr(str(broken))))
    settings = {"breaker": {"rest_s": 1, "max_rest_s": 2}}
    own = {"embeddings": str(folder / "embeddings")}  # the example's graph is others', too
    archives = archive_of("1.0", settings=own), archive_of("2.0", settings=own, handler_package=package)
    with fronted(folder / "ts", *archives, settings=settings) as started:
        store = str(started.server.properties.model_store)
        command = ["precompute", "graphsage", "--model-version", "1.0", "--index", "none", "--store", store]
        assert CliRunner().invoke(hopserve, command, catch_exceptions=False).exit_code == 0
        until(
            lambda: _asked_alone(started, {"node_id": 42}).status_code == 200
        )  # it looks for tables in a while
        yield started


def _asked_alone(front: Front, request: dict[str, Any]) -> httpx.Response:
    """What the controller itself answers."""
    port = front.gateway.settings.controller_port
    return httpx.post(f"http://127.0.0.1:{port}/predictions/graphsage/1.0", json=request)


def test_a_version_that_errs_too_often_is_left_alone_and_comes_back(front: Front, broken: Path) -> None:
    second = {"x-model-version": "2.0"}
    with Clients(front, headers=second) as clients:
        clients.wait_for(100)
        assert clients.failures == []
        broken.touch()
        until(lambda: any("degraded" in str(content) for _, content in clients.failures))
        broken.unlink()
        until(lambda: front.ask({"node_id": 1}, headers=second).status_code == 200)
    # Its own errors first, then clear words at once; nobody is asked a third time.
    assert {status for status, _ in clients.failures} == {500, 503}
    degraded = [content for status, content in clients.failures if status == 503]
    assert degraded[0]["error"]["code"] == "degraded"


def test_while_torchserve_is_dead_what_was_precomputed_is_answered(front: Front) -> None:
    before = front.ask({"node_id": 42}).json()
    with Clients(front, rate=50) as clients:
        clients.wait_for(50)
        for process in [*front.server.process.children(recursive=True), front.server.process]:
            process.kill()
        until(lambda: clients.degraded > 20)
        answer = front.ask({"node_id": 42})
        kill_and_start_again(front.server)
        until(lambda: not front.ask({"node_id": 42}).json().get("degraded", False))
    assert clients.failures == []
    assert answer.status_code == 200
    assert answer.headers["x-hopserve-degraded"] == "precomputed"
    row = answer.json()
    assert (row["degraded"], row["source"]) == (True, "precomputed")
    assert row["embedding"] == pytest.approx(before["embedding"], rel=1e-4, abs=1e-5)


def test_what_is_not_precomputed_is_refused_in_clear_words(front: Front) -> None:
    """Here because a controller alone gives degraded answers, whoever is asked."""
    answer = _asked_alone(front, {"node_id": 42, "max_staleness_ms": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "degraded")
    assert answer.headers["retry-after"] == "1"


def test_a_second_controller_is_refused(front: Front) -> None:
    holder = find_controller(front.gateway)
    assert holder is not None
    with pytest.raises(GatewayError, match=f"a controller runs already, as process {holder.pid}"):
        start_gateway(front.gateway)
    result = CliRunner().invoke(
        hopserve,
        ["gateway", "start", "--ts-config", str(front.server.properties.file)],
        catch_exceptions=False,
    )
    assert (result.exit_code, result.stdout) == (0, f"{front.gateway.url}\n")


def test_a_controller_that_is_killed_leaves_everything_as_it_is(front: Front) -> None:
    with Clients(front) as clients:
        front.hopserve("rollout", "start", "2.0", "--steps", "10,20,100", "--every", "3s")
        before = _killed(front.gateway, after_s=1.0)
        assert front.weights() == {"1.0": 9_000, "2.0": 1_000}
        clients.wait_for(300)
        assert front.weights() == {"1.0": 9_000, "2.0": 1_000}, "nobody moves it meanwhile"
        start_gateway(front.gateway)
        assert find_envoy(front.gateway.files) == before, "Envoy goes on"
        until(lambda: front.weights() == {"1.0": 8_000, "2.0": 2_000})
        _killed(front.gateway, after_s=0.0)
        assert "no controller runs" in front.hopserve("rollout", "status")
        front.hopserve("rollout", "rollback")  # works without a controller
        start_gateway(front.gateway)
        clients.wait_for(100)
        clients.versions.clear()
        clients.wait_for(100)
        assert set(clients.versions) == {"1.0"}
    assert clients.failures == []
    events = [event.what for event in front.model().history]
    assert events[-3:] == ["started", "advanced", "rolled back"]


def test_an_envoy_that_dies_is_started_again(front: Front) -> None:
    envoy = find_envoy(front.gateway.files)
    assert envoy is not None
    envoy.kill()
    until(lambda: find_envoy(front.gateway.files) not in {None, envoy})
    until(lambda: _status(front) == 200)


def test_traced_requests_are_logged_by_workers_with_their_stages(front: Front) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent = {"traceparent": trace, "x-request-id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}
    assert front.ask({"node_id": 42, "max_staleness_ms": 0}, headers=sent).status_code == 200
    log = front.server.folder / "logs" / "model_log.log"
    until(lambda: sent["x-request-id"] in log.read_text())
    (line,) = [line for line in log.read_text().splitlines() if sent["x-request-id"] in line]
    assert trace in line
    assert '"forward"' in line


def test_a_rehearsal_of_scaling_explains_itself(front: Front) -> None:
    with Clients(front):
        told = front.hopserve(
            *("autoscale", "graphsage", "--dry-run", "--every", "0.5s", "--for", "3s"),
            *("--target-queue-ms", "0.01", "--up-after-s", "0"),
        )
    assert "graphsage 1.0: scaling at 2: requests wait" in told
    assert len(front.server.worker_pids()) == 1


def test_spans_reach_a_collector(archive_of: Callable[..., Path], tmp_path: Path) -> None:
    received: list[bytes] = []

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        received.append(request)
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    settings = {"tracing": {"host": "127.0.0.1", "port": port, "sample": 1.0}}
    with fronted(tmp_path / "ts", archive_of("1.0"), settings=settings) as front:
        for node in range(20):
            front.ask({"node_id": node})
        until(lambda: any(b"hopserve-gateway" in request for request in received))
        _stops_without_loss(front)
    server.stop(None)


def _stops_without_loss(front: Front) -> None:
    """Whoever got through gets an answer; then nobody gets through."""
    properties = front.server.properties
    with Clients(front, rate=200) as clients:
        clients.wait_for(200)
        result = CliRunner().invoke(
            hopserve, ["stop", "--ts-config", str(properties.file)], catch_exceptions=False
        )
        assert result.stdout == "stopped\n"
        clients.wait_for(20)
    assert find_envoy(front.gateway.files) is None
    assert find_controller(front.gateway) is None
    refused = Counter(status for status, _ in clients.failures)
    assert set(refused) <= {"ClientConnectorError", "ClientOSError"}
    assert refused["ClientOSError"] < 10, "only those that connected in the very moment"


def _killed(gateway: Gateway, after_s: float) -> psutil.Process | None:
    """Kill the controller; returns its Envoy."""
    time.sleep(after_s)
    controller = find_controller(gateway)
    assert controller is not None
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait(10)
    return find_envoy(gateway.files)


def _status(front: Front) -> int:
    try:
        return front.ask({"node_id": 42}).status_code
    except httpx.HTTPError:
        return 0
