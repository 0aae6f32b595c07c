"""The laws of every strategy that is an ordering, against NetworkX and Python's own sort."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
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
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, add_ordering, write_snapshot
from tests import reference
from tests.graphs import EdgeData, graphs_with_edge_data

strategies = st.sampled_from(STRATEGIES)
KEPT = EdgeRules(duplicates="keep")


def _plan(strategy: Strategy, seed: int = 0, rules: EdgeRules = KEPT) -> BuildPlan:
    return BuildPlan(Ordering(strategy, seed), rules=rules)


def _row(snapshot: Snapshot, v: int) -> list[tuple[Any, dict[str, float]]]:
    """What the snapshot stores of node v's in-edges."""
    adjacency = snapshot.adjacency
    edges = slice(adjacency.indptr[v], adjacency.indptr[v + 1])
    assert adjacency.edge_weight is not None
    assert adjacency.edge_time is not None
    ids = snapshot.ids.id_of(adjacency.indices[edges].astype(np.int64))
    weight, time = adjacency.edge_weight[edges].tolist(), adjacency.edge_time[edges].tolist()
    return [(u, {"weight": w, "time": t}) for u, w, t in zip(ids, weight, time, strict=True)]


def _sample(
    snapshot: Snapshot, v: int, fanout: int, strategy: Strategy | None = None
) -> list[tuple[Any, float, float]]:
    """S(v, f) with each edge's weight and time."""
    trees = snapshot.sampler(Sampling(strategy=strategy)).trees(np.array([v]), FanoutPlan.of((fanout,)))
    adjacency = snapshot.adjacency
    assert adjacency.edge_weight is not None
    assert adjacency.edge_time is not None
    ids = snapshot.ids.id_of(trees.node[1:])
    weight, time = adjacency.edge_weight[trees.edge].tolist(), adjacency.edge_time[trees.edge].tolist()
    return list(zip(ids, weight, time, strict=True))


@given(graphs_with_edge_data(), strategies, st.integers(0, 2**63 - 1))
def test_rows_equal_the_reference(graph: EdgeData, strategy: Strategy, seed: int) -> None:
    snapshot, slow = graph.to_snapshot(_plan(strategy, seed)), graph.to_networkx()
    for v, node_id in enumerate(graph.ids):
        assert _row(snapshot, v) == reference.ordered(slow, node_id, strategy, seed)


@given(graphs_with_edge_data(), strategies, strategies, st.integers(1, 6))
def test_another_order_is_read_through_a_permutation(
    graph: EdgeData, own: Strategy, extra: Strategy, fanout: int
) -> None:
    if own == extra:
        return
    plan = replace(_plan(own), extra_orderings=(Ordering(extra),))
    snapshot, alone = graph.to_snapshot(plan), graph.to_snapshot(_plan(extra))
    for v in range(len(graph.ids)):
        assert _sample(snapshot, v, fanout, extra) == _sample(alone, v, fanout)


@given(graphs_with_edge_data(), strategies, st.integers(1, 6), st.integers(1, 6))
def test_a_smaller_sample_is_a_prefix(graph: EdgeData, strategy: Strategy, small: int, large: int) -> None:
    snapshot = graph.to_snapshot(_plan(strategy))
    small, large = sorted((small, large))
    for v in range(len(graph.ids)):
        assert _sample(snapshot, v, small) == _sample(snapshot, v, large)[:small]


@given(
    graphs_with_edge_data(),
    strategies,
    st.sampled_from(["drop", "sum", "keep"]),
    st.integers(1, 4),
    st.data(),
)
def test_one_edge_more_or_less_changes_a_sample_by_at_most_one(
    graph: EdgeData, strategy: Strategy, duplicates: Any, fanout: int, data: st.DataObject
) -> None:
    place = st.integers(0, len(graph.ids) - 1)
    u, v = data.draw(st.tuples(place, place))
    weight = data.draw(st.sampled_from([0.25, 1.0, 8.0]))
    time = data.draw(st.sampled_from([-3.0, 0.0, 3.0]))
    more = EdgeData(graph.ids, [*graph.edges, (u, v)], [*graph.weight, weight], [*graph.time, time])
    plan = _plan(strategy, rules=EdgeRules(duplicates=duplicates))
    before, after = graph.to_snapshot(plan), more.to_snapshot(plan)
    for node in range(len(graph.ids)):
        old = Counter(u for u, _, _ in _sample(before, node, fanout))
        new = Counter(u for u, _, _ in _sample(after, node, fanout))
        allowed = 1 if node == v else 0
        assert (old - new).total() <= allowed
        assert (new - old).total() <= allowed


@given(graphs_with_edge_data(), strategies, st.sampled_from(["drop", "sum", "keep"]), st.randoms())
def test_samples_do_not_depend_on_the_order_of_nodes_and_edges(
    graph: EdgeData, strategy: Strategy, duplicates: Any, random: Any
) -> None:
    order, lines = list(range(len(graph.ids))), list(range(len(graph.edges)))
    random.shuffle(order)
    random.shuffle(lines)
    place = {old: new for new, old in enumerate(order)}
    if duplicates == "drop":  # among edges of equal time, the last that came counts
        lines.sort(key=lambda line: graph.weight[line])
    shuffled = EdgeData(
        [graph.ids[old] for old in order],  # type: ignore[arg-type]
        [(place[graph.edges[line][0]], place[graph.edges[line][1]]) for line in lines],
        [graph.weight[line] for line in lines],
        [graph.time[line] for line in lines],
    )
    plan = _plan(strategy, rules=EdgeRules(duplicates=duplicates))
    if duplicates == "drop":
        lines = sorted(range(len(graph.edges)), key=lambda line: graph.weight[line])
        graph = EdgeData(
            graph.ids,
            [graph.edges[line] for line in lines],
            [graph.weight[line] for line in lines],
            [graph.time[line] for line in lines],
        )
    here, there = graph.to_snapshot(plan), shuffled.to_snapshot(plan)
    for old, node in enumerate(order):
        assert _sample(here, node, 3) == _sample(there, old, 3)


@given(graphs_with_edge_data(), strategies)
def test_repeats_become_one(graph: EdgeData, strategy: Strategy) -> None:
    groups: dict[tuple[int, int], list[int]] = {}
    for line, edge in enumerate(graph.edges):
        groups.setdefault(edge, []).append(line)
    merged = nx.DiGraph()
    merged.add_nodes_from(graph.ids)
    for duplicates in ("drop", "sum"):
        for (u, v), lines in groups.items():
            latest = max(lines, key=lambda line: (graph.time[line], line))
            weight = graph.weight[latest] if duplicates == "drop" else sum(graph.weight[i] for i in lines)
            merged.add_edge(graph.ids[u], graph.ids[v], weight=weight, time=graph.time[latest])
        snapshot = graph.to_snapshot(_plan(strategy, rules=EdgeRules(duplicates=duplicates)))
        for v, node_id in enumerate(graph.ids):
            assert _row(snapshot, v) == reference.ordered(merged, node_id, strategy)


@given(graphs_with_edge_data(), strategies)
def test_each_edge_keeps_its_own_features(graph: EdgeData, strategy: Strategy) -> None:
    """The feature of an edge is its line here."""
    snapshot = graph.to_snapshot(_plan(strategy))
    sampler = snapshot.sampler()
    trees = sampler.trees(np.arange(len(graph.ids)), FanoutPlan.of((99,)))
    attr, weight = sampler.edge_attr(trees), sampler.edge_weight(trees)
    assert attr is not None
    assert weight is not None
    lines = attr[:, 0].astype(int).tolist()
    assert sorted(lines) == list(range(len(graph.edges)))
    child, parent = trees.node[trees.edge_index]
    assert [graph.edges[line] for line in lines] == list(zip(child, parent, strict=True))
    assert weight.tolist() == [graph.weight[line] for line in lines]


def test_sums_count_edges_that_have_no_weight(make_snapshot: Callable[..., Snapshot]) -> None:
    edges = EdgeArrays(np.array([[0, 0, 2, 0], [1, 1, 1, 2]]))
    snapshot = make_snapshot(
        GraphArrays("g", edges, 3), _plan("top_weight", rules=EdgeRules(duplicates="sum"))
    )
    assert snapshot.adjacency.indices.tolist() == [0, 2, 0]
    assert snapshot.adjacency.edge_weight is not None
    assert snapshot.adjacency.edge_weight.tolist() == [2, 1, 1]


def test_undirected_edges_count_both_ways_and_self_loops_once(make_snapshot: Callable[..., Snapshot]) -> None:
    edges = EdgeArrays(np.array([[0, 1, 1, 2], [1, 0, 1, 0]]), weight=np.array([1, 2, 3, 4]))
    kept = make_snapshot(
        GraphArrays("g", edges, 3), BuildPlan(rules=EdgeRules(undirected=True, duplicates="keep"))
    )
    assert np.diff(kept.adjacency.indptr).tolist() == [3, 3, 1]
    merged = make_snapshot(
        GraphArrays("g", edges, 3),
        BuildPlan(Ordering("first"), rules=EdgeRules(undirected=True, self_loops=False)),
    )
    assert merged.adjacency.indices.tolist() == [1, 2, 0, 0]
    assert merged.adjacency.edge_weight is not None
    assert merged.adjacency.edge_weight.tolist() == [2, 4, 2, 4]


@pytest.mark.parametrize("strategy", ["seeded", "weighted"])
def test_samples_are_drawn_as_often_as_they_should(strategy: Strategy) -> None:
    """Chi-square over 20,000 nodes with the same eight neighbours: the first drawn, and the first two."""
    num_nodes, weights = 20_000, np.array([1, 1, 2, 3, 5, 8, 13, 1], dtype=np.float64)
    degree = len(weights)
    nodes = np.arange(degree, degree + num_nodes)
    edges = EdgeArrays(
        np.stack([np.tile(np.arange(degree), num_nodes), np.repeat(nodes, degree)]),
        weight=np.tile(weights, num_nodes),
    )
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        write_snapshot(Path(folder, "g"), GraphArrays("g", edges, degree + num_nodes), _plan(strategy))
        trees = Snapshot.open(Path(folder, "g")).sampler().trees(nodes, FanoutPlan.of((2,)))
    drawn = trees.node[trees.hop == 1].reshape(-1, 2)
    chance = (weights if strategy == "weighted" else np.ones(degree)) / (
        weights.sum() if strategy == "weighted" else degree
    )
    first = np.bincount(drawn[:, 0], minlength=degree)
    # 0.999 quantile of chi-square with 7 degrees of freedom
    assert ((first - num_nodes * chance) ** 2 / (num_nodes * chance)).sum() < 24.3
    pairs = np.zeros((degree, degree))
    np.add.at(pairs, (drawn[:, 0], drawn[:, 1]), 1)
    wanted = num_nodes * chance[:, None] * chance[None, :] / (1 - chance[:, None])
    np.fill_diagonal(wanted, 0)
    apart = ~np.eye(degree, dtype=bool)
    assert pairs[~apart].sum() == 0
    # 0.999 quantile of chi-square with 55 degrees of freedom
    assert ((pairs - wanted)[apart] ** 2 / wanted[apart]).sum() < 93.2


def test_an_ordering_can_be_added_later(make_snapshot: Callable[..., Snapshot]) -> None:
    edges = EdgeArrays(np.array([[0, 1, 2], [3, 3, 3]]), time=np.array([5, 9, 7]))
    snapshot = make_snapshot(GraphArrays("g", edges, 4))
    with pytest.raises(GraphInputError, match="stores no ordering `recent`, only `seeded`"):
        snapshot.sampler(Sampling(strategy="recent"))
    manifest = add_ordering(snapshot.folder, Ordering("recent"))
    again = Snapshot.open(snapshot.folder)
    assert again.manifest == manifest
    assert again.manifest.snapshot_id != snapshot.manifest.snapshot_id
    trees = again.sampler(Sampling(strategy="recent")).trees(np.array([3]), FanoutPlan.of((2,)))
    assert trees.node.tolist() == [3, 1, 2]
    with pytest.raises(GraphInputError, match="has an ordering `recent` already"):
        add_ordering(snapshot.folder, Ordering("recent"))
    with pytest.raises(GraphInputError, match="`top_weight` needs edges with a weight"):
        add_ordering(snapshot.folder, Ordering("top_weight"))
    assert sorted(path.name for path in snapshot.folder.iterdir()) == [
        "edge_time.npy",
        "indices.npy",
        "indptr.npy",
        "lock",
        "manifest.json",
        "order_recent.npy",
    ]


@pytest.mark.parametrize(
    ("edges", "plan", "problem"),
    [
        ({}, _plan("recent"), "`recent` needs edges with a time"),
        ({}, _plan("weighted"), "`weighted` needs edges with a weight"),
        ({"weight": [1, -2]}, _plan("weighted"), "needs positive weights, but one is -2"),
        ({"weight": [1, 0]}, _plan("weighted"), "needs positive weights, but one is 0"),
        (
            {"weight": [1, -2]},
            BuildPlan(extra_orderings=(Ordering("weighted"),)),
            "needs positive weights, but one is -2",
        ),
        ({"weight": [1, np.nan]}, BuildPlan(), "the weight of the edge from node 1 to node 0 is NaN"),
        ({"time": [1, np.inf]}, BuildPlan(), "the time of the edge from node 1 to node 0 is NaN or inf"),
        ({"attr": [[1], [np.nan]]}, BuildPlan(), "the feature vector of the edge from node 1 to node 0"),
        (
            {"weight": [1, 2]},
            BuildPlan(Ordering("weighted"), (Ordering("weighted", 1),)),
            "`weighted` is asked for twice",
        ),
    ],
)
def test_what_an_order_cannot_do_is_refused(
    make_snapshot: Callable[..., Snapshot], edges: dict[str, Any], plan: BuildPlan, problem: str
) -> None:
    values = {name: np.array(value, dtype=np.float64) for name, value in edges.items()}
    with pytest.raises(GraphInputError, match=problem):
        make_snapshot(GraphArrays("g", EdgeArrays(np.array([[0, 1], [1, 0]]), **values), 2), plan)


def test_signed_weights_are_welcome_elsewhere(make_snapshot: Callable[..., Snapshot]) -> None:
    edges = EdgeArrays(np.array([[0, 1, 2], [3, 3, 3]]), weight=np.array([-5, 2, 0]))
    snapshot = make_snapshot(GraphArrays("g", edges, 4), _plan("top_weight"))
    assert snapshot.adjacency.indices.tolist() == [1, 2, 0]
