"""Nothing later than the time that was asked for is ever sampled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from handler.graph.fanout import FanoutPlan
from handler.graph.ordering import Ordering
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests import reference
from tests.graphs import EdgeData, graphs_with_edge_data, layer_fanouts

RULES = EdgeRules(duplicates="keep")
OWN = BuildPlan(Ordering("recent"), rules=RULES)
EXTRA = BuildPlan(Ordering("seeded"), (Ordering("recent"),), rules=RULES)


@given(graphs_with_edge_data(), layer_fanouts, st.sampled_from([OWN, EXTRA]), st.data())
def test_no_edge_is_later_at_any_hop_and_the_most_recent_come_first(
    graph: EdgeData, fanouts: tuple[int, ...], plan: BuildPlan, data: st.DataObject
) -> None:
    snapshot, slow = graph.to_snapshot(plan), graph.to_networkx()
    count = len(graph.ids)
    as_of = np.array(data.draw(st.lists(st.floats(-4, 4), min_size=count, max_size=count)))
    sampler = snapshot.sampler(Sampling(strategy="recent"))
    trees = sampler.trees(np.arange(count), FanoutPlan.of(fanouts), as_of)
    time = snapshot.adjacency.edge_time
    assert time is not None
    edge_tree = np.searchsorted(trees.ptr, trees.edge_index[1], side="right") - 1
    assert (time[trees.edge] <= as_of[edge_tree]).all()
    for place, v in enumerate(graph.ids):
        possible = [u for u, edge in reference.ordered(slow, v, "recent") if edge["time"] <= as_of[place]]
        tree = slice(trees.ptr[place], trees.ptr[place + 1])
        first_hop = trees.node[tree][trees.hop[tree] == 1]
        assert snapshot.ids.id_of(first_hop) == possible[: FanoutPlan.of(fanouts).hop_fanouts[0]]


@given(graphs_with_edge_data(), st.sampled_from([OWN, EXTRA]))
def test_the_latest_time_is_no_limit(graph: EdgeData, plan: BuildPlan) -> None:
    snapshot: Snapshot = graph.to_snapshot(plan)
    sampler, everyone = snapshot.sampler(Sampling(strategy="recent")), np.arange(len(graph.ids))
    limited = sampler.trees(everyone, FanoutPlan.of((3, 2)), np.full(len(everyone), 3.0))
    assert limited.node.tolist() == sampler.trees(everyone, FanoutPlan.of((3, 2))).node.tolist()
