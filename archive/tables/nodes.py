"""Node tables: a node per row, with what is known of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from archive.tables.bad_rows import BadRows, RowCheck, TableReport
from archive.tables.features import FeatureDtype, FeatureFile, as_matrix, feature_columns
from archive.tables.files import open_table
from archive.tables.format import TableFormat
from archive.tables.ids import IdType, TableIds, ids_for
from archive.tables.labels import LabelColumn, Labels, as_split
from archive.tables.table import Table
from handler.graph.features import DenseFeatures
from handler.graph.progress import Progress


@dataclass(frozen=True)
class NodeTable:
    """A table with a node per row.

    Args:
        path: the file.
        format: how it is laid out.
        node_id: column of ids. Without it this is `node_id` or `id` if there is one, else the first.
        features: columns or patterns such as `f*`, which match no column that is used otherwise.
        label: column of classes, or none.
        split: column of `train`, `val`, `test` or nothing, or none.
    """

    path: Path
    format: TableFormat = field(default_factory=TableFormat)
    node_id: str | None = None
    features: tuple[str, ...] = ()
    label: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Nodes:
    """What a node table says.

    Args:
        ids: in the order of the rows.
        features: [num_nodes, feature_dim], mapped, or none.
        labels: or none.
        split: uint8 [num_nodes] of `Split`, or none.
        report: what became of the rows.
    """

    ids: TableIds
    features: DenseFeatures | None
    labels: Labels | None
    split: NDArray[np.uint8] | None
    report: TableReport


def read_nodes(
    nodes: NodeTable, id_type: IdType, bad_rows: BadRows, file: Path, dtype: FeatureDtype, progress: Progress
) -> Nodes:
    """Read a node table once; the features go to `file`, as `dtype`.

    Raises:
        GraphInputError: a row is bad and not skipped, or features are missing.
    """
    reader = _NodeReader(nodes, bad_rows)
    with closing(FeatureFile(file, reader.features, dtype)) as x:
        return reader.read(x, id_type, progress)


class _NodeReader:
    def __init__(self, nodes: NodeTable, bad_rows: BadRows) -> None:
        self._table = open_table(nodes.path, nodes.format)
        self._node_id = nodes.node_id or node_id_column(self._table)
        self._used = [name for name in (self._node_id, nodes.label, nodes.split) if name is not None]
        self.features = feature_columns(self._table, nodes.features, self._used)
        self._label = None if nodes.label is None else LabelColumn(nodes.label)
        self._split = nodes.split
        self._splits = [np.empty(0, dtype=np.uint8)]
        self._bad_rows = bad_rows

    def read(self, x: FeatureFile, id_type: IdType, progress: Progress) -> Nodes:
        chunks = self._table.chunks([*self._used, *self.features], progress)
        ids, chunks = ids_for(id_type, self._table.path, chunks, [self._node_id])
        for chunk in chunks:
            self._take(RowCheck(chunk, self._bad_rows), ids, x)
        return Nodes(
            ids,
            x.finish(self._table.path),
            None if self._label is None else self._label.finish(),
            None if self._split is None else np.concatenate(self._splits),
            self._bad_rows.report(),
        )

    def _take(self, check: RowCheck, ids: TableIds, x: FeatureFile) -> None:
        node_id = ids.read(check, self._node_id)
        rows = as_matrix(check, x.columns, x.dtype, gaps=True)
        if self._bad_rows.skip:  # else gaps are told of together, when all are known
            check.refuse(
                np.isnan(rows).any(axis=1),
                lambda row: (
                    f"node {ids.shown(node_id, row)} has a missing or non-finite feature"
                    f" ({x.first_gap(rows[row])})"
                ),
            )
        split = None if self._split is None else as_split(check, self._split)
        label = None if self._label is None else self._label.read(check)
        _refuse_repeated(check, ids, node_id)
        check.report()
        kept = np.flatnonzero(check.keep)
        x.append(rows if check.keep.all() else rows[kept], lambda row: ids.shown(node_id, int(kept[row])))
        if split is not None:
            self._splits.append(split[kept])
        if self._label is not None and label is not None:
            self._label.append(label.filter(pa.array(check.keep)))


def node_id_column(table: Table) -> str:
    """The column of node ids where nobody names it."""
    return next((name for name in ("node_id", "id") if name in table.columns), table.columns[0])


def _refuse_repeated(check: RowCheck, ids: TableIds, node_id: Any) -> None:
    """Number the nodes of a chunk; this comes last, so that only rows without another fault make nodes."""
    known = len(ids)
    index = ids.add(node_id, check.keep)
    # New ids get ascending indices, so one that is no larger than all before it was there already.
    before = np.maximum.accumulate(np.concatenate([[known - 1], index]))[:-1]
    repeated = np.zeros(len(check.chunk), dtype=np.bool_)
    repeated[check.keep] = index <= before
    check.refuse(repeated, lambda row: f"node {ids.shown(node_id, row)} is given twice")
