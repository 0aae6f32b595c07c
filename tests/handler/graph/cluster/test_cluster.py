"""A graph in a cluster is sampled as the snapshot that was pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handler.errors import GraphInputError, GraphUnavailable
from handler.graph.arrays import GraphArrays
from handler.graph.cluster.hot import HotTable
from handler.graph.cluster.layout import Keys
from handler.graph.cluster.push import graph_version, push
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.window import ClusterGraph
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests.clusters import Cluster
from tests.graphs import EdgeData, graphs_with_edge_data, layer_fanouts


def _told(graph: Snapshot, plan: FanoutPlan, seeds: np.ndarray[Any, Any]) -> list[Any]:
    """All that a model could be given of the trees of some seeds."""
    sampler = graph.sampler(Sampling())
    trees = sampler.trees(seeds, plan)
    assert graph.features is not None
    weight, attr = sampler.edge_weight(trees), sampler.edge_attr(trees)
    created = None if graph.node_created is None else graph.node_created[trees.node].tolist()
    return [
        graph.ids.id_of(trees.node),
        trees.hop.tolist(),
        trees.edge_index.tolist(),
        trees.edge_rank.tolist(),
        None if weight is None else weight.tolist(),
        None if attr is None else attr.tolist(),
        graph.features.gather(trees.node).tolist(),
        created or [0.0] * len(trees.node),
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    graphs_with_edge_data(), st.sampled_from(STRATEGIES), layer_fanouts, st.integers(1, 6), st.integers(1, 5),
    st.sampled_from([0, 2000, 100_000]), st.data(),
)  # fmt: skip
def test_the_trees_of_a_window_are_those_of_the_snapshot(
    shards: Shards,
    graph: EdgeData,
    strategy: Strategy,
    fanouts: tuple[int, ...],
    head: int,
    partitions: int,
    hot_bytes: int,
    data: st.DataObject,
) -> None:
    snapshot = graph.to_snapshot(BuildPlan(Ordering(strategy), rules=EdgeRules(duplicates="keep")))
    push(snapshot, shards, "property", head=head, partitions=partitions)
    pushed = ClusterGraph.open(shards, "property", hot_bytes)
    plan = FanoutPlan.of(fanouts)
    for _ in range(3):
        asked = data.draw(st.lists(st.sampled_from(graph.ids), min_size=1, max_size=4))
        seeds = pushed.index_of(asked)
        assert seeds.tolist() == snapshot.ids.index_of(asked).tolist()
        window = pushed.window(seeds, plan)
        assert _told(window.snapshot, plan, window.places(seeds)) == _told(snapshot, plan, seeds)


def _grid(num_nodes: int = 3000, degree: int = 40, *, ids: Any = None) -> GraphArrays:
    generator = np.random.default_rng(0)
    edge_index = generator.integers(0, num_nodes, (2, num_nodes * degree))
    x = generator.standard_normal((num_nodes, 8)).astype(np.float32)
    edges = EdgeArrays(edge_index[:, edge_index[0] != edge_index[1]])
    return GraphArrays("grid", edges, num_nodes, features=DenseFeatures(x))


def test_two_hops_take_three_waits(make_snapshot: Callable[..., Snapshot], shards: Shards) -> None:
    snapshot = make_snapshot(_grid())
    push(snapshot, shards, "waits")
    pushed = ClusterGraph.open(shards, "waits")
    before = shards.waits
    seeds, plan = pushed.index_of(list(range(32))), FanoutPlan.of((10, 10))
    window = pushed.window(seeds, plan)
    assert shards.waits - before == 3
    assert _told(window.snapshot, plan, window.places(seeds)) == _told(snapshot, plan, seeds)


def test_rows_are_read_further_where_a_model_samples_more(
    make_snapshot: Callable[..., Snapshot], shards: Shards
) -> None:
    snapshot = make_snapshot(_grid())
    push(snapshot, shards, "further", head=4)
    pushed = ClusterGraph.open(shards, "further")
    seeds, plan = np.arange(20), FanoutPlan.of((7, 30))
    window = pushed.window(seeds, plan)
    assert _told(window.snapshot, plan, window.places(seeds)) == _told(snapshot, plan, seeds)


def test_a_push_goes_on_where_it_was(
    make_snapshot: Callable[..., Snapshot], shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make_snapshot(_grid(30_000, 2))
    put, written = Shards.put, []

    def put_some(self: Shards, hashes: Any, strings: Any) -> None:
        if len(written) == 2:
            raise GraphUnavailable("gone")
        written.append(hashes)
        put(self, hashes, strings)

    monkeypatch.setattr(Shards, "put", put_some)
    with pytest.raises(GraphUnavailable, match="gone"):
        push(snapshot, shards, "resumed")
    with pytest.raises(GraphUnavailable, match="push one"):
        ClusterGraph.open(shards, "resumed")
    written.clear()
    monkeypatch.setattr(Shards, "put", lambda *args: (written.append(args[1]), put(*args)))
    push(snapshot, shards, "resumed")
    assert len(written) == 2  # of four
    seeds, plan = np.arange(0, 30_000, 100), FanoutPlan.of((3,))
    window = ClusterGraph.open(shards, "resumed").window(seeds, plan)
    assert _told(window.snapshot, plan, window.places(seeds)) == _told(snapshot, plan, seeds)


def test_a_newer_snapshot_takes_the_place_of_the_older(
    make_snapshot: Callable[..., Snapshot], cluster: Cluster, shards: Shards
) -> None:
    first, second = (make_snapshot(_grid(number, 3)) for number in (50, 60))
    old = push(first, shards, "newer", head=2)
    push(second, shards, "newer", head=2)
    assert ClusterGraph.open(shards, "newer").manifest.graph.num_nodes == 60
    left = Keys("newer", graph_version(old)).prefix.encode()
    assert not [key for node in cluster.masters for key in node.client.scan_iter(match=left + b"*")]
    assert [key for node in cluster.masters for key in node.client.scan_iter(match=b"newer:*")]


def test_a_push_of_the_same_writes_nothing_again(
    make_snapshot: Callable[..., Snapshot], shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make_snapshot(_grid(50, 3))
    push(snapshot, shards, "same")
    monkeypatch.setattr(Shards, "put", None)
    push(snapshot, shards, "same")
    monkeypatch.undo()
    push(snapshot, shards, "same", partitions=3)
    assert ClusterGraph.open(shards, "same").manifest.partitions == 3


def test_what_is_not_there_is_said(make_snapshot: Callable[..., Snapshot], shards: Shards) -> None:
    with pytest.raises(GraphUnavailable, match="no graph 'nobody'"):
        ClusterGraph.open(shards, "nobody")
    with pytest.raises(GraphUnavailable, match="cluster"):
        Shards("redis://127.0.0.1:1", timeout_s=0.2)
    snapshot = make_snapshot(_grid(50, 3))
    with pytest.raises(GraphInputError, match="stores no ordering `recent`"):
        push(snapshot, shards, "orders", strategy="recent")
    manifest = push(snapshot, shards, "holes")
    keys = Keys("holes", graph_version(manifest))
    for key in (keys.nodes(7), keys.rows(8)):
        shards.ask([("HDEL", key, b"%d" % int(key.split("{")[1].split("}")[0]))])
    for node in (7, 8):
        with pytest.raises(GraphUnavailable, match="push it again"):
            ClusterGraph.open(shards, "holes").window(np.array([node]), FanoutPlan.of((2,)))


def test_what_is_read_often_is_not_asked_for_again(
    make_snapshot: Callable[..., Snapshot], shards: Shards
) -> None:
    snapshot = make_snapshot(_grid())
    push(snapshot, shards, "hot")
    pushed = ClusterGraph.open(shards, "hot", hot_bytes=10_000_000)
    seeds, plan = np.arange(32), FanoutPlan.of((10, 10))
    pushed.window(seeds, plan)
    before = shards.waits
    window = pushed.window(seeds, plan)
    assert shards.waits == before
    assert _told(window.snapshot, plan, window.places(seeds)) == _told(snapshot, plan, seeds)


@given(st.lists(st.lists(st.integers(0, 40), unique=True, max_size=30), max_size=12), st.integers(0, 1500))
def test_a_table_gives_what_was_put(asked: list[list[int]], max_bytes: int) -> None:
    dtype = np.dtype([("value", "<i8")])
    table = HotTable(dtype, max_bytes)
    for wanted in asked:
        index, found = np.array(wanted, dtype=np.int64), np.empty(len(wanted), dtype=dtype)
        missing = table.find(index, found)
        found["value"][missing] = index[missing] * 3
        assert found["value"].tolist() == [3 * each for each in wanted]
        table.keep(index[missing], found[missing])


def test_what_is_asked_for_often_stays() -> None:
    dtype = np.dtype([("value", "<i8")])
    table = HotTable(dtype, 200 * 17)
    often, generator = np.arange(20), np.random.default_rng(0)
    missed = 0
    for number in range(300):
        for index in (often, 1000 + 100 * number + generator.permutation(40)):
            missing = table.find(index, np.empty(len(index), dtype=dtype))
            missed += len(missing) if index is often and number > 10 else 0
            table.keep(index[missing], np.zeros(len(missing), dtype=dtype))
    assert missed < 0.05 * 20 * 290
