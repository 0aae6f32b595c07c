"""What changes in a graph changes in the cluster, and counts there once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler.errors import GraphUnavailable, LogGap
from handler.graph.cluster.layout import Keys
from handler.graph.cluster.mirror import Mirror, matching
from handler.graph.cluster.push import graph_version, push
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.window import ClusterGraph
from handler.graph.fanout import FanoutPlan
from handler.graph.follower import Follower, follow
from handler.graph.home import GraphHome, write_home
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import encode_mutations
from handler.graph.ordering import STRATEGIES, Ordering
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.writer import BuildPlan
from handler.log.embedded import LmdbLog
from handler.log.protocol import Record
from tests.clusters import Cluster
from tests.graphs import EdgeData, graphs_with_edge_data, layer_fanouts
from tests.live import Change, LiveEdge, changes
from tests.served import RING

rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())
EDGES = EdgeData([0, 1, 2, 3], [(0, 1), (1, 2), (2, 3)], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0])


class Mirrored:
    """A graph that changes, and the cluster that follows it."""

    def __init__(self, folder: Path, shards: Shards, graph: EdgeData, plan: BuildPlan, **layout: int) -> None:
        write_home(folder, graph.to_arrays(), plan)
        self.home = GraphHome.read(folder)
        self.follower: Follower[LiveGraph] = follow(folder, lambda graph: graph)
        self.shards = shards
        try:
            with self.follower.reading() as live:
                self.manifest = push(live.snapshot, shards, "mirrored", graph_id=self.home.graph_id, **layout)
            self.mirror = self.another()
        except BaseException:
            self.follower.close()
            raise

    def another(self) -> Mirror:
        return Mirror(
            self.follower, self.shards, Keys("mirrored", graph_version(self.manifest)), self.manifest
        )

    def change(self, change: Change) -> None:
        """Append to the log."""
        log = LmdbLog.open(self.home.log_folder, self.home.graph_id)
        with self.follower.at_the_end() as live:
            mutations = change.to_mutations(live.num_nodes)
        last = log.last_seq()
        if len(mutations):
            log.append([Record(last + 1, last + len(mutations), encode_mutations(mutations))], [], last)
        log.close()

    def check(self, opened: ClusterGraph, node_ids: list[Any], plan: FanoutPlan) -> None:
        """The trees of nodes are in the cluster what they are here."""
        assert opened.is_current()
        with self.follower.at_the_end() as live:
            assert opened.reached.seq == live.seq
            seeds = opened.index_of(node_ids)
            assert seeds.tolist() == live.ids.index_of(node_ids).tolist()
            window = opened.window(seeds, plan)
            assert window.snapshot.seq == live.seq
            ours = LiveGraph(window.snapshot, Sampling(), is_partial=True)
            assert _told(ours, plan, window.places(seeds)) == _told(live, plan, seeds)

    def close(self) -> None:
        self.mirror.close()
        self.follower.close()


def _told(graph: LiveGraph, plan: FanoutPlan, seeds: NDArray[np.int64]) -> list[Any]:
    sampler = graph.sampler()
    trees = sampler.trees(seeds, plan)
    assert graph.features is not None
    weight, attr = sampler.edge_weight(trees), sampler.edge_attr(trees)
    assert weight is not None
    assert attr is not None
    return [
        graph.ids.id_of(trees.node),
        trees.edge_index.tolist(),
        weight.tolist(),
        attr.tolist(),
        graph.features.gather(trees.node).tolist(),
        graph.features.change_numbers_of(trees.node).tolist(),
        [graph.created_at(node) for node in trees.node.tolist()],
    ]


@contextmanager
def _mirrored(shards: Shards, graph: EdgeData = EDGES, **options: Any) -> Iterator[Mirrored]:
    with TemporaryDirectory() as folder:
        mirrored = Mirrored(Path(folder, "graph"), shards, graph, options.pop("plan", BuildPlan()), **options)
        try:
            yield mirrored
        finally:
            mirrored.close()


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(graphs_with_edge_data(), st.sampled_from(STRATEGIES), rules, layer_fanouts, st.data())
def test_after_any_changes_the_cluster_has_what_the_graph_has(
    shards: Shards,
    graph: EdgeData,
    strategy: Any,
    rules: EdgeRules,
    fanouts: tuple[int, ...],
    data: st.DataObject,
) -> None:
    plan = BuildPlan(Ordering(strategy), rules=rules)
    layout = {"head": data.draw(st.integers(1, 4)), "partitions": data.draw(st.integers(1, 4))}
    with _mirrored(shards, graph, plan=plan, **layout) as mirrored:
        opened = ClusterGraph.open(shards, "mirrored", data.draw(st.sampled_from([0, 100_000])))
        ids = list(graph.ids)
        for _ in range(data.draw(st.integers(1, 4))):
            change = data.draw(changes(ids))
            mirrored.change(change)
            ids += change.nodes
            if data.draw(st.booleans()):  # else several together
                mirrored.mirror.step()
                asked = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=4))
                mirrored.check(opened, asked, FanoutPlan.of(fanouts))
        mirrored.mirror.step()
        mirrored.check(opened, ids, FanoutPlan.of(fanouts))
        mirrored.check(ClusterGraph.open(shards, "mirrored"), ids, FanoutPlan.of(fanouts))


def test_a_step_that_was_cut_short_is_done_again(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    with _mirrored(shards) as mirrored:
        opened = ClusterGraph.open(shards, "mirrored", 100_000)
        mirrored.check(opened, [0, 1, 2, 3], FanoutPlan.of((3, 3)))
        mirrored.change(Change((7,), ((4, 2.0), (0, 5.0)), ((1, 2, None),), (LiveEdge(4, 3, 1.0, 9.0, 9.0),)))
        put = Shards.put
        for limit in range(2):
            written: list[Any] = []

            def put_some(*args: Any, limit: int = limit, written: list[Any] = written) -> None:
                if len(written) == limit:
                    raise GraphUnavailable("gone")
                written.append(args)
                put(*args)

            monkeypatch.setattr(Shards, "put", put_some)
            with pytest.raises(GraphUnavailable, match="gone"):
                mirrored.mirror.step()
            assert opened.is_current()
            assert opened.reached.seq == 0
            monkeypatch.undo()
        mirrored.mirror.close()
        mirrored.mirror = mirrored.another()  # as after a crash
        assert mirrored.mirror.step() == 5
        assert mirrored.mirror.step() == 0
        mirrored.check(opened, [0, 1, 2, 3, 7], FanoutPlan.of((3, 3)))


def test_whoever_reads_far_behind_keeps_nothing_that_is_stale(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handler.graph.cluster.mirror._MOST_CHANGES", 1)
    with _mirrored(shards) as mirrored:
        opened = ClusterGraph.open(shards, "mirrored", 100_000)
        mirrored.check(opened, [0, 1, 2, 3], FanoutPlan.of((3, 3)))
        for value in range(5):
            mirrored.change(Change(features=((value % 4, 10.0 + value),)))
            mirrored.mirror.step()
        shards.ask([("XTRIM", Keys("mirrored", graph_version(mirrored.manifest)).changes, "MAXLEN", 1)])
        mirrored.check(opened, [0, 1, 2, 3], FanoutPlan.of((3, 3)))


def test_a_log_that_does_not_reach_back_is_said(shards: Shards) -> None:
    with _mirrored(shards) as mirrored:
        assert matching(shards, "mirrored", mirrored.manifest) is not None
        mirrored.mirror.close()
        for value in (1.0, 2.0):
            mirrored.change(Change(features=((0, value),)))
        deadline = time.monotonic() + 10
        while mirrored.follower.log.truncate(1) != 2:  # once the follower says that it has read so far
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(LogGap):
            mirrored.another()


def test_a_bare_snapshot_is_of_no_graph_that_could_be_followed(shards: Shards) -> None:
    manifest = push(RING.to_snapshot(BuildPlan()), shards, "bare")
    assert matching(shards, "bare", manifest) is None
    assert matching(shards, "nobody", manifest) is None


def test_what_a_failover_has_lost_is_written_again(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    with _mirrored(shards) as mirrored:
        opened = ClusterGraph.open(shards, "mirrored", 100_000)
        keys = Keys("mirrored", graph_version(mirrored.manifest))
        place = keys.rows(3 % mirrored.manifest.partitions)
        (old,) = shards.ask([("HGET", place, b"3")])
        mirrored.change(Change(added=(LiveEdge(0, 3, 1.0, 9.0, 9.0),)))
        assert mirrored.mirror.step() == 1
        shards.ask([("HSET", place, b"3", old)])  # as of a replica that was behind
        mirrored.mirror._looked_s = 0.0
        assert mirrored.mirror.step() == 0  # the masters are the same ones
        assert opened.is_current()
        opened.window(np.array([3]), FanoutPlan.of((3, 3)))  # reads, and keeps, what is stale
        monkeypatch.setattr(Shards, "masters", lambda self: frozenset({"another"}))
        mirrored.mirror._looked_s = 0.0
        assert mirrored.mirror.step() == 0
        mirrored.check(opened, [0, 1, 2, 3], FanoutPlan.of((3, 3)))


def test_masters_are_known(cluster: Cluster, shards: Shards) -> None:
    assert shards.masters() == {node.cluster_id() for node in cluster.masters}
