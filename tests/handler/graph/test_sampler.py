"""The laws of sampling, against NetworkX and Python's own sort."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from handler.graph.fanout import FanoutPlan
from handler.graph.ordering import Ordering
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests import reference
from tests.graphs import SmallGraph, layer_fanouts, small_graphs


def _sample(snapshot: Snapshot, v: object, fanout: int) -> list[object]:
    """S(v, f), as ids."""
    index = snapshot.ids.index_of([v])  # type: ignore[list-item]
    trees = snapshot.sampler().trees(index, FanoutPlan.of((fanout,)))
    return list(snapshot.ids.id_of(trees.node[1:]))


@given(small_graphs(), layer_fanouts, st.integers(0, 2**63 - 1))
def test_trees_equal_the_reference(graph: SmallGraph, fanouts: tuple[int, ...], seed: int) -> None:
    snapshot = graph.to_snapshot(BuildPlan(Ordering("seeded", seed)))
    slow, plan = graph.to_networkx(), FanoutPlan.of(fanouts)
    trees = snapshot.sampler().trees(np.arange(len(graph.ids)), plan)
    for place, node_id in enumerate(graph.ids):
        begin, end = trees.ptr[place], trees.ptr[place + 1]
        levels = reference.sample_tree(slow, node_id, plan.hop_fanouts, seed).by_hop()
        assert snapshot.ids.id_of(trees.node[begin:end]) == [node for level in levels for node in level]
        hops = [hop for hop, level in enumerate(levels) for _ in level]
        assert trees.hop[begin:end].tolist() == hops


@given(small_graphs(), layer_fanouts)
def test_every_node_but_the_seed_has_one_edge_to_its_parent(
    graph: SmallGraph, fanouts: tuple[int, ...]
) -> None:
    snapshot = graph.to_snapshot()
    trees = snapshot.sampler().trees(np.arange(len(graph.ids)), FanoutPlan.of(fanouts))
    child, parent = trees.edge_index
    assert child.tolist() == np.setdiff1d(np.arange(len(trees.node)), trees.ptr[:-1]).tolist()
    assert (trees.hop[child] == trees.hop[parent] + 1).all()
    rows = snapshot.adjacency.indptr[trees.node[parent]] + trees.edge_rank
    assert (snapshot.adjacency.indices[rows] == trees.node[child]).all()


@given(small_graphs(), layer_fanouts)
def test_a_tree_does_not_depend_on_its_company(graph: SmallGraph, fanouts: tuple[int, ...]) -> None:
    snapshot, plan = graph.to_snapshot(), FanoutPlan.of(fanouts)
    everyone = np.arange(len(graph.ids))
    together = snapshot.sampler().trees(np.concatenate([everyone, everyone[::-1]]), plan)
    for place, seed in enumerate([*everyone, *everyone[::-1]]):
        alone = snapshot.sampler().trees(np.array([seed]), plan)
        begin, end = together.ptr[place], together.ptr[place + 1]
        assert together.node[begin:end].tolist() == alone.node.tolist()
        edges = slice(begin - place, end - place - 1)
        assert (together.edge_index[:, edges] - begin).tolist() == alone.edge_index.tolist()
        assert together.edge_rank[edges].tolist() == alone.edge_rank.tolist()


@given(small_graphs(), st.integers(1, 6), st.integers(1, 6))
def test_a_smaller_sample_is_a_prefix(graph: SmallGraph, small: int, large: int) -> None:
    snapshot = graph.to_snapshot()
    small, large = sorted((small, large))
    for node_id in graph.ids:
        assert _sample(snapshot, node_id, small) == _sample(snapshot, node_id, large)[:small]


@given(small_graphs(min_nodes=2), st.integers(1, 4), st.data())
def test_one_edge_more_or_less_changes_at_most_one_sampled_neighbor(
    graph: SmallGraph, fanout: int, data: st.DataObject
) -> None:
    place = st.integers(0, len(graph.ids) - 1)
    edge = data.draw(st.tuples(place, place))
    without = SmallGraph(graph.ids, [other for other in graph.edges if other != edge])
    having = SmallGraph(graph.ids, [*without.edges, edge])
    before, after = without.to_snapshot(), having.to_snapshot()
    for position, node_id in enumerate(graph.ids):
        old, new = _sample(before, node_id, fanout), _sample(after, node_id, fanout)
        allowed = 1 if position == edge[1] else 0
        assert len(set(new) - set(old)) <= allowed
        assert len(set(old) - set(new)) <= allowed


@given(small_graphs(), st.randoms())
def test_samples_do_not_depend_on_the_order_of_nodes_and_edges(graph: SmallGraph, random: object) -> None:
    order = list(range(len(graph.ids)))
    random.shuffle(order)  # type: ignore[attr-defined]
    place = {old: new for new, old in enumerate(order)}
    edges = [(place[u], place[v]) for u, v in reversed(graph.edges)]
    shuffled = SmallGraph([graph.ids[old] for old in order], edges)  # type: ignore[arg-type]
    here, there = graph.to_snapshot(), shuffled.to_snapshot()
    for node_id in graph.ids:
        assert _sample(here, node_id, 3) == _sample(there, node_id, 3)


def test_seeded_samples_are_uniform() -> None:
    """Each of 20 neighbours is in a sample of 5 a quarter of the time, over many nodes."""
    num_nodes, degree, fanout = 4000, 20, 5
    source = np.tile(np.arange(degree), num_nodes)
    target = np.repeat(np.arange(degree, degree + num_nodes), degree)
    graph = SmallGraph(list(range(degree + num_nodes)), list(zip(source, target, strict=True)))
    snapshot = graph.to_snapshot()
    seeds = np.arange(degree, degree + num_nodes)
    trees = snapshot.sampler().trees(seeds, FanoutPlan.of((fanout,)))
    counts = np.bincount(trees.node[trees.hop == 1], minlength=degree)[:degree]
    share = fanout / degree
    spread = np.sqrt(num_nodes * share * (1 - share))
    assert counts.sum() == num_nodes * fanout
    assert np.abs(counts - num_nodes * share).max() < 4.5 * spread


def test_any_number_of_hops() -> None:
    ring = SmallGraph(list(range(5)), [(node, (node + 1) % 5) for node in range(5)])
    trees = ring.to_snapshot().sampler().trees(np.array([0]), FanoutPlan.of((1,) * 12))
    assert trees.node.tolist() == [(-hop) % 5 for hop in range(13)]
    assert trees.hop.tolist() == list(range(13))
