"""While a part of a cluster cannot be read, those answers err that need it, and no others."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archive.export.plan import ExportPlan
from handler.graph.cluster.layout import ClusterManifest, Keys, id_bytes, id_partition
from handler.graph.cluster.push import graph_version, push
from handler.graph.cluster.shards import Shards
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeId
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from handler.model.exported import Model
from handler.service import Service
from tests.clustered import Gcn, ask, both, same
from tests.clusters import Cluster, Node, running_cluster
from tests.graphs import FEATURE_DIM, EdgeData, SmallGraph, graphs_with_edge_data
from tests.models import random_model
from tests.served import exported, loaded

FANOUTS = (3, 2)
PLAN = FanoutPlan.of(FANOUTS)
#: Four rings of four nodes, of which each lies in a partition of its own.
RINGS = SmallGraph(list(range(16)), [(node, (node + 4) % 16) for node in range(16)])


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    link = ExportPlan("link", FANOUTS, FEATURE_DIM, link_score="dot")
    return {
        "plain": loaded(random_model(FANOUTS)[0]),
        "degrees": exported(Gcn(), ExportPlan("embedding", FANOUTS, FEATURE_DIM)),
        "link": exported(random_model(FANOUTS, labels=())[1], link),
    }


@contextmanager
def _away(node: Node) -> Iterator[list[int]]:
    """A master that nobody reaches; a list grows with each try."""
    connect = redis.ConnectionPool.get_connection
    tries: list[int] = []

    def refused(pool: redis.ConnectionPool, *args: Any, **options: Any) -> Any:
        if pool.connection_kwargs.get("port") == node.port:
            tries.append(node.port)
            raise redis.ConnectionError("refused")
        return connect(pool, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.ConnectionPool, "get_connection", refused)
        yield tries


class _Needs:
    """Which answers need a master; none where it depends."""

    def __init__(
        self, snapshot: Snapshot, cluster: Cluster, manifest: ClusterManifest, name: str, away: Node
    ) -> None:
        self._snapshot = snapshot
        self._keys = Keys(name, graph_version(manifest))
        self._partitions = manifest.partitions
        self._is_away = lambda key: cluster.owner(key) is away
        self._versions = self._is_away(Keys.current(name)) or self._is_away(self._keys.changes)

    def rows(self, request: dict[str, Any]) -> list[bool | None]:
        """Of the rows that answer a request."""
        if "node" in request:
            return [self._described(request["node"]["neighbors"])]
        if "pairs" in request:
            return [self.of(u, PLAN) or self.of(v, PLAN) for u, v in request["pairs"]]
        plan = PLAN.limited(request.get("num_hops"), request.get("num_neighbors"))
        return [self.of(node, plan) for node in request.get("node_ids", [request.get("node_id")])]

    def of(self, node_id: NodeId, plan: FanoutPlan) -> bool | None:
        """Of a node's own answer."""
        is_range = self._snapshot.ids.kind == "range"
        (index,) = self._snapshot.ids.index_of([node_id]).tolist()
        if index < 0 and is_range:
            return None if self._versions else False  # whether there are new nodes may be known
        partition = id_partition(id_bytes(node_id), self._partitions)
        if not is_range and self._is_away(self._keys.ids(partition)):
            return True
        return self._versions if index < 0 else self._tree([index], plan)

    def _described(self, neighbors: Sequence[NodeId]) -> bool:
        """Of a guest: it needs one hop less of its neighbors."""
        return any(self.of(neighbor, FanoutPlan.of(FANOUTS[:1])) for neighbor in neighbors)

    def _tree(self, seeds: list[int], plan: FanoutPlan) -> bool:
        trees = self._snapshot.sampler(Sampling()).trees(np.array(seeds), plan)
        return any(self._is_away(self._keys.nodes(node % self._partitions)) for node in trees.node.tolist())


def _rows(answer: tuple[int, Any]) -> list[tuple[int, Any]]:
    """Each row with the status that it would have alone."""
    status, body = answer
    rows = body.get("predictions", [body])
    codes = {"not_ready": 503, "unknown_node": 404}
    return [(codes.get(row.get("error", {}).get("code"), status), row) for row in rows]


def _check(found: Any, wanted: Any, needs: bool | None) -> None:
    """A row is right, or refused because it needs what is away."""
    status, row = found
    if status == wanted[0] == HTTPStatus.BAD_REQUEST:  # what makes no sense needs nothing
        assert row == wanted[1]
    elif needs or (needs is None and status == 503):
        assert (status, row["error"]["code"]) == (503, "not_ready"), row
        assert "cannot be read now" in row["error"]["message"]
    else:
        assert same(found, wanted), (found, wanted)


def _check_each(service: Service, node_ids: Sequence[NodeId], wanted: Any, needs: _Needs) -> None:
    """The same for all nodes, in one request."""
    (found,) = ask(service, {"node_ids": node_ids})
    for node_id, row, right in zip(node_ids, _rows(found), _rows(wanted), strict=True):
        _check(row, right, needs.of(node_id, PLAN))


def _requests(ids: Sequence[NodeId], kind: str) -> st.SearchStrategy[dict[str, Any]]:
    nodes = st.sampled_from(ids)
    unknown = st.just("nobody" if isinstance(ids[0], str) else 10**12)
    extra = {"num_hops": st.integers(1, 2), "num_neighbors": st.integers(1, 3)}
    neighbors = st.lists(nodes, max_size=3, unique=True)
    described = st.fixed_dictionaries({"x": st.just([1.0, 2.0, 3.0]), "neighbors": neighbors})
    asked: list[st.SearchStrategy[dict[str, Any]]] = [
        st.fixed_dictionaries({"node_id": nodes}, optional=extra),
        st.fixed_dictionaries({"node_id": nodes, "return": st.just(["embedding", "neighbors"])}),
        st.fixed_dictionaries({"node_ids": st.lists(nodes | unknown, min_size=1, max_size=5)}),
        st.fixed_dictionaries({"node": described}),
        st.fixed_dictionaries({"node_id": unknown}),
    ]
    if kind == "link":
        asked.append(
            st.fixed_dictionaries({"pairs": st.lists(st.tuples(nodes, nodes), min_size=1, max_size=3)})
        )
    return st.one_of(asked)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    graphs_with_edge_data(), st.sampled_from(STRATEGIES), st.sampled_from(["plain", "degrees", "link"]),
    st.booleans(), st.integers(0, 2), st.data(),
)  # fmt: skip
def test_an_answer_errs_if_and_only_if_it_needs_a_master_that_is_away(
    cluster: Cluster,
    shards: Shards,
    models: dict[str, Model],
    graph: EdgeData,
    strategy: Strategy,
    kind: str,
    undirected: bool,
    number: int,
    data: st.DataObject,
) -> None:
    rules = EdgeRules(undirected=undirected, duplicates="keep")
    snapshot = graph.to_snapshot(BuildPlan(Ordering(strategy), rules=rules))
    head, partitions = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
    manifest = push(snapshot, shards, "unread", head=head, partitions=partitions)
    away = cluster.masters[number]
    needs = _Needs(snapshot, cluster, manifest, "unread", away)
    asked = data.draw(st.lists(_requests(graph.ids, kind), min_size=1, max_size=6))
    node_id = data.draw(st.sampled_from(graph.ids))
    with both(snapshot, cluster, models[kind], "unread") as (ours, theirs):
        explained = json.dumps({"node_id": node_id}).encode()
        with _away(away):
            found = ask(ours, *asked)
            (explanation,) = ours.explain([explained])
        for request, answer, right in zip(asked, found, ask(theirs, *asked), strict=True):
            if request.keys() & {"node_id", "node"}:
                assert answer[0] in {right[0], 503}
            for each in zip(_rows(answer), _rows(right), needs.rows(request), strict=True):
                _check(*each)
        bodies = [json.loads(each.body) for each in (explanation, *theirs.explain([explained]))]
        for body in bodies:
            body.pop("took_ms", None)
        _check((explanation.status.value, bodies[0]), (200, bodies[1]), needs.of(node_id, PLAN))


def test_what_was_read_before_is_answered_all_the_same(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RINGS.to_snapshot(BuildPlan())
    manifest = push(snapshot, shards, "kept", partitions=4)
    everyone, some = {"node_ids": list(range(16))}, {"node_ids": [1, 7, 12]}
    for away in cluster.masters:
        needs = _Needs(snapshot, cluster, manifest, "kept", away)
        with both(snapshot, cluster, models["plain"], "kept", hot_bytes=100_000) as (ours, theirs):
            (wanted,) = ask(theirs, everyone)
            ask(ours, some)
            with _away(away):
                rows = [_rows(*ask(ours, everyone)), _rows(*ask(ours, everyone))]
            for each in rows:
                for node, (found, right) in enumerate(zip(each, _rows(wanted), strict=True)):
                    _check(found, right, needs.of(node, PLAN) and node not in some["node_ids"])
        with both(snapshot, cluster, models["plain"], "kept", hot_bytes=100_000) as (ours, _):
            ask(ours, everyone)
            with _away(away):
                assert same(ask(ours, everyone), [wanted])


def test_who_waits_for_a_mutation_in_vain_harms_nobody(
    cluster: Cluster, shards: Shards, models: dict[str, Model]
) -> None:
    snapshot = RINGS.to_snapshot(BuildPlan())
    manifest = push(snapshot, shards, "waiting", partitions=4)
    asked = {"node_ids": list(range(16))}
    for away in cluster.masters:  # one of them knows of mutations
        needs = _Needs(snapshot, cluster, manifest, "waiting", away)
        with both(snapshot, cluster, models["plain"], "waiting") as (ours, theirs):
            with _away(away):
                waiting, found = ask(ours, {"node_id": 0, "min_seq": 10**6}, asked)
            (wanted,) = ask(theirs, asked)
            assert waiting[1]["error"]["code"] == "not_fresh"
            for node, row, right in zip(range(16), _rows(found), _rows(wanted), strict=True):
                _check(row, right, needs.of(node, PLAN))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    graphs_with_edge_data(), st.sampled_from(["plain", "degrees"]), st.integers(0, 2), st.integers(0, 5),
    st.integers(1, 3), st.data(),
)  # fmt: skip
def test_a_master_may_go_and_come_between_one_wait_and_the_next(
    cluster: Cluster,
    shards: Shards,
    models: dict[str, Model],
    graph: EdgeData,
    kind: str,
    number: int,
    first: int,
    count: int,
    data: st.DataObject,
) -> None:
    snapshot = graph.to_snapshot(BuildPlan(rules=EdgeRules(duplicates="keep")))
    manifest = push(snapshot, shards, "going", head=data.draw(st.integers(1, 4)), partitions=4)
    away = cluster.masters[number]
    needs = _Needs(snapshot, cluster, manifest, "going", away)
    ask_each, waits = Shards.ask_each, itertools.count(-first)

    def asked(self: Shards, commands: Sequence[Any], **options: bool) -> list[Any]:
        with _away(away) if next(waits) in range(count) else nullcontext():
            return ask_each(self, commands, **options)

    with (
        both(snapshot, cluster, models[kind], "going") as (ours, theirs),
        pytest.MonkeyPatch.context() as patch,
    ):
        everyone = {"node_ids": graph.ids}
        patch.setattr(Shards, "ask_each", asked)
        (found,), (wanted,) = ask(ours, everyone), ask(theirs, everyone)
        for node_id, row, right in zip(graph.ids, _rows(found), _rows(wanted), strict=True):
            _check(row, right, None if needs.of(node_id, PLAN) else False)


def test_the_size_of_a_sample_may_be_all_that_is_away(
    shards: Shards, models: dict[str, Model], cluster: Cluster
) -> None:
    """Node 2 is not expanded in the tree of node 0, but a model may be told the size of its sample."""
    snapshot = SmallGraph(list(range(4)), [(1, 0), (2, 1), (3, 2)]).to_snapshot(BuildPlan())
    manifest = push(snapshot, shards, "sizes", partitions=4)
    row = Keys("sizes", graph_version(manifest)).rows(2)
    ask_each = Shards.ask_each

    def asked(self: Shards, commands: Sequence[Any], **options: bool) -> list[Any]:
        with _away(cluster.owner(row)) if row in [command[1] for command in commands] else nullcontext():
            return ask_each(self, commands, **options)

    for kind, needs in (("plain", False), ("degrees", True)):
        with both(snapshot, cluster, models[kind], "sizes") as (ours, theirs):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Shards, "ask_each", asked)
                (found,) = ask(ours, {"node_id": 0})
            (wanted,) = ask(theirs, {"node_id": 0})
            _check(found, wanted, needs)


def test_a_guest_does_not_take_the_place_of_what_is_away(
    shards: Shards, models: dict[str, Model], cluster: Cluster
) -> None:
    """In a row that it joins it comes before or after others by their ids, of which some are not known."""
    away, keys = cluster.masters[0], Keys("joined", "")
    is_away = [cluster.owner(keys.nodes(node)) is away for node in range(64)]
    here, gone = (np.flatnonzero(np.array(is_away) == each).tolist() for each in (False, True))
    centers = here[:10]
    edges = [
        (neighbor, center)
        for number, center in enumerate(centers)
        for neighbor in (here[10 + number], here[20 + number], gone[number])
    ]
    snapshot = SmallGraph(list(range(64)), edges).to_snapshot(BuildPlan(rules=EdgeRules(undirected=True)))
    push(snapshot, shards, "joined", partitions=64)
    guests = [{"node": {"neighbors": [center]}} for center in centers]
    with both(snapshot, cluster, models["plain"], "joined") as (ours, _), _away(away):
        assert {status for status, _ in ask(ours, *guests)} == {503}


def test_a_master_that_is_away_is_hardly_asked(
    shards: Shards, models: dict[str, Model], cluster: Cluster
) -> None:
    snapshot = RINGS.to_snapshot(BuildPlan())
    push(snapshot, shards, "resting", partitions=4)
    asked = {"node_ids": list(range(16))}
    for away in cluster.masters:
        with both(snapshot, cluster, models["plain"], "resting") as (ours, _), _away(away) as refused:
            for _ in range(100):
                ask(ours, asked)
        assert len(refused) < 100


def test_replicas_answer_until_something_changes(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    named = SmallGraph([f"node {number}" for number in range(16)], RINGS.edges)
    snapshot = named.to_snapshot(BuildPlan())
    everyone = {"node_ids": named.ids}
    with running_cluster(tmp_path_factory.mktemp("replicas"), replicas=1) as cluster:
        shards = Shards(cluster.url)
        manifest, _ = (push(snapshot, shards, name, partitions=4) for name in ("as pushed", "changed"))
        cluster.wait_for_replicas()
        keys, seq = Keys("changed", graph_version(manifest)), manifest.graph.seq
        away = cluster.owner(keys.nodes(1))
        with both(snapshot, cluster, models["plain"], "changed") as (ours, theirs):
            shards.ask(
                [("XADD", keys.changes, "*", "after", seq, "seq", seq + 1, "num_nodes", 16, "nodes", b"")]
            )
            (wanted,) = (changed,) = ask(theirs, everyone)
            while changed[1]["predictions"][0]["graph"]["seq"] == seq:
                (changed,) = ask(ours, everyone)
            with _away(away):
                _check_each(ours, named.ids, changed, _Needs(snapshot, cluster, manifest, "changed", away))
        with both(snapshot, cluster, models["plain"], "as pushed") as (ours, _), _away(away):
            assert same(ask(ours, everyone), [wanted])
            # A replica that is behind is not believed that there is no such node.
            replica = cluster.replica_of(away)
            replica.client.config_set("replica-read-only", "no")
            replica.client.flushall()
            _check_each(ours, named.ids, wanted, _Needs(snapshot, cluster, manifest, "as pushed", away))
        shards.close()


def test_a_master_that_is_killed_takes_with_it_what_is_there_and_nobody_waits_for_it(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> None:
    snapshot = RINGS.to_snapshot(BuildPlan())
    with running_cluster(tmp_path_factory.mktemp("killed")) as cluster:
        shards = Shards(cluster.url)
        manifest = push(snapshot, shards, "killed", partitions=4)
        shards.close()
        for away in cluster.masters:
            needs = _Needs(snapshot, cluster, manifest, "killed", away)
            if any(needs.of(node, PLAN) for node in range(4)):
                break
        with both(snapshot, cluster, models["plain"], "killed") as (ours, theirs):
            asked = {"node_ids": list(range(16))}
            right = _rows(*ask(theirs, asked))
            away.kill()
            rounds, until = 0, time.monotonic() + 4  # longer than the others need to notice
            while time.monotonic() < until:
                rounds += 1
                for node, each in enumerate(zip(_rows(*ask(ours, asked)), right, strict=True)):
                    _check(*each, needs.of(node, PLAN))
            assert rounds > 20
