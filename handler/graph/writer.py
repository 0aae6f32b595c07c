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
from handler.graph.arrays import GraphArrays, check_nodes, empty_features, index_ids
from handler.graph.edges import EdgeFields
from handler.graph.files import Columns, Contents, ranks_for, write_contents, write_permutation
from handler.graph.holding import hold, hold_for_compaction, hold_new
from handler.graph.ids import NodeIds
from handler.graph.layout import is_home
from handler.graph.manifest import (
    Manifest,
    array_path,
    describe_file,
    ordering_array,
    read_manifest,
    write_manifest,
)
from handler.graph.ordering import Ordering, RowOrderer, check_ordering
from handler.graph.progress import SILENT, Progress
from handler.graph.rows import EdgeCounts, RowBuilder
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot
from handler.graph.staging import staged


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
        orderer = RowOrderer(
            plan.ordering, ids.hashes(), ranks_for(plan.ordering, ids), multigraph=plan.rules.multigraph
        )
        counts = EdgeCounts()
        builder = RowBuilder(
            graph.edges, graph.num_nodes, orderer, plan.rules, folder, progress=progress, counts=counts
        )
        contents = _contents(graph, ids, plan, builder)
        del orderer, builder  # so that what they know of all nodes goes when the last row was read
        write_contents(folder, contents, progress)
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
    name = ordering_array(ordering.strategy)
    path = array_path(folder, name)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        write_permutation(draft, snapshot.adjacency, snapshot.ids, ordering, manifest.rules, progress)
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


def _contents(graph: GraphArrays, ids: NodeIds, plan: BuildPlan, builder: RowBuilder) -> Contents:
    features = graph.features
    return Contents(
        name=graph.name,
        seq=0,
        ids=ids,
        fields=builder.fields,
        rows=builder.rows(),
        nodes=(Columns.whole(_node_arrays(graph)),),
        feature_kind=None if features is None else features.kind,
        feature_dim=0 if features is None else features.shape[1],
        ordering=plan.ordering,
        extra_orderings=plan.extra_orderings,
        rules=plan.rules,
        label_names=_label_names(graph),
    )


def _node_arrays(graph: GraphArrays) -> dict[str, NDArray[Any]]:
    arrays = {} if graph.features is None else graph.features.arrays()
    if graph.label is not None:
        arrays["label"] = graph.label.astype(np.int64)
    if graph.split is not None:
        arrays["split"] = graph.split.astype(np.uint8)
    return arrays


def _label_names(graph: GraphArrays) -> tuple[str, ...] | None:
    if graph.label is None or graph.label_names is not None:
        return None if graph.label is None else graph.label_names
    return tuple(str(label) for label in range(int(graph.label.max()) + 1))


def _with_ordering(manifest: Manifest, ordering: Ordering) -> Manifest:
    return msgspec.structs.replace(manifest, extra_orderings=(*manifest.extra_orderings, ordering))
