"""Edge tables: an edge per row, with what is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archive.tables.bad_rows import BadRows, RowCheck, TableReport
from archive.tables.columns import as_float
from archive.tables.features import FeatureDtype, as_matrix, feature_columns
from archive.tables.files import open_table
from archive.tables.format import TableFormat
from archive.tables.ids import IdType, TableIds, ids_for
from archive.tables.table import Table, place_of
from archive.tables.times import TimeColumn
from handler.errors import GraphInputError
from handler.graph.edges import EdgeBlock, EdgeFields, EdgeSpool
from handler.graph.progress import Progress


@dataclass(frozen=True)
class EdgeTable:
    """A table with an edge per row.

    Args:
        path: the file.
        format: how it is laid out.
        source, target: columns of node ids. Without either these are `source` and `target` if there are
            such columns, else the first two; without one of them, that of its name.
        weight, time: columns, or none.
        features: columns or patterns such as `f*`, which match no column that is used otherwise.
    """

    path: Path
    format: TableFormat = field(default_factory=TableFormat)
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    time: str | None = None
    features: tuple[str, ...] = ()


class SpooledEdges:
    """Edges that wait on disk, with the node indices that were found for them in the end.

    Args:
        spool: the edges; closed, and with it removed, by `close`.
        renumbered: int64 [num_nodes], the final index of the node that the spool calls 0, 1 and so on, or
            none if that is final.
    """

    def __init__(self, spool: EdgeSpool, renumbered: NDArray[np.int64] | None) -> None:
        self.fields = spool.fields
        self._spool = spool
        self._renumbered = renumbered

    def __len__(self) -> int:
        return len(self._spool)

    def blocks(self) -> Iterator[EdgeBlock]:
        final = self._renumbered
        for block in self._spool.blocks():
            if final is None:
                yield block
            else:
                yield replace(block, source=final[block.source], target=final[block.target])

    def close(self) -> None:
        self._spool.close()


class EdgeReader:
    """Reads an edge table once.

    Args:
        edges: the table, which is opened.
        dtype: of edge features.
        bad_rows: of this table.

    Raises:
        GraphInputError: there is no such table, or it lacks columns.
    """

    def __init__(self, edges: EdgeTable, dtype: FeatureDtype, bad_rows: BadRows) -> None:
        self._table = open_table(edges.path, edges.format)
        self._ends = edge_ends(self._table, edges)
        self._weight = edges.weight
        self._time = None if edges.time is None else TimeColumn(edges.time)
        self._used = [*self._ends, *(name for name in (edges.weight, edges.time) if name is not None)]
        self._features = feature_columns(self._table, edges.features, self._used)
        for name in self._used:  # before a node table is read, which may take long
            place_of(self._table, name)
        self._bad_rows = bad_rows
        self.fields = EdgeFields(edges.weight is not None, edges.time is not None, len(self._features), dtype)

    def read(self, spool: EdgeSpool, id_type: IdType, progress: Progress) -> TableIds:
        """All edges, whose ends become nodes."""
        chunks = self._table.chunks([*self._used, *self._features], progress)
        ids, chunks = ids_for(id_type, self._table.path, chunks, self._ends)
        for chunk in chunks:
            check = RowCheck(chunk, self._bad_rows)
            source, target = (ids.read(check, column) for column in self._ends)
            rest = self._rest(check)
            check.report()
            keep = check.keep
            kept = {name: values[keep] for name, values in rest.items()}
            spool.append(EdgeBlock(ids.add(source, keep), ids.add(target, keep), **kept))
        return ids

    def read_between(self, ids: TableIds, known_from: Path, spool: EdgeSpool, progress: Progress) -> None:
        """All edges, whose ends must be nodes already."""
        for chunk in self._table.chunks([*self._used, *self._features], progress):
            check = RowCheck(chunk, self._bad_rows)
            source, target = (_known(check, column, ids, known_from) for column in self._ends)
            block = EdgeBlock(source, target, **self._rest(check))
            check.report()
            spool.append(block.take(check.keep))

    def report(self) -> TableReport:
        return self._bad_rows.report()

    def _rest(self, check: RowCheck) -> dict[str, NDArray[Any]]:
        """What the rows say beside the ends, by the name that an `EdgeBlock` has for it."""
        rest: dict[str, NDArray[Any]] = {}
        if self._weight is not None:
            rest["weight"] = as_float(check, self._weight)
        if self._time is not None:
            rest["time"] = self._time.read(check)
        if self._features:
            rest["attr"] = as_matrix(check, self._features, self.fields.attr_dtype)
        return rest


def _known(check: RowCheck, column: str, ids: TableIds, known_from: Path) -> NDArray[np.int64]:
    node_id = ids.read(check, column)
    index = ids.find(node_id)
    check.refuse(
        index < 0, lambda row: f"edge names node {ids.shown(node_id, row)}, which is not in {known_from}"
    )
    return index


def edge_ends(table: Table, edges: EdgeTable) -> tuple[str, str]:
    """The columns of the ids that edges come from and go to; `EdgeTable` says which they are."""
    if edges.source is None and edges.target is None and not {"source", "target"} <= set(table.columns):
        if len(table.columns) < 2:
            raise GraphInputError(
                f"{table.path}: an edge needs two columns, but there is only {table.columns[0]!r};"
                " is the delimiter another one?"
            )
        return table.columns[0], table.columns[1]
    source, target = edges.source or "source", edges.target or "target"
    if source == target:
        raise GraphInputError(f"{table.path}: source and target are both column {source!r}")
    return source, target
