"""Rows of tables become what a request says, or are refused before there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archive.ingest.tables import Columns
from handler.errors import GraphInputError
from tests.archive.ingest.reading import FULL, PLAIN, rows_of, segments_of

Write = Callable[..., Path]
EDGES = "source,target,weight,time,f1,f2\na,b,0.1,2024-01-01,1,2\nb,c,2,2024-01-02T00:00:00Z,3,0.3\n"


def test_edges_have_what_the_graph_knows_of_them(write: Write) -> None:
    segments = segments_of(write(EDGES), FULL, columns=Columns(edge_features=("f*",)))
    assert rows_of(segments) == [
        ("add_edges", {"source": "a", "target": "b", "weight": 0.1, "time": 1704067200.0, "attr": [1, 2]}),
        ("add_edges", {"source": "b", "target": "c", "weight": 2.0, "time": 1704153600.0, "attr": [3, 0.3]}),
    ]
    assert [segment.lines.tolist() for segment in segments] == [[2, 3]]


def test_what_the_graph_does_not_know_stays_in_the_table(write: Write) -> None:
    segments = segments_of(write("1,2,7\n3,4,8\n"))
    assert [row for _, row in rows_of(segments)] == [{"source": 1, "target": 2}, {"source": 3, "target": 4}]


def test_removals_have_a_time_only_if_it_is_named(write: Write) -> None:
    table = write(EDGES)
    (_, without), _ = rows_of(segments_of(table, FULL, "remove_edges"))
    assert without == {"source": "a", "target": "b"}
    (_, at), _ = rows_of(segments_of(table, FULL, "remove_edges", Columns(time="time")))
    assert at == {"source": "a", "target": "b", "time": 1704067200.0}


def test_nodes_and_features(write: Write) -> None:
    table = write("id,f1,f2\nx,1,0.1\n")
    with_features = Columns(features=("f*",))
    row = {"node_id": "x", "x": [1, 0.1]}
    assert rows_of(segments_of(table, FULL, "set_features", with_features)) == [("set_features", row)]
    assert rows_of(segments_of(table, FULL, "add_nodes", with_features)) == [("add_nodes", row)]
    assert rows_of(segments_of(table, FULL, "add_nodes")) == [("add_nodes", {"node_id": "x"})]


def test_parquet(parquet: Write) -> None:
    segments = segments_of(parquet(source=[1, 2], target=[3, 4]))
    assert [row for _, row in rows_of(segments)] == [{"source": 1, "target": 3}, {"source": 2, "target": 4}]
    assert segments[0].lines.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("table", "columns", "problem"),
    [
        ("source,target\na,b\n", Columns(), "have a weight, so name its column with --weight"),
        ("source,target,weight\na,b,1\n", Columns(), "have a time, so name its column with --time"),
        (EDGES, Columns(), "--edge-features: is not given, but an edge of the graph has 2 features"),
        (EDGES, Columns(edge_features=("f1",)), "--edge-features names 1 columns, but an edge of the graph"),
        (EDGES, Columns(weight="wight"), "has no column 'wight'"),
    ],
)
def test_a_table_that_lacks_something_is_refused(
    write: Write, table: str, columns: Columns, problem: str
) -> None:
    with pytest.raises(GraphInputError, match=problem):
        segments_of(write(table), FULL, columns=columns)


@pytest.mark.parametrize(
    ("kind", "columns", "problem"),
    [
        ("add_edges", Columns(weight="weight"), "--weight weight: the graph's edges have no weight"),
        ("remove_edges", Columns(time="time"), "--time time: the graph's edges have no time"),
        ("add_edges", Columns(edge_features=("f1",)), "an edge of the graph has 0 features"),
        ("add_nodes", Columns(features=("f1",)), "--features names 1 columns, but a node of the graph has 0"),
        ("set_features", Columns(), "--features: is not given"),
    ],
)
def test_a_table_that_has_too_much_is_refused(
    write: Write, kind: object, columns: Columns, problem: str
) -> None:
    with pytest.raises(GraphInputError, match=problem):
        segments_of(write(EDGES), PLAIN, kind, columns)  # type: ignore[arg-type]


def test_bad_rows_are_refused_by_line_or_skipped(write: Write) -> None:
    table = write("source,target\n1,2\nx,3\n4,5\n")
    with pytest.raises(
        GraphInputError, match=r"t.csv:3: .*'x' is not an integer, as the graph's node ids are"
    ):
        segments_of(table)
    segments = segments_of(table, skip=True)
    assert [(row["source"], row["target"]) for _, row in rows_of(segments)] == [(1, 2), (4, 5)]
    assert segments[0].lines.tolist() == [2, 4]


def test_ids_that_are_text_may_look_like_numbers(write: Write) -> None:
    segments = segments_of(write("007,1\n"), replace(PLAIN, id_type="str"))
    assert rows_of(segments) == [("add_edges", {"source": "007", "target": "1"})]
