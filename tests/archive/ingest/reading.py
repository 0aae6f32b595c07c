"""Mutations of files as lists, for tests to compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archive.ingest.files import MutationFormat, format_of, open_mutations
from archive.ingest.rows import Kind, Segment
from archive.ingest.shape import GraphShape
from archive.ingest.tables import Columns
from archive.tables.bad_rows import BadRows
from handler.graph.progress import SILENT

PLAIN = GraphShape("int", 0, has_weight=False, has_time=False, attr_dim=0)
FULL = GraphShape("str", 2, has_weight=True, has_time=True, attr_dim=2)


def segments_of(
    path: Path,
    shape: GraphShape = PLAIN,
    kind: Kind = "add_edges",
    columns: Columns | None = None,
    *,
    skip: bool = False,
) -> list[Segment]:
    given = MutationFormat(format_of(path), kind, columns or Columns())
    file = open_mutations(path, given, shape, BadRows(path, skip))
    return [segment for block in file.blocks(SILENT) for segment in block]


def rows_of(segments: Sequence[Segment]) -> list[tuple[Kind, Any]]:
    """All rows as JSON says them, each with its kind."""
    return [(segment.kind, row) for segment in segments for row in json.loads(segment.rows.to_json())]
