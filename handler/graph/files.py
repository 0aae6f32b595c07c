"""Writes the files of a snapshot, wherever its nodes and edges come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.graph.adjacency import Adjacency
from handler.graph.edges import EdgeFields, index_dtype
from handler.graph.features import FeatureKind
from handler.graph.ids import NodeIds
from handler.graph.manifest import (
    FORMAT_VERSION,
    Manifest,
    array_path,
    describe_file,
    ordering_array,
    write_manifest,
)
from handler.graph.npy import NpyWriter
from handler.graph.ordering import Ordering, RowOrderer, check_weights
from handler.graph.progress import SILENT, Progress
from handler.graph.rows import OrderedRows
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import map_array

_Files = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True)
class Columns:
    """Arrays that are written side by side, block by block; they are read once.

    Args:
        types: of each array, by name: the dtype of what stands in one place, which may be a row.
        blocks: what comes next of each array.
    """

    types: Mapping[str, np.dtype[Any]]
    blocks: Iterable[Mapping[str, NDArray[Any]]]

    @classmethod
    def whole(cls, arrays: Mapping[str, NDArray[Any]]) -> Columns:
        """Arrays that are there as they are."""
        types = {name: row_dtype(array.dtype, array.shape[1:]) for name, array in arrays.items()}
        return cls(types, (arrays,))


@dataclass(frozen=True)
class Contents:
    """What a snapshot is written from.

    Args:
        name: what people call the graph.
        seq: the position in the log up to which it is complete.
        ids: of all nodes.
        fields: what is known of each edge.
        rows: of all nodes, in their order and in the `ordering`; they are read once.
        nodes: what is known of nodes beside their ids.
        feature_kind, feature_dim: of the features that are among `nodes`; none and 0 without.
        ordering, extra_orderings, rules: see `Manifest`.
        label_names: the name of each class, or none without classes.
    """

    name: str
    seq: int
    ids: NodeIds
    fields: EdgeFields
    rows: Iterable[OrderedRows]
    nodes: tuple[Columns, ...]
    feature_kind: FeatureKind | None
    feature_dim: int
    ordering: Ordering
    extra_orderings: tuple[Ordering, ...]
    rules: EdgeRules
    label_names: tuple[str, ...] | None


def row_dtype(dtype: Any, shape: tuple[int, ...]) -> np.dtype[Any]:
    """The dtype of what stands in one place of an array: a number, or a row of them."""
    return np.dtype((dtype, shape)) if shape else np.dtype(dtype)


def write_contents(folder: Path, contents: Contents, progress: Progress = SILENT) -> Manifest:
    """Write all files of a snapshot into an empty folder.

    Raises:
        GraphInputError: an extra ordering cannot draw by the weights.
        OSError: the folder cannot be written.
    """
    files = _write_columns(folder, _edge_columns(contents))
    for columns in (Columns.whole(contents.ids.arrays()), *contents.nodes):
        if columns.types:
            progress.say(f"writing {', '.join(columns.types)}")
        files |= _write_columns(folder, columns)
    files |= _write_orderings(folder, contents, files, progress)
    progress.say("computing checksums")
    manifest = _manifest(contents, num_edges=files["indices"][1][0])
    for name, (dtype, shape) in files.items():
        manifest.arrays[name] = describe_file(array_path(folder, name), dtype, shape)
    write_manifest(folder, manifest)
    return manifest


def write_permutation(
    path: Path, adjacency: Adjacency, ids: NodeIds, ordering: Ordering, rules: EdgeRules, progress: Progress
) -> None:
    """Write the places within each row in another order.

    Raises:
        GraphInputError: the ordering cannot draw by the weights.
        OSError: the file cannot be written.
    """
    check_weights(ordering, adjacency.edge_weight)
    orderer = RowOrderer(ordering, ids.hashes(), ranks_for(ordering, ids), multigraph=rules.multigraph)
    step = f"ordering neighbors by `{ordering.strategy}`"
    with (
        NpyWriter(path, np.dtype(np.uint32)) as file,
        progress.bar(step, len(adjacency.indices), "edge") as advance,
    ):
        for first, last in adjacency.ranges():
            start, end = int(adjacency.indptr[first]), int(adjacency.indptr[last])
            weight, time = adjacency.edge_weight, adjacency.edge_time
            places = orderer.permutation(
                first,
                np.array(adjacency.indptr[first : last + 1]),
                np.array(adjacency.indices[start:end]),
                None if weight is None else np.array(weight[start:end]),
                None if time is None else np.array(time[start:end]),
            )
            file.append(places)
            advance(end - start)


def ranks_for(ordering: Ordering, ids: NodeIds) -> NDArray[np.int64]:
    """What `first` orders by; nothing where nobody asks, or where indices ascend as ids do."""
    return ids.ranks() if ordering.strategy == "first" else np.empty(0, dtype=np.int64)


def _write_columns(folder: Path, columns: Columns) -> _Files:
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(NpyWriter(array_path(folder, name), each.base, each.shape))
            for name, each in columns.types.items()
        }
        for block in columns.blocks:
            for name, values in block.items():
                writers[name].append(values)
    return {name: (columns.types[name].base, writer.shape) for name, writer in writers.items()}


def _edge_columns(contents: Contents) -> Columns:
    fields = contents.fields
    types = {"indptr": np.dtype(np.int64), "indices": index_dtype(len(contents.ids))}
    if fields.weight:
        types["edge_weight"] = np.dtype(np.float32)
    if fields.time:
        types["edge_time"] = np.dtype(np.float64)
    if fields.attr_dim:
        types["edge_attr"] = row_dtype(fields.attr_dtype, (fields.attr_dim,))
    return Columns(types, _edge_blocks(contents.rows))


def _edge_blocks(all_rows: Iterable[OrderedRows]) -> Iterator[dict[str, NDArray[Any]]]:
    ends = np.zeros(1, dtype=np.int64)
    yield {"indptr": ends}
    for rows in all_rows:
        ends = ends[-1] + np.cumsum(rows.degree)
        columns = {
            "indptr": ends,
            "indices": rows.edges.source,
            "edge_weight": rows.edges.weight,
            "edge_time": rows.edges.time,
            "edge_attr": rows.edges.attr,
        }
        yield {name: values for name, values in columns.items() if values is not None}


def _write_orderings(folder: Path, contents: Contents, files: _Files, progress: Progress) -> _Files:
    mapped = {name: map_array(folder, name, *expected) for name, expected in files.items()}
    adjacency = Adjacency.of_arrays(mapped, contents.ordering)
    written: _Files = {}
    for ordering in contents.extra_orderings:
        name = ordering_array(ordering.strategy)
        path = array_path(folder, name)
        write_permutation(path, adjacency, contents.ids, ordering, contents.rules, progress)
        written[name] = (np.dtype(np.uint32), adjacency.indices.shape)
    return written


def _manifest(contents: Contents, num_edges: int) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        name=contents.name,
        snapshot_id="",
        seq=contents.seq,
        num_nodes=len(contents.ids),
        num_edges=num_edges,
        feature_dim=contents.feature_dim,
        rules=contents.rules,
        edge_dim=contents.fields.attr_dim,
        ordering=contents.ordering,
        extra_orderings=contents.extra_orderings,
        id_kind=contents.ids.kind,
        feature_kind=contents.feature_kind,
        label_names=contents.label_names,
        arrays={},
    )
