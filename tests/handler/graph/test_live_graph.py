"""A graph that changes answers as one that is built from scratch at that moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.writer import BuildPlan
from tests.graphs import EdgeData, graphs_with_edge_data
from tests.live import Change, LiveEdge, SlowGraph, changes, sampled

strategies = st.sampled_from(STRATEGIES)
rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())
EVERY_EDGE = FanoutPlan.of((999,))
TWO_HOPS = FanoutPlan.of((2, 3))


class Both:
    """A live graph and its slow twin."""

    def __init__(self, graph: EdgeData, plan: BuildPlan, sampling: Sampling) -> None:
        self.plan, self.sampling = plan, sampling
        self.slow = SlowGraph.of(graph, plan.rules)
        self.live = LiveGraph(graph.to_snapshot(plan), sampling)
        self.seq = 0

    def apply(self, change: Change) -> None:
        self.seq += 1
        self.live.apply(change.to_mutations(len(self.slow.ids)), self.seq)
        self.slow.apply(change)

    def check(self, plan: FanoutPlan, as_of: float | None = None) -> None:
        rebuilt = self.slow.to_snapshot(self.plan)
        # Equal edges of a multigraph are numbered as they lie: in another order they may change places.
        with_attr = not (self.plan.rules.multigraph and self.plan.extra_orderings)
        here = sampled(self.live, self.sampling, plan, as_of, with_attr=with_attr)
        assert here == sampled(rebuilt, self.sampling, plan, as_of, with_attr=with_attr)
        assert self.live.num_edges == rebuilt.num_edges

    def change_and_check(self, data: st.DataObject, plan: FanoutPlan, as_of: float | None = None) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            self.apply(data.draw(changes(self.slow.ids)))
            self.check(plan, as_of)


@settings(max_examples=100)
@given(graphs_with_edge_data(), strategies, rules, st.data())
def test_rows_equal_those_built_from_scratch(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, data: st.DataObject
) -> None:
    both = Both(graph, BuildPlan(Ordering(strategy, 7), rules=rules), Sampling())
    both.change_and_check(data, EVERY_EDGE)


@given(graphs_with_edge_data(), strategies, strategies, rules, st.data())
def test_another_order_is_kept_as_well(
    graph: EdgeData, own: Strategy, extra: Strategy, rules: EdgeRules, data: st.DataObject
) -> None:
    if own == extra:
        return
    plan = BuildPlan(Ordering(own), (Ordering(extra, 3),), rules)
    Both(graph, plan, Sampling(strategy=extra)).change_and_check(data, EVERY_EDGE)


@given(graphs_with_edge_data(), strategies, rules, st.sampled_from([None, "walk", "random"]), st.data())
def test_trees_equal_those_built_from_scratch(
    graph: EdgeData, own: Strategy, rules: EdgeRules, strategy: Any, data: st.DataObject
) -> None:
    both = Both(graph, BuildPlan(Ordering(own), rules=rules), Sampling(strategy=strategy, num_walks=5))
    both.change_and_check(data, TWO_HOPS)


@given(graphs_with_edge_data(), rules, st.booleans(), st.floats(-4, 4), st.data())
def test_the_past_equals_that_of_a_graph_built_from_scratch(
    graph: EdgeData, rules: EdgeRules, is_extra: bool, as_of: float, data: st.DataObject
) -> None:
    plan = BuildPlan(Ordering("recent"), rules=rules)
    if is_extra:
        plan = BuildPlan(Ordering("seeded"), (Ordering("recent"),), rules)
    Both(graph, plan, Sampling(strategy="recent")).change_and_check(data, TWO_HOPS, as_of)


@given(graphs_with_edge_data(), strategies, rules, st.data())
def test_degrees_are_those_of_the_graph_as_it_is(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, data: st.DataObject
) -> None:
    both = Both(graph, BuildPlan(Ordering(strategy), rules=rules), Sampling())
    both.apply(data.draw(changes(both.slow.ids)))
    rebuilt = both.slow.to_snapshot(both.plan)
    found: list[NDArray[np.float32]] = []
    for each in (both.live, rebuilt):
        sampler = each.sampler()
        trees = sampler.trees(np.arange(each.num_nodes), TWO_HOPS)
        found.append(sampler.sampled_degree(trees, (2, 3)))
        found.append(sampler.sampled_degree(trees, (2, 3), weighted=True))
    assert found[0].tolist() == found[2].tolist()
    assert found[1].tolist() == found[3].tolist()


@given(graphs_with_edge_data(), strategies, rules, st.floats(0.5, 8), st.floats(-4, 4), st.data())
def test_edges_that_are_too_old_are_not_sampled(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, age: float, now: float, data: st.DataObject
) -> None:
    """Where no `as_of` says what now is, the clock does: here it stands at a time that the edges know."""
    rules = replace_age(rules, age)
    both = Both(graph, BuildPlan(Ordering(strategy), rules=rules), Sampling())
    both.apply(data.draw(changes(both.slow.ids)))
    young = SlowGraph(
        replace_age(rules, None),
        both.slow.ids,
        both.slow.x,
        [e for e in both.slow.edges if e.time >= now - age],
    )
    rebuilt = young.to_snapshot(both.plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("handler.graph.sampler.time.time", lambda: now)
        assert sampled(both.live, Sampling(), EVERY_EDGE) == sampled(rebuilt, Sampling(), EVERY_EDGE)
        assert sampled(both.slow.to_snapshot(both.plan), Sampling(), TWO_HOPS) == sampled(
            rebuilt, Sampling(), TWO_HOPS
        )


def replace_age(rules: EdgeRules, age: float | None) -> EdgeRules:
    return EdgeRules(rules.undirected, rules.duplicates, rules.self_loops, age)


@given(graphs_with_edge_data(), strategies, rules, st.integers(0, 5), st.data())
def test_a_node_and_its_edges_can_be_taken_back(
    graph: EdgeData, strategy: Strategy, rules: EdgeRules, num_edges: int, data: st.DataObject
) -> None:
    both = Both(graph, BuildPlan(Ordering(strategy), rules=rules), Sampling())
    both.apply(data.draw(changes(both.slow.ids)))
    before = sampled(both.live, Sampling(), EVERY_EDGE)
    new = len(both.slow.ids)
    place = st.integers(0, new)
    edges = data.draw(st.lists(st.tuples(place, st.just(new)), min_size=num_edges, max_size=num_edges))
    edges += [(new, u) for u, _ in edges]
    node_id = "unheard" if isinstance(both.slow.ids[0], str) else 2**62 + 12345
    guest = Change((node_id,), ((new, 3.0),), (), tuple(LiveEdge(u, v, 1.0, 1.0, 5.0) for u, v in edges))
    with both.live.with_guest(guest.to_mutations(new)):
        assert both.live.num_nodes == new + 1
        if not both.slow.rules.undirected:
            trees = both.live.sampler().trees(np.array([new]), EVERY_EDGE)
            assert len(trees.node) > 1 or not any(v == new and u != v for u, v in edges)
    assert sampled(both.live, Sampling(), EVERY_EDGE) == before
    both.apply(data.draw(changes(both.slow.ids)))
    both.check(EVERY_EDGE)


def test_a_hub_grows_and_shrinks() -> None:
    """More edges than every array begins with, in one row."""
    graph = EdgeData([0, 1], [(0, 1)], [1.0], [0.0])
    for strategy in STRATEGIES:
        both = Both(graph, BuildPlan(Ordering(strategy)), Sampling())
        nodes = tuple(range(2, 3000))
        added = tuple(LiveEdge(u, 1, 1.0 + u % 7, float(u % 100), float(u)) for u in nodes)
        both.apply(Change(nodes, (), (), added))
        both.check(EVERY_EDGE_OF_HUB)
        both.apply(Change((), (), tuple((u, 1, None) for u in range(0, 3000, 3)), added[:500]))
        both.check(EVERY_EDGE_OF_HUB)


EVERY_EDGE_OF_HUB = FanoutPlan.of((5000,))
