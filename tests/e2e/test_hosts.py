"""Two real hosts behind a real balancer: who gets what, and what clients see when one is gone."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from archive.datasets import load_digits
from archive.pack import GraphPlan, PackPlan, pack
from gateway.process import find_controller, kill_gateway, start_gateway
from gateway.upstream.process import find_server
from handler.graph.home import write_home
from tests.balancers import Balanced, balanced
from tests.clients import Clients
from tests.conftest import Example, StartServer, url_of
from tests.gateways import Front
from tests.live_servers import until
from tests.servers import kill_all, kill_and_start_again


@pytest.fixture(scope="module")
def hosts(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    folder = tmp_path_factory.mktemp("hosts")

    def archive(host: str) -> Path:
        """Each host has a cache of its own, though they are on one machine."""
        return archive_of("1.0", settings={"embeddings": str(folder / "embeddings" / host)})

    with balanced(folder, archive, settings={"max_load": 100}) as started:
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


def test_what_was_computed_for_a_node_is_found_where_it_is_asked_for_again(hosts: Balanced) -> None:
    nodes = range(100, 120)
    hosts.ask({"node_ids": list(nodes)})  # which is one host's
    for node in nodes:
        hosts.ask({"node_id": node})
    until(
        lambda: all(hosts.ask({"node_id": node}).json()["source"] == "cache" for node in nodes)
    )  # it is written behind the answer


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


def test_a_version_is_registered_and_rolled_out_on_all_hosts(
    hosts: Balanced, archive_of: Callable[..., Path]
) -> None:
    archive = archive_of("2.0")
    with Clients(hosts, rate=50) as clients:
        registered = hosts.run("rollout", "register", str(archive))
        assert registered[:2] == (0, "version 2.0 is ready on all hosts\n"), registered
        assert clients.versions.keys() == {"1.0"}
        for front in hosts.hosts.values():
            assert front.weights() == {"1.0": 10_000}
            assert front.ask({"node_id": 1}, headers={"X-Model-Version": "2.0"}).status_code == 200
        again = hosts.run("rollout", "register", archive.name)
        assert "b: has graphsage-2.0.mar already" in again.steps

        done = hosts.run("rollout", "start", "2.0", "--steps", "50,100", "--every", "2s")
        assert done[:2] == (0, "completed on all hosts\n"), done
        for front in hosts.hosts.values():
            assert front.weights() == {"2.0": 10_000}
        shown = hosts.run("rollout", "status").printed
        assert re.search("^a: +2.0 +100.00%", shown, re.MULTILINE)
        assert re.search("^b: +2.0 +100.00%", shown, re.MULTILINE)
    assert clients.failures == []
    _taken_back_by_one(hosts)
    _not_started_by_one(hosts)


def _taken_back_by_one(hosts: Balanced) -> None:
    """It is taken back on all."""
    one = hosts.hosts["b"]
    with ThreadPoolExecutor() as threads:
        command = ["rollout", "start", "1.0", "--steps", "10,100", "--every", "10m"]
        started = threads.submit(hosts.run, *command)
        until(lambda: all(front.weights().get("1.0") == 1_000 for front in hosts.hosts.values()))
        one.hopserve("rollout", "rollback", "--reason", "it is odd")
        result = started.result(60)
    assert result[:2] == (1, "taken back on all hosts\n"), result
    for front in hosts.hosts.values():
        assert front.weights() == {"2.0": 10_000}
    assert hosts.hosts["a"].model().history[-1].reason == "b took it back: it is odd"


def _not_started_by_one(hosts: Balanced) -> None:
    """It is taken back where it was started."""
    hosts.hosts["b"].hopserve("rollout", "unregister", "1.0")
    result = hosts.run("rollout", "start", "1.0", "--every", "10m")
    assert result.status == 1
    assert result.failure.startswith("b: ")
    assert hosts.hosts["a"].weights() == {"2.0": 10_000}
    assert hosts.run("rollout", "register", "graphsage-1.0.mar").status == 0
    assert hosts.hosts["b"].model().find("1.0").state == "ready"  # type: ignore[union-attr]


def test_hosts_are_restarted_one_after_the_other(hosts: Balanced) -> None:
    before = {name: front.server.process.pid for name, front in hosts.hosts.items()}
    with Clients(hosts, rate=50) as clients:
        result = hosts.run("rollout", "restart")
        assert result[:2] == (0, "all hosts are ready\n"), result
        clients.wait_for(50)
    assert clients.failures == []
    assert clients.degraded == 0
    for name, front in hosts.hosts.items():
        now = find_server(front.server.properties)
        assert now is not None
        assert now.pid != before[name]


def test_nothing_is_done_while_a_host_is_away(hosts: Balanced) -> None:
    hosts.hosts["b"].hopserve("gateway", "stop")
    until(lambda: hosts.states()["b"] != "ready")
    for command in (["restart"], ["register", "graphsage-1.0.mar"]):
        result = hosts.run("rollout", *command)
        assert result.status == 1
        assert result.failure == "b: broken: the gateway does not listen"
    assert hosts.run("balancer", "status").status == 1
    hosts.hosts["b"].hopserve("gateway", "start")
    until(lambda: hosts.states()["b"] == "ready")


def test_hosts_share_what_changes_and_what_is_kept(
    hosts: Balanced, example: Example, start_server: StartServer, tmp_path: Path
) -> None:
    """Each host has a copy of the graph; the log of mutations and the cache are in one Redis."""
    redis = url_of(start_server())
    write_home(tmp_path / "first", load_digits(), log=redis)
    for name, front in hosts.hosts.items():
        shutil.copytree(tmp_path / "first", tmp_path / name)
        plan = PackPlan(
            "shared",
            "1.0",
            model_folder=example.export,
            graph_folder=tmp_path / name,
            settings={"cache": redis, "cache_timeout_ms": 1_000, "max_wait_ms": 30_000},
        )
        _register(front, pack(plan, tmp_path / f"{name}-store"))
    with ExitStack() as stack:
        graph = pack(GraphPlan(graph_folder=tmp_path / "a", settings={"compact_after": 0}), tmp_path)
        _register(hosts.hosts["a"], graph)
        stack.callback(_unregister, hosts.hosts["a"], "graph")
        one, other = (hosts.hosts[name] for name in "ab")
        until(lambda: other.ask({"node_id": 42}, _SHARED).status_code == 200)
        before = one.ask({"node_id": 42}, _SHARED).json()
        until(lambda: other.ask({"node_id": 42}, _SHARED).json()["source"] == "cache")

        edges = [{"source": source, "target": 42} for source in range(700, 900)]
        changed = one.server.ask({"add_edges": edges}, model="graph").json()
        asked = {"node_id": 42, "min_seq": changed["last_seq"]}
        after = hosts.ask(asked, _SHARED).json()
        assert after["embedding"] != before["embedding"]
        for front in (one, other):
            answer = front.ask(asked, _SHARED).json()
            assert answer["embedding"] == pytest.approx(after["embedding"], rel=1e-5, abs=1e-6)
        until(lambda: other.ask(asked, _SHARED).json()["source"] == "cache")


_SHARED = "/v1/shared/predict"


def _register(front: Front, archive: Path) -> None:
    shutil.copy(archive, front.server.properties.model_store)
    with front.server.client() as client:
        client.register(archive.name)


def _unregister(front: Front, model: str) -> None:
    with front.server.client() as client:
        client.unregister(model, "1.0")


def test_the_balancer_may_be_killed_and_started_again(hosts: Balanced) -> None:
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
