"""A service answers from a cluster as it does from the snapshot that was pushed there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from redis.crc import key_slot

from archive.export.plan import ExportPlan
from handler.errors import GraphInputError, GraphUnavailable
from handler.graph.cluster.push import push
from handler.graph.cluster.shards import Shards
from handler.graph.opening import is_cluster, source_of
from handler.graph.ordering import Ordering
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.graph.writer import BuildPlan
from handler.model.exported import Model
from tests.clustered import Gcn, ask, both, place_of, same, service_of
from tests.clusters import Cluster, running_cluster
from tests.graphs import EdgeData, SmallGraph
from tests.models import random_model
from tests.served import RING, exported, loaded

FANOUTS = (3, 2)
PLAIN = random_model(FANOUTS)[0]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    plan = ExportPlan("embedding", FANOUTS, 3)
    return {"plain": loaded(PLAIN), "degrees": exported(Gcn(), plan)}


def test_explanations_are_those_from_the_snapshot(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    push(snapshot, shards, "explained")
    with both(snapshot, cluster, models["plain"], "explained") as (ours, theirs):
        found, wanted = (each.explain([b'{"node_id": 1}'])[0] for each in (ours, theirs))
        assert found.status.value == 200
        answers = [json.loads(each.body) for each in (found, wanted)]
        for answer in answers:
            answer.pop("took_ms")
        assert same(*answers)


def test_it_warms_up_and_says_how_it_stands(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    push(snapshot, shards, "warm")
    with both(snapshot, cluster, models["degrees"], "warm") as (ours, theirs):
        ours.warm_up(8)
        assert same(ask(ours, {"node_ids": [0, 1, 2]}), ask(theirs, {"node_ids": [0, 1, 2]}))
        assert {metric.name: value for metric, value in ours.gauges().items()}["hopserve_graph_nodes"] == 6


def test_what_a_cluster_cannot_give_is_refused(
    cluster: Cluster, shards: Shards, models: dict[str, Model], make_snapshot: Callable[..., Snapshot]
) -> None:
    data = EdgeData([0, 1], [(0, 1)], [1.0], [1.0])
    snapshot = data.to_snapshot(BuildPlan(Ordering("recent")))
    push(snapshot, shards, "refused")
    with both(snapshot, cluster, models["plain"], "refused") as (ours, _):
        ((status, answer),) = ask(ours, {"node_id": 1, "as_of": 5.0})
        assert status == 400
        assert "cluster" in answer["error"]["message"]
        (stored,) = ask(ours, {"node": {"node_id": 7, "neighbors": [0]}, "store": True})
        assert stored[0] == 400
    walker = loaded(random_model(FANOUTS, sampling=Sampling(strategy="walk"))[0])
    place = place_of(cluster, "refused")
    assert is_cluster(place)
    with pytest.raises(GraphInputError, match="whole rows"):
        service_of(source_of(place), walker)
    with pytest.raises(GraphUnavailable, match="no graph 'graph'"):
        service_of(source_of(place.removesuffix("/refused")), models["plain"])
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
        with both(snapshot, cluster, models["plain"], "gone", hot_bytes=100_000) as (ours, theirs):
            assert same(ask(ours, {"node_id": 0}), ask(theirs, {"node_id": 0}))
            for node in cluster.nodes:
                node.kill()
            for _ in range(5):
                assert same(ask(ours, {"node_id": 0}), ask(theirs, {"node_id": 0}))
                ((status, answer),) = ask(ours, {"node_id": 3})
                assert (status, answer["error"]["code"]) == (503, "not_ready")
                time.sleep(0.2)  # until it looks for newer versions


def test_a_newer_version_is_taken_up(
    cluster: Cluster, shards: Shards, models: dict[str, Model], make_snapshot: Callable[..., Snapshot]
) -> None:
    first = RING.to_snapshot(BuildPlan())
    second = SmallGraph(RING.ids, [(0, 1), *RING.edges[1:4]]).to_snapshot(BuildPlan())
    push(first, shards, "moving")
    asked = {"node_ids": [0, 1, 2, 3, 4, 5]}
    with both(first, cluster, models["plain"], "moving") as (ours, theirs):
        assert same(ask(ours, asked), ask(theirs, asked))
        push(second, shards, "moving")
        later = service_of(static_source(second), models["plain"])
        # Whatever of the older version is gone, nothing is answered from its rest.
        assert same(ask(ours, asked), ask(later, asked))


def test_a_master_that_is_killed_is_followed_by_its_replica(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    with running_cluster(tmp_path_factory.mktemp("failover"), replicas=1) as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "failing")
        shards.close()
        cluster.wait_for_replicas()
        with both(snapshot, cluster, models["plain"], "failing") as (ours, theirs):
            asked = {"node_ids": list(range(6))}
            right = ask(theirs, asked)
            cluster.masters[1].kill()
            # Nothing has changed since the push: until then the replica is asked as it is.
            for _ in range(20):
                assert same(ask(ours, asked), right)
            cluster.wait_for_failover(cluster.masters[1])
            for _ in range(20):
                assert same(ask(ours, asked), right)


def test_slots_may_move_between_masters_meanwhile(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RING.to_snapshot(BuildPlan())
    asked = {"node_ids": list(range(6))}
    with running_cluster(tmp_path_factory.mktemp("moving")) as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "moving", partitions=2)
        shards.close()
        with both(snapshot, cluster, models["plain"], "moving") as (ours, theirs):
            right = ask(theirs, asked)
            assert same(ask(ours, asked), right)
            for partition in (0, 1):
                slot = key_slot(str(partition).encode())
                owner = slot * 3 // 16384
                source, target = cluster.masters[owner], cluster.masters[(owner + 1) % 3]
                for share in (0.5, 1.0):
                    cluster.begin_move(slot, source, target, share)
                    assert same(ask(ours, asked), right)
                cluster.end_move(slot, target)
                for _ in range(3):
                    assert same(ask(ours, asked), right)
