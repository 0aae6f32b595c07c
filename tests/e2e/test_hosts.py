"""Two real hosts behind a real balancer: who gets what, and what clients see when one is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.process import kill_gateway, start_gateway
from tests.balancers import Balanced, balanced
from tests.clients import Clients
from tests.gateways import Front
from tests.live_servers import until
from tests.servers import kill_all, kill_and_start_again


@pytest.fixture(scope="module")
def hosts(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    with balanced(tmp_path_factory.mktemp("hosts"), archive_of("1.0"), settings={"max_load": 100}) as started:
        yield started


def _asked(hosts: Balanced, request: Any, **headers: str) -> str:
    """Which host is asked for an answer."""
    before = {name: each.num_requests for name, each in hosts.seen().items()}
    assert hosts.ask(request, headers=headers).status_code < 500
    (name,) = (name for name, each in hosts.seen().items() if each.num_requests > before[name])
    return name


def test_requests_about_a_node_go_to_one_host(hosts: Balanced) -> None:
    owners = {node: _asked(hosts, {"node_id": node}) for node in range(24)}
    assert 4 <= Counter(owners.values())["a"] <= 20
    for node, owner in list(owners.items())[:6]:
        for request in (
            {"node_id": node, "num_hops": 1},
            {"node_ids": [node, 1, 2]},
            {"instances": [{"node_id": node}]},
            {"return": ["embedding"], "node_id": node},
        ):
            assert (request, _asked(hosts, request)) == (request, owner)
        assert _asked(hosts, {"pairs": [[node, 5]]}) == owner
        other = next(node for node, each in owners.items() if each != owner)
        assert _asked(hosts, {"node_id": other}, **{"X-Node-Id": str(node)}) == owner


def test_answers_are_those_of_the_hosts(hosts: Balanced) -> None:
    front = hosts.hosts["a"]
    for request in ({"node_id": 42, "max_staleness_ms": 0}, {"node_id": -1}, {"node_ids": []}, {}):
        answer, direct = hosts.ask(request), front.ask(request)
        assert (answer.status_code, answer.json()) == (direct.status_code, direct.json())
    assert hosts.ask({"node_id": 1}, headers={"X-Model-Version": "9"}).status_code == 404
    assert httpx.get(hosts.url("/v1/graphsage/health")).status_code == 200
    assert hosts.ask({"node_id": 42}, "/v1/graphsage/explain").json()["nodes"]


@pytest.mark.parametrize("path", ["/models", "/ping", "/v1/graphsage/predict/../../../models", "/status"])
def test_nothing_else_can_be_reached(hosts: Balanced, path: str) -> None:
    assert httpx.get(hosts.url(path)).status_code == 404


def test_a_host_that_is_killed_costs_no_request(hosts: Balanced) -> None:
    with Clients(hosts, rate=100) as clients:
        clients.wait_for(100)
        lost = hosts.hosts["a"]
        kill_all(lost.server.properties)
        clients.wait_for(300)
        assert hosts.states()["b"] == "ready"
        assert hosts.states()["a"] != "ready"
        _start_again(lost)
        until(lambda: hosts.states()["a"] == "ready")
        before = hosts.seen()["a"].num_requests
        until(lambda: hosts.seen()["a"].num_requests > before + 50)
    assert clients.failures == []
    assert clients.degraded == 0


def test_a_host_whose_torchserve_is_killed_costs_no_request(hosts: Balanced) -> None:
    """Its gateway goes on, and answers that it cannot, or from a table: another host is asked."""
    with Clients(hosts, rate=100) as clients:
        clients.wait_for(100)
        server = hosts.hosts["b"].server
        for process in [*server.process.children(recursive=True), server.process]:
            process.kill()
        clients.wait_for(300)
        assert hosts.states() == {"a": "ready", "b": "not ready"}
        kill_and_start_again(server)
        until(lambda: hosts.states()["b"] == "ready")
    assert clients.failures == []
    assert clients.degraded == 0


def _start_again(front: Front) -> None:
    kill_and_start_again(front.server)
    start_gateway(front.gateway)


def test_the_balancer_may_be_killed_and_started_again(hosts: Balanced) -> None:
    from gateway.process import find_controller

    with Clients(hosts, rate=50) as clients:
        clients.wait_for(20)
        runner = find_controller(hosts.balancer)
        assert runner is not None
        runner.kill()
        runner.wait(30)
        clients.wait_for(20)
        start_gateway(hosts.balancer)
        clients.wait_for(20)
    assert clients.failures == []
    kill_gateway(hosts.balancer)
    with pytest.raises(httpx.ConnectError):
        hosts.ask({"node_id": 1})
    start_gateway(hosts.balancer)
    assert hosts.ask({"node_id": 1}).status_code == 200


def test_envoy_has_no_complaints(hosts: Balanced) -> None:
    log = hosts.balancer.envoy_log.read_text()
    assert "[lua]" not in log
    assert "Deprecated" not in log
