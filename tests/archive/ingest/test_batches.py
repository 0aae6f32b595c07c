"""Batches have all mutations once, in order, and are no larger than a request may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.ingest.batches import Batch, Limits, Place, after, batches
from archive.ingest.rows import KINDS, ColumnRows, Kind, Segment
from handler.errors import GraphInputError

_PATH = Path("t.csv")
_MANY = Limits(10_000, 1 << 20)


def _segment(kind: Kind, first: int, num_rows: int, first_line: int = 1) -> Segment:
    lines = np.arange(first_line, first_line + num_rows)
    return Segment(
        kind, ColumnRows({"node_id": list(range(first, first + num_rows))}), lines, np.zeros_like(lines)
    )


def _rows(batch: Batch) -> list[tuple[str, int]]:
    """In the order in which a server applies them."""
    content = json.loads(batch.content)
    return [(kind, row["node_id"]) for kind in KINDS for row in content.get(kind, [])]


_RUNS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), max_size=8)


@given(_RUNS, st.integers(1, 12), st.integers(60, 400), st.booleans())
def test_all_mutations_in_order_within_limits(
    runs: list[tuple[Kind, int]], size: int, num_bytes: int, at_once: bool
) -> None:
    blocks, expected, line = [], [], 1
    for kind, num_rows in runs:
        blocks.append([_segment(kind, line, num_rows, line)])
        expected += [(kind, line + row) for row in range(num_rows)]
        line += num_rows
    made = list(batches(_PATH, blocks, Limits(size, num_bytes), at_once=at_once))
    assert [row for batch in made for row in _rows(batch)] == expected
    assert all(0 < len(batch) <= size and len(batch.content) <= num_bytes for batch in made)

    # From any batch on, batches of the same sizes are the same ones.
    for number, batch in enumerate(made):
        sizes = [len(each) for each in made[number:]]
        again = list(batches(_PATH, after(blocks, batch.place), _MANY, first_sizes=sizes))
        assert [each.content for each in again] == [each.content for each in made[number:]]


def test_batches_are_full_across_blocks_unless_they_must_not_wait() -> None:
    blocks = [[_segment("add_nodes", 0, 3)], [_segment("add_nodes", 3, 3)]]
    limits = Limits(4, 1 << 20)
    assert [len(batch) for batch in batches(_PATH, blocks, limits)] == [4, 2]
    assert [len(batch) for batch in batches(_PATH, blocks, limits, at_once=True)] == [3, 3]


def test_one_mutation_that_is_too_large_is_named() -> None:
    with pytest.raises(GraphInputError, match="t.csv:1: has a mutation of 29 bytes, at most 28 can be sent"):
        list(batches(_PATH, [[_segment("add_nodes", 0, 2)]], Limits(10, 28)))


def test_a_batch_knows_its_lines() -> None:
    segments = [
        _segment("add_nodes", 0, 2, 5),
        _segment("add_edges", 7, 2, 9),
        _segment("add_edges", 9, 2, 20),
    ]
    (batch,) = batches(_PATH, [segments], _MANY)
    assert (batch.place, batch.last_line) == (Place(5), 21)
    assert batch.line_of("add_edges", 1) == 10
    assert batch.line_of("add_edges", 3) == 21
    assert batch.line_of("add_edges", 4) is None
    assert batch.line_naming("9") == 20
    assert batch.line_naming("'9'") is None
