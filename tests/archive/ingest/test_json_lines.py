"""Lines of JSON are mutations, one by one or as a request has them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handler.errors import GraphInputError
from tests.archive.ingest.reading import FULL, PLAIN, rows_of, segments_of

Write = Callable[..., Path]
EDGE = {"source": "a", "target": "b", "weight": 0.1, "time": 5.0, "attr": [1.0, 2.0]}


def _lines(*objects: Any) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def test_a_line_is_a_row(write: Write) -> None:
    segments = segments_of(write(_lines(EDGE, EDGE), "t.ndjson"), FULL)
    assert rows_of(segments) == [("add_edges", EDGE)] * 2
    assert segments[0].lines.tolist() == [1, 2]


def test_a_compressed_file(write: Write) -> None:
    path = write(gzip.compress(_lines({"source": 1, "target": 2}).encode()), "t.jsonl.gz")
    assert rows_of(segments_of(path)) == [("add_edges", {"source": 1, "target": 2})]


def test_what_is_optional_stays_out(write: Write) -> None:
    node, edge = {"node_id": "a"}, {"source": "a", "target": "b"}
    assert rows_of(segments_of(write(_lines(node), "t.jsonl"), FULL, "add_nodes")) == [("add_nodes", node)]
    assert rows_of(segments_of(write(_lines(edge), "t.jsonl"), FULL, "remove_edges")) == [
        ("remove_edges", edge)
    ]


def test_a_line_may_be_a_request(write: Write) -> None:
    """Its lists are in the order in which a request applies them, however they are written."""
    one, two = {"source": 1, "target": 2}, {"source": 3, "target": 4}
    grouped = {"add_edges": [one, two], "add_nodes": [{"node_id": 1}]}
    segments = segments_of(write(_lines(one, grouped, two), "t.jsonl"))
    assert rows_of(segments) == [
        ("add_edges", one),
        ("add_nodes", {"node_id": 1}),
        ("add_edges", one),
        ("add_edges", two),
        ("add_edges", two),
    ]
    assert [segment.lines.tolist() for segment in segments] == [[1], [2], [2, 2, 3]]
    assert [segment.parts.tolist() for segment in segments] == [[0], [0], [1, 2, 0]]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"source": 1}', "missing required field `target`; add_edges takes source, target here"),
        ('{"source": 1, "target": "b"}', r"Expected `int`, got `str` - at `\$.target`"),
        ('{"source": 1, "target": 2, "weight": 3}', "unknown field `weight`; add_edges takes source, target"),
        ('{"source": 1, "target": 9223372036854775808}', "Expected `int` <= 9223372036854775807"),
        ('{"add_edges": [{"source": 1}]}', r"missing required field `target` - at `\$.add_edges\[0\]`"),
        ('{"add_edges": [], "request_id": "a"}', "unknown field `request_id`"),
        ('{"source": 1, "target"', "truncated"),
        ('[{"source": 1, "target": 2}]', "Expected `object`, got `array`"),
    ],
)
def test_a_line_that_is_no_mutation_of_this_graph(write: Write, line: str, problem: str) -> None:
    good = _lines({"source": 1, "target": 2})
    path = write(f"{good}\n{line}\n{good}", "t.jsonl")
    with pytest.raises(GraphInputError, match=f"t.jsonl:3: .*{problem}"):
        segments_of(path)
    (segment,) = segments_of(path, skip=True)
    assert segment.lines.tolist() == [1, 4]


def test_vectors_have_the_graphs_length(write: Write) -> None:
    with pytest.raises(GraphInputError, match=r"Expected `array` of length <= 2 - at `\$.attr`"):
        segments_of(write(_lines(EDGE | {"attr": [1, 2, 3]}), "t.jsonl"), FULL)
    with pytest.raises(GraphInputError, match="Expected `array` of length >= 2"):
        segments_of(write(_lines({"node_id": "a", "x": [1]}), "t.jsonl"), FULL, "set_features")


def test_two_objects_on_a_line_are_none(write: Write) -> None:
    edge = '{"source": 1, "target": 2}'
    with pytest.raises(GraphInputError, match="t.jsonl:1: .*malformed"):
        segments_of(write(f"{edge} {edge}\n", "t.jsonl"), PLAIN)
