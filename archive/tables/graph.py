"""Makes a graph of the tables that users bring, however many rows they have."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archive.tables.bad_rows import BadRows, TableReport
from archive.tables.edges import EdgeReader, EdgeTable, SpooledEdges
from archive.tables.features import FeatureDtype
from archive.tables.ids import IdType, TableIds
from archive.tables.nodes import NodeTable, read_nodes
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeSpool
from handler.graph.features import DenseFeatures
from handler.graph.ids import NodeIds
from handler.graph.progress import SILENT, Progress


@dataclass(frozen=True)
class TableGraph:
    """A graph as tables have it, ready for a snapshot; `close` removes its edges from the disk.

    Args:
        name: what people call it.
        edges: on disk.
        ids: of the nodes; `ids.id_type` is what was chosen.
        id_note: tells that ids became text because of a few among many integers, or none.
        features: [num_nodes, feature_dim], which may be a mapped file, or none.
        label: int64 [num_nodes], -1 where unknown, or none.
        label_names: a name per class, or none.
        split: uint8 [num_nodes] of `Split`, or none.
        reports: one per table, nodes first.
    """

    name: str
    edges: SpooledEdges
    num_nodes: int
    ids: NodeIds
    id_note: str | None
    features: DenseFeatures | None
    label: NDArray[np.int64] | None
    label_names: tuple[str, ...] | None
    split: NDArray[np.uint8] | None
    reports: tuple[TableReport, ...]

    def to_arrays(self) -> GraphArrays:
        """What a snapshot is written from."""
        return GraphArrays(
            self.name,
            self.edges,
            self.num_nodes,
            self.ids,
            self.features,
            self.label,
            self.label_names,
            self.split,
        )

    def close(self) -> None:
        self.edges.close()


def read_table_graph(
    name: str,
    edges: EdgeTable,
    nodes: NodeTable | None,
    *,
    id_type: IdType = "auto",
    skip_bad: bool = False,
    feature_dtype: FeatureDtype = "float32",
    work: Path,
    progress: Progress = SILENT,
) -> TableGraph:
    """Read an edge table and, where there is one, the table of its nodes.

    Nodes are numbered as the node table has them. Without one they are those that edges name, by
    ascending id, so that the order of the rows does not matter.

    Args:
        id_type: of the node ids; `auto` takes integers if all ids of the first chunk are, written plainly.
        skip_bad: skip rows that are no data, instead of refusing the first.
        feature_dtype: float32 or float16, of nodes and edges.
        work: an empty folder for what does not fit into memory; whoever made it removes it afterwards.

    Raises:
        GraphInputError: the tables are no graph; names the file and, where it is a row's fault, the line.
        OSError: the disk has no room for `work`.
    """
    with ExitStack() as on_error:
        reader = EdgeReader(edges, feature_dtype, BadRows(edges.path, skip_bad))
        spool = EdgeSpool(work, reader.fields)
        on_error.callback(spool.close)
        if nodes is None:
            graph = _of_edges(name, reader, spool, id_type, progress)
        else:
            bad_nodes, file = BadRows(nodes.path, skip_bad), work / "features.bin"
            found = read_nodes(nodes, id_type, bad_nodes, file, feature_dtype, progress)
            _refuse_empty(found.ids, found.report)
            reader.read_between(found.ids, nodes.path, spool, progress)
            progress.say("indexing node ids")
            labels = found.labels
            graph = TableGraph(
                name=name,
                edges=SpooledEdges(spool, None),
                num_nodes=len(found.ids),
                id_note=found.ids.note,
                ids=found.ids.finish(None),
                features=found.features,
                label=None if labels is None else labels.label,
                label_names=None if labels is None else labels.names,
                split=found.split,
                reports=(found.report, reader.report()),
            )
        on_error.pop_all()
        return graph


def _of_edges(
    name: str, reader: EdgeReader, spool: EdgeSpool, id_type: IdType, progress: Progress
) -> TableGraph:
    """The graph of edges alone."""
    ids = reader.read(spool, id_type, progress)
    _refuse_empty(ids, reader.report())
    progress.say("sorting node ids")
    order = ids.ascending()
    renumbered = np.empty_like(order)
    renumbered[order] = np.arange(len(order))
    progress.say("indexing node ids")
    return TableGraph(
        name=name,
        edges=SpooledEdges(spool, renumbered),
        num_nodes=len(order),
        id_note=ids.note,
        ids=ids.finish(order),
        features=None,
        label=None,
        label_names=None,
        split=None,
        reports=(reader.report(),),
    )


def _refuse_empty(ids: TableIds, report: TableReport) -> None:
    if len(ids) == 0:
        rows = report.num_rows
        why = f"all of its {rows} rows are bad: {report.messages[0]}" if rows else "the table has no rows"
        raise GraphInputError(f"{report.path}: the graph is empty: {why}")
