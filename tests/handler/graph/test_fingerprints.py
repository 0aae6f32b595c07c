"""A fingerprint changes exactly when something changes that the model is given of the tree."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from handler.graph.fanout import FanoutPlan
from handler.graph.files import write_contents
from handler.graph.fingerprints import fingerprints
from handler.graph.folding import folded
from handler.graph.live_graph import LiveGraph
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests.graphs import EdgeData, graphs_with_edge_data
from tests.live import Change, LiveEdge, SlowGraph, changes

FANOUTS = (2, 3)
PLAN = FanoutPlan.of(FANOUTS)
rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())
RING = EdgeData([10, 11, 12, 13, 14], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)], [1.0] * 5, [0.0] * 5)


class Watched:
    """A graph, and by which change the features of each node were set last."""

    def __init__(
        self, graph: EdgeData, plan: BuildPlan | None = None, sampling: Sampling | None = None
    ) -> None:
        self.sampling = sampling or Sampling()
        self.live = LiveGraph(graph.to_snapshot(plan or BuildPlan()), self.sampling)
        self.slow = SlowGraph.of(graph, (plan or BuildPlan()).rules)
        self.featured: dict[int, int] = {}
        self.seq = 0

    def apply(self, change: Change) -> None:
        self.seq += 1
        self.live.apply(change.to_mutations(len(self.slow.ids)), self.seq)
        self.live.seq = self.seq
        self.slow.apply(change)
        self.featured |= {node: self.seq for node, _ in change.features}

    def fingerprints(self, *, weighted: bool = True, degrees: bool = False, key: int = 5) -> list[int]:
        sampler = self.live.sampler()
        trees = sampler.trees(np.arange(self.live.num_nodes), PLAN)
        return fingerprints(
            trees,
            key,
            self.live.feature_changes,
            edge_weight=sampler.edge_weight(trees) if weighted else None,
            edge_attr=sampler.edge_attr(trees) if weighted else None,
            degree=sampler.sampled_degree(trees, FANOUTS) if degrees else None,
        ).tolist()

    def given(self, *, weighted: bool = True) -> list[Any]:
        """For each node all that a model is given of its tree, as Python objects."""
        sampler = self.live.sampler()
        found: list[Any] = []
        for node in range(self.live.num_nodes):
            trees = sampler.trees(np.array([node]), PLAN)
            weight, attr = sampler.edge_weight(trees), sampler.edge_attr(trees)
            assert weight is not None
            edge = (weight.tolist(), None if attr is None else attr.tolist()) if weighted else None
            numbers = [self.featured.get(each, 0) for each in trees.node.tolist()]
            found.append((trees.node.tolist(), trees.edge_index[1].tolist(), edge, numbers))
        return found

    def compact(self) -> None:
        """Go on from a snapshot of all that there is."""
        with TemporaryDirectory() as folder:
            write_contents(Path(folder), folded(self.live))
            self.live = LiveGraph(Snapshot.open(Path(folder)), self.sampling)


@settings(max_examples=100)
@given(graphs_with_edge_data(), st.sampled_from(STRATEGIES), rules, st.booleans(), st.data())
def test_a_tree_is_stale_exactly_if_what_it_gives_has_changed(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, weighted: bool, data: st.DataObject
) -> None:
    watched = Watched(graph, BuildPlan(Ordering(strategy), rules=rules))
    for _ in range(data.draw(st.integers(1, 4))):
        before, gave = watched.fingerprints(weighted=weighted), watched.given(weighted=weighted)
        watched.apply(data.draw(changes(watched.slow.ids)))
        if data.draw(st.booleans()):
            watched.compact()
        after, gives = watched.fingerprints(weighted=weighted), watched.given(weighted=weighted)
        for node in range(len(before)):
            assert (before[node] == after[node]) == (gave[node] == gives[node])


@given(graphs_with_edge_data(), st.sampled_from([None, "walk"]), st.data())
def test_a_compaction_makes_nothing_stale(graph: EdgeData, strategy: Any, data: st.DataObject) -> None:
    watched = Watched(graph, sampling=Sampling(strategy=strategy, num_walks=5))
    for _ in range(2):
        watched.apply(data.draw(changes(watched.slow.ids)))
        before = watched.fingerprints()
        watched.compact()
        assert watched.fingerprints() == before


def test_one_edge_makes_stale_the_nodes_whose_trees_it_enters_and_no_others() -> None:
    ring = Watched(RING)
    before = ring.fingerprints()
    ring.apply(Change(added=(LiveEdge(3, 1, 1.0, 0.0, 0.0),)))  # into 1, of which 2 and 3 sample
    after = ring.fingerprints()
    assert [old != new for old, new in zip(before, after, strict=True)] == [False, True, True, False, False]
    ring.apply(Change(removed=((3, 1, None),)))
    assert ring.fingerprints() == before


def test_features_make_stale_the_nodes_whose_trees_have_them() -> None:
    ring = Watched(RING)
    before = ring.fingerprints()
    ring.apply(Change(features=((0, 4.0),)))
    after = ring.fingerprints()
    assert [old != new for old, new in zip(before, after, strict=True)] == [True, True, True, False, False]


def test_degrees_count_where_a_layer_reads_them() -> None:
    ring = Watched(RING)
    plain, before = ring.fingerprints(weighted=False), ring.fingerprints(weighted=False, degrees=True)
    ring.apply(Change(added=(LiveEdge(1, 3, 1.0, 0.0, 0.0),)))  # 3 is a leaf of the tree of 0: by 4 and 3
    after = ring.fingerprints(weighted=False, degrees=True)
    assert ring.fingerprints(weighted=False)[0] == plain[0]
    assert before[0] != after[0]


def test_another_key_makes_other_fingerprints_and_none_is_zero() -> None:
    ring = Watched(RING)
    one, other = ring.fingerprints(key=1), ring.fingerprints(key=2)
    assert not set(one) & set(other)
    assert 0 not in one
    assert len(set(one)) == len(one)
