"""Neighbours that are computed: walks, and draws for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.sampler import Sampler
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from tests import reference
from tests.graphs import SmallGraph, layer_fanouts, small_graphs

seeds = st.integers(0, 2**63 - 1)


def _sampler(snapshot: Snapshot, strategy: Any, **options: int) -> Sampler:
    return snapshot.sampler(Sampling(strategy=strategy, **options))


def _one_hop(sampler: Sampler, v: int, fanout: int) -> list[int]:
    return sampler.trees(np.array([v]), FanoutPlan.of((fanout,))).node[1:].tolist()


@given(small_graphs(), seeds, st.integers(1, 20), st.integers(1, 4), st.integers(1, 5))
def test_walks_equal_the_reference(
    graph: SmallGraph, seed: int, num_walks: int, walk_length: int, fanout: int
) -> None:
    snapshot = graph.to_snapshot()
    sampler = _sampler(snapshot, "walk", seed=seed, num_walks=num_walks, walk_length=walk_length)
    rows = {v: [u for u, _ in reference.ordered(graph.to_networkx(), v)] for v in graph.ids}
    for place, v in enumerate(graph.ids):
        trees = sampler.trees(np.array([place]), FanoutPlan.of((fanout,)))
        shares = sampler.edge_weight(trees)
        assert shares is not None
        wanted = reference.walks(rows, v, num_walks, walk_length, seed)[:fanout]
        assert snapshot.ids.id_of(trees.node[1:]) == [u for u, _ in wanted]
        assert np.allclose(shares, [share for _, share in wanted], rtol=1e-6)
        assert (trees.edge == -1).all()


@given(small_graphs(), layer_fanouts, st.sampled_from(["walk", "random"]), seeds)
def test_a_computed_tree_does_not_depend_on_its_company(
    graph: SmallGraph, fanouts: tuple[int, ...], strategy: str, seed: int
) -> None:
    sampler, plan = _sampler(graph.to_snapshot(), strategy, seed=seed), FanoutPlan.of(fanouts)
    everyone = np.arange(len(graph.ids))
    together = sampler.trees(np.concatenate([everyone, everyone[::-1]]), plan)
    for place, v in enumerate([*everyone, *everyone[::-1]]):
        tree = slice(together.ptr[place], together.ptr[place + 1])
        assert together.node[tree].tolist() == sampler.trees(np.array([v]), plan).node.tolist()


@given(small_graphs(), st.sampled_from(["walk", "random"]), st.integers(1, 6), st.integers(1, 6), seeds)
def test_a_smaller_computed_sample_is_a_prefix(
    graph: SmallGraph, strategy: str, small: int, large: int, seed: int
) -> None:
    sampler = _sampler(graph.to_snapshot(), strategy, seed=seed)
    small, large = sorted((small, large))
    for v in range(len(graph.ids)):
        assert _one_hop(sampler, v, small) == _one_hop(sampler, v, large)[:small]


@given(small_graphs(min_nodes=2), st.integers(1, 3), st.data())
def test_a_walk_changes_only_where_it_comes_by(
    graph: SmallGraph, walk_length: int, data: st.DataObject
) -> None:
    """Walks leave a node against its edges; one that cannot reach the changed row in time stays as it was."""
    place = st.integers(0, len(graph.ids) - 1)
    u, v = data.draw(st.tuples(place, place))
    more = SmallGraph(graph.ids, [*graph.edges, (u, v)])
    before, after = (_sampler(g.to_snapshot(), "walk", walk_length=walk_length) for g in (graph, more))
    slow = graph.to_networkx().reverse()
    for node, node_id in enumerate(graph.ids):
        near = nx.single_source_shortest_path_length(slow, node_id, cutoff=walk_length - 1)
        if graph.ids[v] not in near:
            assert _one_hop(before, node, 5) == _one_hop(after, node, 5)


@given(small_graphs(), st.integers(1, 12), seeds)
def test_drawn_neighbors_are_distinct_edges_of_the_node(graph: SmallGraph, fanout: int, seed: int) -> None:
    snapshot = graph.to_snapshot()
    sampler, indptr = _sampler(snapshot, "random", seed=seed), snapshot.adjacency.indptr
    trees = sampler.trees(np.arange(len(graph.ids)), FanoutPlan.of((fanout,)))
    assert len(set(trees.edge.tolist())) == len(trees.edge)
    parent = trees.node[trees.edge_index[1]]
    assert ((indptr[parent] <= trees.edge) & (trees.edge < indptr[parent + 1])).all()
    degree = np.diff(indptr)
    assert np.bincount(parent, minlength=len(degree)).tolist() == np.minimum(degree, fanout).tolist()
    assert (snapshot.adjacency.indices[trees.edge] == trees.node[trees.edge_index[0]]).all()


def test_draws_are_uniform_over_seeds_and_differ_between_them(
    make_snapshot: Callable[..., Snapshot],
) -> None:
    """Chi-square over the ordered pairs drawn of seven neighbours, with 14,000 seeds."""
    edges = EdgeArrays(np.stack([np.arange(1, 8), np.zeros(7, dtype=np.int64)]))
    snapshot, num_seeds = make_snapshot(GraphArrays("star", edges, 8)), 14_000
    pairs = np.zeros((8, 8))
    for seed in range(num_seeds):
        pairs[tuple(_one_hop(_sampler(snapshot, "random", seed=seed), 0, 2))] += 1
    apart = np.zeros((8, 8), dtype=bool)
    apart[1:, 1:] = ~np.eye(7, dtype=bool)
    wanted = num_seeds / 42
    assert pairs[~apart].sum() == 0
    # 0.999 quantile of chi-square with 41 degrees of freedom
    assert ((pairs[apart] - wanted) ** 2 / wanted).sum() < 74.7


def test_too_long_walks_are_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2))
    with pytest.raises(GraphInputError, match="num_walks times walk_length must be at most 65536"):
        _sampler(snapshot, "walk", num_walks=1000, walk_length=1000)
