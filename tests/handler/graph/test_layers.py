"""Trees by hop hold what the trees hold, each layer no more than it needs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from handler.graph.fanout import FanoutPlan
from handler.graph.layers import arrange_layers
from handler.graph.ordering import Ordering
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.writer import BuildPlan
from tests import reference
from tests.graphs import EdgeData, SmallGraph, graphs_with_edge_data, layer_fanouts, small_graphs

seeds_of = st.lists(st.integers(0, 8), min_size=1, max_size=6)


@given(small_graphs(), layer_fanouts, seeds_of, st.integers(0, 3))
def test_each_layer_has_the_edges_that_it_aggregates(
    graph: SmallGraph, fanouts: tuple[int, ...], seeds: list[int], num_hops: int
) -> None:
    plan = FanoutPlan(fanouts, min(num_hops, len(fanouts)))
    index = np.array([seed % len(graph.ids) for seed in seeds])
    trees = graph.to_snapshot().sampler().trees(index, plan)
    layered = arrange_layers(trees, fanouts)
    assert sorted(layered.order) == list(range(len(trees.node)))
    hop, node = trees.hop[layered.order], trees.node[layered.order]
    assert np.array_equal(hop, np.sort(hop))
    assert np.array_equal(node[: len(index)], index)
    parent = dict(zip(trees.edge_index[0].tolist(), trees.edge_index[1].tolist(), strict=True))
    for number, (layer, fanout) in enumerate(zip(layered.layers, fanouts, strict=True), start=1):
        reached = len(fanouts) - number
        num_targets = int((hop <= reached).sum())
        assert layer.num_sources == (hop <= reached + 1).sum()
        assert len(layer.ptr) == num_targets + 1
        assert layer.edge_index.flags.c_contiguous
        source, target = layer.edge_index
        assert np.array_equal(np.repeat(np.arange(num_targets), np.diff(layer.ptr)), target)
        # As many as the trees have, each with its own parent, in the order of the ranks.
        wanted = (trees.hop[trees.edge_index[1]] <= reached) & (trees.edge_rank < fanout)
        assert sorted(layer.edge) == np.flatnonzero(wanted).tolist()
        assert np.array_equal(layered.order[source], trees.edge_index[0][layer.edge])
        for child, above in zip(layered.order[source], layered.order[target], strict=True):
            assert parent[child] == above
        for start, end in zip(layer.ptr[:-1], layer.ptr[1:], strict=True):
            assert trees.edge_rank[layer.edge[start:end]].tolist() == list(range(end - start))


@given(
    graphs_with_edge_data(),
    layer_fanouts,
    st.sampled_from(["seeded", "weighted", "top_weight", "recent", "first"]),
    st.none() | st.integers(-3, 3),
)
def test_degrees_are_those_of_samples(
    graph: EdgeData, fanouts: tuple[int, ...], strategy: str, as_of: int | None
) -> None:
    extra = () if strategy == "seeded" else (Ordering(strategy),)  # type: ignore[arg-type]
    snapshot = graph.to_snapshot(BuildPlan(rules=EdgeRules(duplicates="keep"), extra_orderings=extra))
    sampler = snapshot.sampler(Sampling(strategy=strategy))  # type: ignore[arg-type]
    everyone = np.arange(len(graph.ids))
    times = None
    if as_of is not None and strategy == "recent":
        times = np.full(len(everyone), float(as_of))
    trees = sampler.trees(everyone, FanoutPlan.of(fanouts), times)
    counted = sampler.sampled_degree(trees, fanouts, times)
    weighed = sampler.sampled_degree(trees, fanouts, times, weighted=True)
    slow = graph.to_networkx()
    for place, index in enumerate(trees.node):
        row = reference.ordered(slow, graph.ids[index], strategy)
        if times is not None:
            row = [(u, data) for u, data in row if data["time"] <= times[0]]
        for layer, fanout in enumerate(fanouts):
            sample = row[:fanout]
            assert counted[layer, place] == len(sample)
            assert weighed[layer, place] == sum(data["weight"] for _, data in sample)
