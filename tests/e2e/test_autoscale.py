"""Workers follow what waits for them, without a gateway."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from click.testing import CliRunner

from gateway.autoscale.autoscaler import Autoscaler, Look
from gateway.autoscale.policy import ScalePolicy
from gateway.tuning.load import Answered, send_all
from scripts.cli.main import hopserve
from tests.conftest import Example
from tests.servers import Server

RunServer = Callable[..., AbstractContextManager[Server]]
_POLICY = ScalePolicy(target_queue_ms=10, up_after_s=0.5, down_after_s=1, cool_down_s=1)
_PATIENCE_S = 60.0


@contextmanager
def _load(server: Server) -> Iterator[list[Answered]]:
    """More than a worker can answer, of requests that name no version."""
    stopping = threading.Event()
    asked = iter(lambda: None if stopping.is_set() else {"node_ids": list(range(100))}, None)
    answers: list[Answered] = []
    thread = threading.Thread(
        target=lambda: answers.extend(send_all(server.url(), server.headers(), asked, connections=96))
    )
    thread.start()
    try:
        yield answers
    finally:
        stopping.set()
        thread.join()


def _tick_until(scaler: Autoscaler, is_so: Callable[[Look], bool]) -> Look:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for look in scaler.tick():
            if is_so(look):
                return look
        time.sleep(0.2)
    raise AssertionError("it never came to that")


def test_a_worker_comes_and_goes_with_the_load(
    archive_of: Callable[..., Path], run_server: RunServer
) -> None:
    archive = archive_of("1.0", settings={"cache": "off"})
    with run_server(archive) as server:
        scaler = Autoscaler(server.properties, {"graphsage": _POLICY})
        rehearsal = Autoscaler(server.properties, {"graphsage": _POLICY}, dry_run=True)
        scaler.tick()
        with _load(server) as answers:
            rehearsed = _tick_until(rehearsal, lambda look: look.is_change)
            assert len(server.worker_pids()) == 1
            grown = _tick_until(scaler, lambda look: look.is_change)
            assert grown.seen.queue_ms > 10, "requests without a version are those of the default one"
            for look in (rehearsed, grown):
                assert look.plan.num_workers == 2
                assert look.plan.reason.endswith(": 1 -> 2")
            scaler.finish()
            assert len(server.ready_pids("graphsage")) == 2
        assert set(Counter(answer.status for answer in answers)) == {200}
        shrunk = _tick_until(scaler, lambda look: look.is_change)
        assert shrunk.plan.num_workers == 1
        scaler.finish()
        assert len(server.worker_pids()) == 1


def test_a_worker_that_cannot_start_is_done_without(
    archive_of: Callable[..., Path], run_server: RunServer, example: Example, tmp_path: Path
) -> None:
    graph = tmp_path / "graph"
    graph.mkdir()
    for file in example.graph.rglob("*"):
        (graph / file.relative_to(example.graph)).write_bytes(file.read_bytes())
    with run_server(archive_of("1.0", graph_folder=graph)) as server:
        graph.rename(tmp_path / "away")
        two = ScalePolicy(min_workers=2, max_workers=2, cool_down_s=60)
        scaler = Autoscaler(server.properties, {"graphsage": two})
        assert _tick_until(scaler, lambda look: look.is_change).failure is None
        scaler.finish()
        (failed,) = scaler.tick()
        assert str(failed).startswith("graphsage 1.0: cannot be scaled to 2 workers: TorchServe answered 500")
        assert scaler.tick() == [], "it is tried again after the cool-down"
        with server.client() as client:
            version = client.version("graphsage")
        assert (version.min_workers, version.num_ready, len(version.workers)) == (1, 1, 1)
        assert server.ask({"node_id": 42}).status_code == 200


def test_a_server_that_is_not_there_ends_the_command_in_one_line(server: Server, tmp_path: Path) -> None:
    gone = tmp_path / "config.properties"
    text = server.properties.file.read_text()
    gone.write_text(text.replace(server.properties.metrics_url, "http://127.0.0.1:9"))
    result = CliRunner().invoke(hopserve, ["autoscale", "graphsage", "--ts-config", str(gone)])
    assert "TorchServe does not answer at http://127.0.0.1:9/metrics" in str(result.exception)
