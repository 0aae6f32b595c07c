"""Under load, under abuse, and after a worker's death."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from gateway.tuning.load import Sent, send_all
from tests.servers import Server

JSON = {"Content-Type": "application/json"}
NUM_MIXED = 20_000


def _broken(generator: random.Random) -> Any:
    node = generator.randrange(1797)
    return generator.choice(
        [
            Sent(b"", JSON),
            Sent(b"{", JSON),
            Sent(b'{"node_id": NaN}', JSON),
            Sent(bytes(generator.randrange(256) for _ in range(40)), JSON),
            Sent(b'{"node_id": %d}' % node, {"Content-Type": "application/x-www-form-urlencoded"}),
            Sent(b'{"node_id": %d}' % node, {"Content-Type": "image/png"}),
            Sent(b'{"node_id": %d}' % node, JSON | {"describe": "True"}),
            Sent(b'{"node_ids": %s' % (b"[" * 500), JSON),
            {"node_id": -1},
            {"node_id": 10**30},
            {"node_id": "é\n"},
            {"node_id": {"node_id": node}},
            {"node_id": node, "num_hops": 9},
            {"node_id": node, "return": ["poem"]},
            {"node_ids": []},
            {"node_ids": list(range(2100))},
            {"instances": 5},
            {"pairs": [[1, 2]]},
            [],
            None,
        ]
    )


def _good(generator: random.Random) -> Any:
    nodes = [generator.randrange(1797) for _ in range(generator.randrange(1, 20))]
    return generator.choice(
        [
            {"node_id": nodes[0]},
            {"node_id": nodes[0], "num_neighbors": generator.randrange(1, 11)},
            {"node_id": nodes[0], "num_hops": 1, "return": ["label", "probabilities", "neighbors"]},
            {"node_ids": nodes},
            {"node_ids": [*nodes, "nobody", None, 99999]},
            {"instances": [{"node_id": node} for node in nodes]},
        ]
    )


def test_twenty_thousand_mixed_requests(
    archive_of: Callable[..., Path], run_server: Callable[..., AbstractContextManager[Server]]
) -> None:
    """A third of them broken: no 5xx, no dead worker, and memory that stays."""
    with run_server(archive_of()) as server:
        pids = server.worker_pids()
        (worker,) = (psutil.Process(pid) for pid in pids)
        resident: list[int] = []
        generator = random.Random(0)
        statuses: Counter[int] = Counter()
        for _ in range(5):
            broken = [place % 3 == 0 for place in range(NUM_MIXED // 5)]
            requests = [_broken(generator) if bad else _good(generator) for bad in broken]
            for answer in send_all(server.url(), server.headers(), requests, connections=32):
                statuses[answer.status] += 1
                if answer.status != 200:
                    assert answer.status in {400, 404, 413}, answer
                    assert json.loads(answer.body)["error"]["message"]
            resident.append(worker.memory_info().rss)
        assert sum(statuses.values()) == NUM_MIXED
        assert statuses[200] == NUM_MIXED - sum(len(range(0, NUM_MIXED // 5, 3)) for _ in range(5))
        assert server.worker_pids() == pids
        # The first part warms up; afterwards it may breathe, but not grow with the number of requests.
        assert resident[-1] - resident[0] < 16 * 2**20, resident
        assert "hopserve_requests_total" in server.metrics()


def test_sixty_four_connections_see_no_error(server: Server) -> None:
    generator = random.Random(1)
    requests = ({"node_id": generator.randrange(1797)} for _ in range(10_000))
    answers = send_all(server.url(), server.headers(), requests, connections=64)
    assert Counter(answer.status for answer in answers) == {200: 10_000}


def _first_good_answer(server: Server, request: Any, within_s: float) -> Any:
    """Ask again and again, as a client would that has a time-out.

    TorchServe never answers a request that it had just taken for a worker when that worker died.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.ReadTimeout):
            response = server.ask(request, timeout_s=5)
            if response.status_code == 200:
                return response.json()
        time.sleep(0.2)
    raise AssertionError(f"no good answer within {within_s} s")


def test_a_killed_worker_comes_back(
    archive_of: Callable[..., Path], run_server: Callable[..., AbstractContextManager[Server]]
) -> None:
    with run_server(archive_of()) as server:
        computed = {"node_id": 42, "max_staleness_ms": 0}
        before = server.ask(computed).json()
        (pid,) = server.worker_pids()
        os.kill(pid, signal.SIGKILL)
        after = _first_good_answer(server, computed, within_s=60)
        # Requests given up on may share its batch, and batches differ in the last digit.
        assert np.allclose(after.pop("embedding"), before.pop("embedding"), rtol=1e-5, atol=1e-5)
        assert after == before
        assert server.worker_pids() != [pid]
