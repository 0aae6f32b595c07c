"""Writes a graph snapshot, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError, SnapshotError
from handler.graph.adjacency import Adjacency
from handler.graph.arrays import GraphArrays, check_nodes, empty_features, index_ids
from handler.graph.edges import EdgeFields, index_dtype
from handler.graph.holding import hold, hold_for_compaction, hold_new
from handler.graph.ids import NodeIds
from handler.graph.layout import is_home
from handler.graph.manifest import (
    FORMAT_VERSION,
    Manifest,
    array_path,
    describe_file,
    ordering_array,
    read_manifest,
    write_manifest,
)
from handler.graph.npy import NpyWriter
from handler.graph.ordering import Ordering, RowOrderer, check_ordering, check_weights
from handler.graph.progress import SILENT, Progress
from handler.graph.rows import EdgeCounts, RowBuilder
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot, map_array
from handler.graph.staging import staged

_Files = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


@dataclass(frozen=True)
class BuildPlan:
    """How a graph becomes a snapshot.

    Args:
        ordering: in which the lists of neighbours lie.
        extra_orderings: in which they can be read as well, of other strategies.
        rules: what edges count; also those that come later.
    """

    ordering: Ordering = field(default_factory=lambda: Ordering("seeded"))
    extra_orderings: tuple[Ordering, ...] = ()
    rules: EdgeRules = field(default_factory=EdgeRules)


@dataclass(frozen=True)
class BuildReport:
    """What became of the input.

    Args:
        edges: how many were read, left out and merged.
        without_features: node ids whose features are all zero, a few of them; `num_without_features`
            counts them.
    """

    num_nodes: int
    edges: EdgeCounts
    num_without_features: int = 0
    without_features: tuple[int | str, ...] = ()


def write_snapshot(
    folder: Path,
    graph: GraphArrays,
    plan: BuildPlan | None = None,
    *,
    replace: bool = False,
    progress: Progress = SILENT,
) -> BuildReport:
    """Build a snapshot in a folder beside `folder`, and move it there when it is complete.

    Args:
        folder: where it goes; an existing one is only replaced if `replace` is set, it is a graph, and no
            process holds a snapshot of it.

    Raises:
        GraphInputError: this is no graph, or has not what the orderings need.
        SnapshotError: the folder is taken or cannot be written.
    """
    # Nested like this, the hold is let go last, when the snapshot has its place.
    with ExitStack() as build, staged(folder, replace=replace) as staging:
        return build.enter_context(write_files(staging, graph, plan or BuildPlan(), progress))


@contextmanager
def write_files(
    folder: Path, graph: GraphArrays, plan: BuildPlan, progress: Progress
) -> Iterator[BuildReport]:
    """Write the files of a snapshot into an empty folder, which is held until the end.

    Raises:
        GraphInputError: this is no graph, or has not what the plan needs.
        OSError: the folder cannot be written.
    """
    with hold_new(folder):
        progress.say("checking the nodes")
        ids = index_ids(graph)
        check_nodes(graph, ids)
        check_plan(plan, graph.edges.fields)
        counts = _write_files(folder, graph, ids, plan, progress)
        yield BuildReport(graph.num_nodes, counts, *empty_features(graph, ids))


def add_ordering(folder: Path, ordering: Ordering, *, progress: Progress = SILENT) -> Manifest:
    """Let a snapshot be read in another order, too; who has it open keeps what it has.

    Raises:
        GraphInputError: the snapshot has such an ordering, or has not what it needs.
        SnapshotError: it cannot be opened or written, or a compaction is about to take its place.
    """
    with hold_for_compaction(folder) if is_home(folder) else nullcontext(), hold(folder) as held:
        return _add_ordering(Snapshot.open(held.folder), ordering, progress)


def _add_ordering(snapshot: Snapshot, ordering: Ordering, progress: Progress) -> Manifest:
    folder = snapshot.folder
    manifest = snapshot.manifest
    if ordering.strategy in manifest.orderings():
        raise GraphInputError(f"{folder}: has an ordering `{ordering.strategy}` already")
    check_ordering(ordering, snapshot.adjacency.fields)
    check_weights(ordering, snapshot.adjacency.edge_weight)
    orderer = RowOrderer(
        ordering,
        snapshot.ids.hashes(),
        _ranks(ordering, snapshot.ids),
        multigraph=manifest.rules.multigraph,
    )
    name = ordering_array(ordering.strategy)
    path = array_path(folder, name)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        _write_permutation(draft, snapshot.adjacency, orderer, progress)
        draft.replace(path)
        entry = describe_file(path, np.dtype(np.uint32), (manifest.num_edges,))
        manifest = read_manifest(folder)
        manifest.arrays[name] = entry
        write_manifest(folder, _with_ordering(manifest, ordering))
    except OSError as error:
        raise SnapshotError(path, f"cannot be written: {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    return read_manifest(folder)


def check_plan(plan: BuildPlan, given: EdgeFields) -> None:
    """Refuse orderings and rules that such edges cannot have, and orderings that are asked for twice.

    Raises:
        GraphInputError: says which.
    """
    fields = EdgeFields(given.weight or plan.rules.duplicates == "sum", given.time)
    if plan.rules.max_edge_age is not None and not fields.time:
        raise GraphInputError("a greatest age of edges needs edge times")
    orderings = (plan.ordering, *plan.extra_orderings)
    for ordering in orderings:
        check_ordering(ordering, fields)
    strategies = [ordering.strategy for ordering in orderings]
    for strategy in set(strategies):
        if strategies.count(strategy) > 1:
            raise GraphInputError(f"the ordering `{strategy}` is asked for twice")


def _ranks(ordering: Ordering, ids: NodeIds) -> NDArray[np.int64]:
    """What `first` orders by; nothing where nobody asks, or where indices ascend as ids do."""
    return ids.ranks() if ordering.strategy == "first" else np.empty(0, dtype=np.int64)


def _write_files(
    staging: Path, graph: GraphArrays, ids: NodeIds, plan: BuildPlan, progress: Progress
) -> EdgeCounts:
    hashes = ids.hashes()
    multigraph = plan.rules.multigraph
    orderer = RowOrderer(plan.ordering, hashes, _ranks(plan.ordering, ids), multigraph=multigraph)
    builder = RowBuilder(graph.edges, graph.num_nodes, orderer, plan.rules, staging, progress=progress)
    files: _Files = {}
    _write_adjacency(staging, builder, files)
    for name, array in _node_arrays(graph, ids).items():
        progress.say(f"writing {name} ({array.nbytes / 1e6:.1f} MB)")
        with NpyWriter(array_path(staging, name), array.dtype, array.shape[1:]) as file:
            file.append(array)
        files[name] = (array.dtype, array.shape)
    mapped = {name: map_array(staging, name, *expected) for name, expected in files.items()}
    adjacency = Adjacency.of_arrays(mapped, plan.ordering)
    for ordering in plan.extra_orderings:
        check_weights(ordering, adjacency.edge_weight)
        name = ordering_array(ordering.strategy)
        another = RowOrderer(ordering, hashes, _ranks(ordering, ids), multigraph=multigraph)
        _write_permutation(array_path(staging, name), adjacency, another, progress)
        files[name] = (np.dtype(np.uint32), (builder.counts.num_edges,))
    del adjacency, mapped
    progress.say("computing checksums")
    manifest = _manifest(graph, ids, plan, builder)
    for name, (dtype, shape) in files.items():
        manifest.arrays[name] = describe_file(array_path(staging, name), dtype, shape)
    write_manifest(staging, manifest)
    return builder.counts


def _write_adjacency(staging: Path, builder: RowBuilder, files: _Files) -> None:
    fields = builder.fields
    columns: _Files = {"indices": (index_dtype(builder.num_nodes), ())}
    if fields.weight:
        columns["edge_weight"] = (np.dtype(np.float32), ())
    if fields.time:
        columns["edge_time"] = (np.dtype(np.float64), ())
    if fields.attr_dim:
        columns["edge_attr"] = (np.dtype(fields.attr_dtype), (fields.attr_dim,))
    with ExitStack() as stack:
        indptr = stack.enter_context(NpyWriter(array_path(staging, "indptr"), np.dtype(np.int64)))
        writers = {
            name: stack.enter_context(NpyWriter(array_path(staging, name), dtype, shape))
            for name, (dtype, shape) in columns.items()
        }
        end = 0
        indptr.append(np.zeros(1, dtype=np.int64))
        for rows in builder.rows():
            ends = end + np.cumsum(rows.degree)
            indptr.append(ends)
            end = int(ends[-1])
            values = {
                "indices": rows.edges.source,
                "edge_weight": rows.edges.weight,
                "edge_time": rows.edges.time,
                "edge_attr": rows.edges.attr,
            }
            for name, writer in writers.items():
                column = values[name]
                if column is not None:
                    writer.append(column)
    files["indptr"] = (np.dtype(np.int64), (builder.num_nodes + 1,))
    for name, (dtype, shape) in columns.items():
        files[name] = (dtype, (builder.counts.num_edges, *shape))


def _write_permutation(path: Path, adjacency: Adjacency, orderer: RowOrderer, progress: Progress) -> None:
    num_edges = len(adjacency.indices)
    step = f"ordering neighbors by `{orderer.ordering.strategy}`"
    with (
        NpyWriter(path, np.dtype(np.uint32)) as file,
        progress.bar(step, num_edges, "edge") as advance,
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


def _node_arrays(graph: GraphArrays, ids: NodeIds) -> dict[str, NDArray[Any]]:
    arrays = ids.arrays()
    if graph.features is not None:
        arrays = arrays | graph.features.arrays()
    if graph.label is not None:
        arrays["label"] = graph.label.astype(np.int64)
    if graph.split is not None:
        arrays["split"] = graph.split.astype(np.uint8)
    return arrays


def _manifest(graph: GraphArrays, ids: NodeIds, plan: BuildPlan, builder: RowBuilder) -> Manifest:
    label_names = graph.label_names
    if graph.label is None:
        label_names = None
    elif label_names is None:
        label_names = tuple(str(label) for label in range(int(graph.label.max()) + 1))
    return Manifest(
        format_version=FORMAT_VERSION,
        name=graph.name,
        snapshot_id="",
        seq=0,
        num_nodes=graph.num_nodes,
        num_edges=builder.counts.num_edges,
        feature_dim=0 if graph.features is None else graph.features.shape[1],
        rules=plan.rules,
        edge_dim=builder.fields.attr_dim,
        ordering=plan.ordering,
        extra_orderings=plan.extra_orderings,
        id_kind=ids.kind,
        feature_kind=None if graph.features is None else graph.features.kind,
        label_names=label_names,
        arrays={},
    )


def _with_ordering(manifest: Manifest, ordering: Ordering) -> Manifest:
    return msgspec.structs.replace(manifest, extra_orderings=(*manifest.extra_orderings, ordering))
