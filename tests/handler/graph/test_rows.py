"""Building part by part gives what building at once gives, whatever the parts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import GraphInputError
from handler.graph.edges import EdgeArrays
from handler.graph.ids import IntIds, RangeIds
from handler.graph.ordering import STRATEGIES, Ordering, RowOrderer, Strategy
from handler.graph.rows import RowBuilder, ordered_adjacency
from handler.graph.rules import EdgeRules
from tests.graphs import EdgeData, graphs_with_edge_data

rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())


@given(graphs_with_edge_data(), rules, st.sampled_from(STRATEGIES), st.integers(1, 9))
def test_parts_do_not_show(graph: EdgeData, rules: EdgeRules, strategy: Strategy, part_edges: int) -> None:
    edges, ids, ordering = graph.to_arrays().edges, RangeIds(len(graph.ids)), Ordering(strategy)
    whole = ordered_adjacency(edges, ids, ordering, rules)
    orderer = RowOrderer(ordering, ids.hashes(), ids.ranks(), multigraph=rules.duplicates == "keep")
    with TemporaryDirectory() as work:
        builder = RowBuilder(edges, len(ids), orderer, rules, Path(work), part_edges=part_edges)
        parts = list(builder.rows())
        assert not list(Path(work).iterdir())
    assert np.cumsum(np.concatenate([part.degree for part in parts])).tolist() == whole.indptr[1:].tolist()
    for name, values in _columns(whole).items():
        pieces = [part.edges.columns()[name] for part in parts if len(part.edges)]
        found = np.concatenate(pieces) if pieces else np.empty(0)
        assert found.reshape(values.shape).tolist() == values.tolist()
    counts = builder.counts
    assert counts.num_read == len(graph.edges)
    loops = sum(u == v for u, v in graph.edges)
    assert counts.num_self_loops_dropped == (0 if rules.self_loops else loops)
    doubled = len(graph.edges) - loops if rules.undirected else 0
    assert counts.num_edges == len(whole.indices)
    assert counts.num_duplicates == (
        len(graph.edges) - counts.num_self_loops_dropped + doubled - counts.num_edges
    )


def _columns(adjacency: Any) -> dict[str, Any]:
    return {
        "source": adjacency.indices,
        "weight": adjacency.edge_weight,
        "time": adjacency.edge_time,
        "attr": adjacency.edge_attr,
    }


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1, max_size=30))
def test_the_first_are_the_smallest_ids(node_ids: list[int]) -> None:
    star = EdgeArrays(np.stack([np.arange(len(node_ids)), np.zeros(len(node_ids), dtype=np.int64)]))
    adjacency = ordered_adjacency(star, IntIds.build(np.array(node_ids)), Ordering("first"))
    assert [node_ids[u] for u in adjacency.indices] == sorted(node_ids)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((np.array([0, 1]),), r"edge_index must be integers \[2, num_edges\], but is int64 \[2\]"),
        ((np.array([[0.5], [1]]),), "but is float64"),
        ((np.array([[0], [1]]), np.array(["a"])), r"edge_weight must be numbers \[num_edges\] for 1 edges"),
        ((np.array([[0], [1]]), None, np.zeros(2)), r"edge_time must be numbers .* but is float64 \[2\]"),
        (
            (np.array([[0], [1]]), None, None, np.zeros(1)),
            r"edge_attr must be numbers \[num_edges, attr_dim\]",
        ),
    ],
)
def test_arrays_that_are_no_edges_are_refused(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(GraphInputError, match=problem):
        EdgeArrays(*arguments)


def test_a_hub_larger_than_a_part_is_one_part_of_its_own(tmp_path: Path) -> None:
    leaves = 1000
    star = EdgeArrays(np.stack([np.arange(1, leaves + 1), np.zeros(leaves, dtype=np.int64)]))
    ids = RangeIds(leaves + 1)
    orderer = RowOrderer(Ordering("first"), ids.hashes(), ids.ranks(), multigraph=False)
    (hub, rest) = RowBuilder(star, leaves + 1, orderer, EdgeRules(), tmp_path, part_edges=10).rows()
    assert hub.edges.source.tolist() == list(range(1, leaves + 1))
    assert rest.degree.tolist() == [0] * leaves
