"""Mutations from tables: each row of one is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from archive.ingest.rows import ColumnRows, Kind, Segment
from archive.ingest.shape import GraphShape
from archive.tables.bad_rows import BadRows, RowCheck
from archive.tables.columns import as_float, as_int64, as_text
from archive.tables.edges import EdgeTable, edge_ends
from archive.tables.features import as_matrix, feature_columns
from archive.tables.nodes import node_id_column
from archive.tables.table import Table, place_of
from archive.tables.times import TimeColumn
from handler.errors import GraphInputError
from handler.graph.progress import Progress

_ADVICE = ", as the graph's node ids are"


@dataclass(frozen=True)
class Columns:
    """Which columns of a table say what.

    Args:
        source, target, weight, time, edge_features: of tables of edges. Without weight or time these are
            `weight` and `time`, where the graph has them and rows of the kind need them.
        node_id, features: of tables of nodes.
    """

    source: str | None = None
    target: str | None = None
    weight: str | None = None
    time: str | None = None
    edge_features: tuple[str, ...] = ()
    node_id: str | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Field:
    """One value of a mutation, and the columns that it is read from."""

    name: str
    columns: tuple[str, ...]
    read: Callable[[RowCheck], Any]


class TableMutations:
    """The mutations in a table.

    Args:
        table: which is open.
        kind: what its rows do.
        columns: as the user names them.
        shape: of the graph.
        bad_rows: of this table.

    Raises:
        GraphInputError: the table lacks columns that the graph needs, or has some that it has no place for.
    """

    def __init__(
        self, table: Table, kind: Kind, columns: Columns, shape: GraphShape, bad_rows: BadRows
    ) -> None:
        self._table = table
        self._kind = kind
        self._bad_rows = bad_rows
        fields_of = _node_fields if kind in {"add_nodes", "set_features"} else _edge_fields
        self._fields = fields_of(table, kind, columns, shape)
        self._columns = [column for field in self._fields for column in field.columns]
        for column in self._columns:  # before anything is sent
            place_of(table, column)

    def blocks(self, progress: Progress) -> Iterator[list[Segment]]:
        """All rows that are data."""
        for chunk in self._table.chunks(self._columns, progress):
            check = RowCheck(chunk, self._bad_rows)
            read = {field.name: field.read(check) for field in self._fields}
            check.report()
            rows = ColumnRows({name: _listed(values, check.keep) for name, values in read.items()})
            lines = chunk.lines[check.keep]
            yield [Segment(self._kind, rows, lines, np.zeros_like(lines))]


def _edge_fields(table: Table, kind: Kind, columns: Columns, shape: GraphShape) -> list[_Field]:
    ends = edge_ends(table, EdgeTable(table.path, source=columns.source, target=columns.target))
    fields = [_id_field(name, column, shape) for name, column in zip(("source", "target"), ends, strict=True)]
    is_new = kind == "add_edges"
    weight = _column(table, "weight", columns.weight, graph_has=shape.has_weight, needed=is_new)
    if weight is not None:
        fields.append(_Field("weight", (weight,), lambda check: as_float(check, weight)))
    time = _column(table, "time", columns.time, graph_has=shape.has_time, needed=is_new)
    if time is not None:
        fields.append(_Field("time", (time,), TimeColumn(time).read))
    used = [column for field in fields for column in field.columns]
    attr = feature_columns(table, columns.edge_features, used)
    if len(attr) != (shape.attr_dim if is_new else 0):
        raise _wrong_number(table, "--edge-features", attr, f"an edge of the graph has {shape.attr_dim}")
    if attr:
        fields.append(_matrix_field("attr", attr))
    return fields


def _node_fields(table: Table, kind: Kind, columns: Columns, shape: GraphShape) -> list[_Field]:
    node_id = columns.node_id or node_id_column(table)
    x = feature_columns(table, columns.features, [node_id])
    fields = [_id_field("node_id", node_id, shape)]
    if x or kind == "set_features":
        if len(x) != shape.feature_dim or not x:
            raise _wrong_number(table, "--features", x, f"a node of the graph has {shape.feature_dim}")
        fields.append(_matrix_field("x", x))
    return fields


def _id_field(name: str, column: str, shape: GraphShape) -> _Field:
    if shape.id_type == "int":
        return _Field(name, (column,), lambda check: as_int64(check, column, _ADVICE))
    return _Field(name, (column,), lambda check: as_text(check, column))


def _matrix_field(name: str, columns: Sequence[str]) -> _Field:
    return _Field(name, tuple(columns), lambda check: as_matrix(check, columns, "float32"))


def _column(table: Table, what: str, given: str | None, *, graph_has: bool, needed: bool) -> str | None:
    if given is not None and not graph_has:
        raise GraphInputError(f"{table.path}: --{what} {given}: the graph's edges have no {what}")
    if given is not None:
        place_of(table, given)
    if given is not None or not (graph_has and needed):
        return given
    if what not in table.columns:
        raise GraphInputError(
            f"{table.path}: the graph's edges have a {what}, so name its column with --{what};"
            f" none is called {what!r}"
        )
    return what


def _wrong_number(table: Table, option: str, columns: Sequence[str], expected: str) -> GraphInputError:
    names = f" names {len(columns)} columns" if columns else ": is not given"
    return GraphInputError(f"{table.path}: {option}{names}, but {expected} features")


def _listed(values: Any, keep: NDArray[np.bool_]) -> list[Any]:
    """The values that are kept, as JSON is written from them."""
    if isinstance(values, pa.Array):
        kept: list[Any] = values.filter(pa.array(keep)).to_pylist()
        return kept
    values = values if keep.all() else values[keep]
    # A float32 of NumPy is written with the few digits that it has, one of Python with 17.
    return list(values) if values.dtype == np.float32 else list(values.tolist())
