"""A service answers from a cluster as it does from the snapshot that was pushed there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from archive.export.plan import ExportPlan
from handler.errors import GraphInputError, GraphUnavailable
from handler.graph.cluster.push import push
from handler.graph.cluster.shards import Shards
from handler.graph.opening import is_cluster, source_of
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.views import Source, static_source
from handler.graph.writer import BuildPlan
from handler.metrics import Counters
from handler.model.exported import Model
from handler.service import Service
from handler.settings import Settings
from tests.clusters import Cluster, running_cluster
from tests.graphs import EdgeData, SmallGraph, graphs_with_edge_data
from tests.models import random_model
from tests.served import RING, TOLERANCE, exported, loaded

FANOUTS = (3, 2)
PLAIN = random_model(FANOUTS)[0]
WEIGHTED = random_model(FANOUTS, edge_inputs=("edge_weight", "edge_attr"), edge_dim=1)[0]


class _Gcn(nn.Module):
    """Two layers that are told the sizes of samples, also of nodes that are not expanded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(3, 5), GCNConv(5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return hidden


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    plan = ExportPlan("embedding", FANOUTS, 3)
    return {"plain": loaded(PLAIN), "weighted": loaded(WEIGHTED), "degrees": exported(_Gcn(), plan)}


def _service(source: Source, model: Model) -> Service:
    return Service(source, model, Settings(graph=""), Counters(), "1.0")


@contextmanager
def _both(
    snapshot: Snapshot, cluster: Cluster, model: Model, name: str, hot_bytes: int = 0
) -> Iterator[tuple[Service, Service]]:
    """From the cluster, and from the snapshot."""
    place = f"redis+cluster{cluster.url.removeprefix('redis')}/{name}"
    assert is_cluster(place)
    ours, theirs = (
        _service(source_of(place, hot_bytes=hot_bytes), model),
        _service(static_source(snapshot), model),
    )
    yield ours, theirs
    ours.close()


def _ask(service: Service, *requests: object) -> list[Any]:
    found = service.answer([json.dumps(request).encode() for request in requests])
    return [(response.status.value, json.loads(response.body)) for response in found]


def _same(found: Any, wanted: Any) -> bool:
    """Whether two answers say the same, numbers to 1e-5."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(wanted, float):
        return abs(found - wanted) <= TOLERANCE * max(1, abs(wanted))
    return bool(found == wanted)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    graphs_with_edge_data(), st.sampled_from(STRATEGIES), st.sampled_from(["plain", "weighted", "degrees"]),
    st.booleans(), st.data(),
)  # fmt: skip
def test_answers_are_those_from_the_snapshot(
    cluster: Cluster,
    shards: Shards,
    models: dict[str, Model],
    graph: EdgeData,
    strategy: Strategy,
    kind: str,
    undirected: bool,
    data: st.DataObject,
) -> None:
    rules = EdgeRules(undirected=undirected, duplicates="keep")
    snapshot = graph.to_snapshot(BuildPlan(Ordering(strategy), rules=rules))
    push(snapshot, shards, "served", head=data.draw(st.integers(1, 4)), partitions=3)
    nodes = st.sampled_from(graph.ids)
    unknown = "nobody" if isinstance(graph.ids[0], str) else 10**12
    described = st.fixed_dictionaries(
        {"x": st.just([1.0, 2.0, 3.0]), "neighbors": st.lists(nodes, max_size=3, unique=True)}
    )
    extra = {"num_hops": st.integers(1, 2), "num_neighbors": st.integers(1, 3)}
    request = st.one_of(
        st.fixed_dictionaries({"node_id": nodes}, optional=extra),
        st.fixed_dictionaries({"node_id": nodes, "return": st.just(["embedding", "neighbors"])}),
        st.fixed_dictionaries({"node_ids": st.lists(nodes | st.just(unknown), min_size=1, max_size=5)}),
        st.fixed_dictionaries({"node": described}),
        st.just({"node_id": unknown}),
        st.just({"node_ids": [1.5, None, "a", 3]}),
    )
    hot_bytes = data.draw(st.sampled_from([0, 100_000]))
    with _both(snapshot, cluster, models[kind], "served", hot_bytes) as (ours, theirs):
        for _ in range(2):
            asked = data.draw(st.lists(request, min_size=1, max_size=4))
            assert _same(_ask(ours, *asked), _ask(theirs, *asked))


def test_explanations_are_those_from_the_snapshot(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    push(snapshot, shards, "explained")
    with _both(snapshot, cluster, models["plain"], "explained") as (ours, theirs):
        found, wanted = (each.explain([b'{"node_id": 1}'])[0] for each in (ours, theirs))
        assert found.status.value == 200
        answers = [json.loads(each.body) for each in (found, wanted)]
        for answer in answers:
            answer.pop("took_ms")
        assert _same(*answers)


def test_it_warms_up_and_says_how_it_stands(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    push(snapshot, shards, "warm")
    with _both(snapshot, cluster, models["degrees"], "warm") as (ours, theirs):
        ours.warm_up(8)
        assert _same(_ask(ours, {"node_ids": [0, 1, 2]}), _ask(theirs, {"node_ids": [0, 1, 2]}))
        assert {metric.name: value for metric, value in ours.gauges().items()}["hopserve_graph_nodes"] == 6


def test_what_a_cluster_cannot_give_is_refused(
    cluster: Cluster, shards: Shards, models: dict[str, Model], make_snapshot: Callable[..., Snapshot]
) -> None:
    data = EdgeData([0, 1], [(0, 1)], [1.0], [1.0])
    snapshot = data.to_snapshot(BuildPlan(Ordering("recent")))
    push(snapshot, shards, "refused")
    with _both(snapshot, cluster, models["plain"], "refused") as (ours, _):
        ((status, answer),) = _ask(ours, {"node_id": 1, "as_of": 5.0})
        assert status == 400
        assert "cluster" in answer["error"]["message"]
        (stored,) = _ask(ours, {"node": {"node_id": 7, "neighbors": [0]}, "store": True})
        assert stored[0] == 400
    walker = loaded(random_model(FANOUTS, sampling=Sampling(strategy="walk"))[0])
    place = f"redis+cluster{cluster.url.removeprefix('redis')}"
    with pytest.raises(GraphInputError, match="whole rows"):
        _service(source_of(f"{place}/refused"), walker)
    with pytest.raises(GraphUnavailable, match="no graph 'graph'"):
        _service(source_of(place), models["plain"])
    expiring = data.to_snapshot(BuildPlan(Ordering("recent"), rules=EdgeRules(max_edge_age=60.0)))
    with pytest.raises(GraphInputError, match="expire"):
        push(expiring, shards, "expiring")


def test_of_a_cluster_that_is_gone_what_is_at_hand_is_answered_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    with running_cluster(tmp_path_factory.mktemp("gone"), masters=1) as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "gone")
        shards.close()
        with _both(snapshot, cluster, models["plain"], "gone", hot_bytes=100_000) as (ours, theirs):
            assert _same(_ask(ours, {"node_id": 0}), _ask(theirs, {"node_id": 0}))
            for node in cluster.nodes:
                node.kill()
            for _ in range(5):
                assert _same(_ask(ours, {"node_id": 0}), _ask(theirs, {"node_id": 0}))
                ((status, answer),) = _ask(ours, {"node_id": 3})
                assert (status, answer["error"]["code"]) == (503, "not_ready")
                time.sleep(0.2)  # until it looks for newer versions


def test_a_newer_version_is_taken_up(
    cluster: Cluster, shards: Shards, models: dict[str, Model], make_snapshot: Callable[..., Snapshot]
) -> None:
    first = RING.to_snapshot(BuildPlan())
    second = SmallGraph(RING.ids, [(0, 1), *RING.edges[1:4]]).to_snapshot(BuildPlan())
    push(first, shards, "moving")
    asked = {"node_ids": [0, 1, 2, 3, 4, 5]}
    with _both(first, cluster, models["plain"], "moving") as (ours, theirs):
        assert _same(_ask(ours, asked), _ask(theirs, asked))
        push(second, shards, "moving")
        later = _service(static_source(second), models["plain"])
        # Whatever of the older version is gone, nothing is answered from its rest.
        assert _same(_ask(ours, asked), _ask(later, asked))


def test_a_master_that_is_killed_is_followed_by_its_replica(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    with running_cluster(tmp_path_factory.mktemp("failover"), replicas=1) as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "failing")
        shards.close()
        cluster.wait_for_replicas()
        with _both(snapshot, cluster, models["plain"], "failing") as (ours, theirs):
            asked = {"node_ids": list(range(6))}
            right = _ask(theirs, asked)
            cluster.masters[1].kill()
            failed, answered, deadline = 0, 0, time.monotonic() + 60
            while answered < 20 and time.monotonic() < deadline:
                ((status, answer),) = found = _ask(ours, asked)
                rows = answer["predictions"]
                errors = {row["error"]["code"] for row in rows if "error" in row}
                assert status == 200
                if errors:
                    assert errors == {"not_ready"}
                    failed += 1
                else:
                    assert _same(found, right)
                    answered += 1
            assert answered == 20
            assert failed


def test_slots_may_move_between_masters_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    asked = {"node_ids": list(range(6))}
    with running_cluster(tmp_path_factory.mktemp("moving")) as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "moving", partitions=2)
        shards.close()
        with _both(snapshot, cluster, models["plain"], "moving") as (ours, theirs):
            right = _ask(theirs, asked)
            assert _same(_ask(ours, asked), right)
            for partition in (0, 1):
                slot = key_slot(str(partition).encode())
                owner = slot * 3 // 16384
                source, target = cluster.masters[owner], cluster.masters[(owner + 1) % 3]
                for share in (0.5, 1.0):
                    cluster.begin_move(slot, source, target, share)
                    assert _same(_ask(ours, asked), right)
                cluster.end_move(slot, target)
                for _ in range(3):
                    assert _same(_ask(ours, asked), right)
