"""Rollouts of good and bad versions, with a real TorchServe and a real Envoy, in steps of seconds."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scipy.stats import binom

from tests.clients import Clients
from tests.gateways import Front, changed_handler, fronted
from tests.live_servers import until

_BAD = {
    "2.0": "    pass\n",
    # A tenth of its answers are errors.
    "3.0": """
    def handle(self, data, context):
        answers = super().handle(data, context)
        for row in range(len(answers)):
            if random.random() < 0.1:
                answers[row] = b'{"error": {"code": "internal", "message": "made up"}}'
                context.set_response_status(500, "Internal Server Error", row)
        return answers
""",
    # Slow.
    "4.0": """
    def handle(self, data, context):
        time.sleep(0.1)
        return super().handle(data, context)
""",
    # The right labels, but embeddings that mean nothing.
    "5.0": """
    def handle(self, data, context):
        answers = super().handle(data, context)
        for row, answer in enumerate(answers):
            content = json.loads(answer)
            if "embedding" in content:
                content["embedding"] = [random.gauss(0, 1) for _ in content["embedding"]]
                answers[row] = json.dumps(content).encode()
        return answers
""",
}


@pytest.fixture(scope="module")
def front(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The example behind a gateway."""
    with fronted(tmp_path_factory.mktemp("front"), archive_of()) as started:
        yield started


@pytest.fixture
def candidate(
    front: Front, archive_of: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A version of its own, registered beside 1.0, and gone afterwards."""
    version = request.param
    package = changed_handler(tmp_path, _BAD[version])
    front.add(archive_of(version, handler_package=package))
    yield version
    if version in front.weights():
        front.hopserve("rollout", "rollback")
    front.hopserve("rollout", "unregister", version)


def _answered(front: Front, version: str) -> int:
    """How many requests a version has answered with success, by its own account."""
    wanted = "hopserve_requests_total{"
    lines = [line for line in front.server.metrics().splitlines() if line.startswith(wanted)]
    mine = [line for line in lines if f'model_version="{version}"' in line and 'status="200"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in mine)


@pytest.mark.parametrize("candidate", ["2.0"], indirect=True)
def test_a_good_version_gets_all_traffic_step_by_step_and_goes_back(front: Front, candidate: str) -> None:
    with Clients(front) as clients:
        front.hopserve("rollout", "start", candidate, "--shadow", "50", "--steps", "20,100", "--every", "6s")
        assert front.weights() == {"1.0": 10_000}
        until(lambda: front.weights() == {"1.0": 8_000, candidate: 2_000})
        assert _answered(front, candidate) > 100, "it has had copies"
        assert set(clients.versions) == {"1.0"}
        clients.wait_for(20)  # those that were routed before
        clients.versions.clear()
        clients.wait_for(400)
        taken, of = clients.versions[candidate], clients.versions.total()
        low, high = binom.interval(0.999_999, of, 0.2)
        assert low <= taken <= high
        until(lambda: front.model().history[-1].what == "promoted")
        assert front.weights() == {candidate: 10_000}
        front.hopserve("rollout", "rollback")
        assert front.weights() == {"1.0": 10_000}
        clients.wait_for(20)
        clients.versions.clear()
        clients.wait_for(50)
        assert set(clients.versions) == {"1.0"}
    assert clients.failures == []


@pytest.mark.parametrize("candidate", ["3.0", "4.0", "5.0"], indirect=True)
def test_a_bad_version_is_taken_back(front: Front, candidate: str) -> None:
    with Clients(front):
        front.hopserve("rollout", "start", candidate, "--steps", "20,100", "--every", "30s")
        until(lambda: candidate not in front.weights())
    event = front.model().history[-1]
    assert (event.what, event.version) == ("rolled back", candidate)
    said = {"3.0": "errs in|fails to answer", "4.0": "ms", "5.0": "similarity"}[candidate]
    assert re.search(said, event.reason), event.reason


def test_no_request_is_lost_on_the_way(front: Front, archive_of: Callable[..., Path]) -> None:
    """Whatever ops do, and whichever worker dies, every client gets its answer.

    `HOPSERVE_SECONDS` says how long it takes; by default it is as short as can be.
    """
    ends = time.monotonic() + float(os.environ.get("HOPSERVE_SECONDS", "0"))
    with Clients(front, rate=200) as clients:
        round_number = 0
        while round_number == 0 or time.monotonic() < ends:
            round_number += 1
            version = f"6.{round_number}"
            front.add(archive_of(version))
            front.hopserve("rollout", "start", version, "--steps", "10,100", "--every", "2s")
            until(lambda: front.model().history[-1].what == "promoted")
            front.hopserve("rollout", "rollback")
            front.hopserve("rollout", "unregister", version)
            front.hopserve("models", "scale", "graphsage", "1.0", "2")
            clients.wait_for(200)
            os.kill(front.server.worker_pids()[0], signal.SIGKILL)
            clients.wait_for(1_000)
            front.hopserve("models", "scale", "graphsage", "1.0", "1")
            clients.wait_for(200)
            os.kill(front.server.worker_pids()[0], signal.SIGKILL)
            clients.wait_for(2_000)
            front.hopserve("token", "inference", "--renew")
            clients.wait_for(200)
    assert clients.failures == []
    assert set(clients.statuses) == {200}
