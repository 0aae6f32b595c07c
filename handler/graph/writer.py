"""Writes a graph snapshot, whole or not at all."""

from __future__ import annotations

import enum
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError, SnapshotError
from handler.graph.features import Features
from handler.graph.hashing import edge_key
from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds
from handler.graph.kernels import compiled
from handler.graph.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    Manifest,
    Ordering,
    array_path,
    describe_array,
    write_manifest,
)
from handler.graph.sampler import Adjacency

Report = Callable[[str], None]


class Split(enum.IntEnum):
    """What a node is used for in training; the values of a snapshot's `split` array."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3


@dataclass(frozen=True)
class GraphArrays:
    """A graph as arrays, before it is a snapshot.

    Args:
        name: what people call it.
        edge_index: integers [2, num_edges], from row 0 to row 1, as node indices. A node is computed
            from those that point to it.
        num_nodes: nodes are 0 to num_nodes - 1.
        ids: int64 [num_nodes], or as many strings; without it the ids are the node indices.
        features: [num_nodes, feature_dim], or none.
        label: int64 [num_nodes], -1 where unknown, or none.
        label_names: a name per class, or none to call class c "c".
        split: uint8 [num_nodes] of `Split`, or none.
    """

    name: str
    edge_index: NDArray[np.integer]
    num_nodes: int
    ids: NDArray[np.int64] | Sequence[str] | None = None
    features: Features | None = None
    label: NDArray[np.int64] | None = None
    label_names: tuple[str, ...] | None = None
    split: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class BuildReport:
    """What became of the input's edges."""

    num_nodes: int
    num_edges: int
    num_duplicates: int


def order_adjacency(edge_index: NDArray[np.integer], hashes: NDArray[np.uint64], seed: int) -> Adjacency:
    """Each node's distinct in-neighbours in `seeded` order.

    Args:
        edge_index: integers [2, num_edges], from neighbour to node; repeats count once.
        hashes: uint64 [num_nodes], a hash of each node's id.
        seed: another seed gives another, independent ordering.
    """
    num_nodes = len(hashes)
    # Stable sorts by neighbour, then by node: equal edges end up side by side.
    by_source = np.argsort(edge_index[0], kind="stable")
    order = by_source[np.argsort(edge_index[1][by_source], kind="stable")]
    source, target = edge_index[0][order], edge_index[1][order]
    if len(source):
        first = np.empty(len(source), dtype=np.bool_)
        first[0] = True
        first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        source, target = source[first], target[first]
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(target, minlength=num_nodes), out=indptr[1:])
    index_dtype = np.int32 if num_nodes <= np.iinfo(np.int32).max else np.int64
    indices: NDArray[np.integer] = source.astype(index_dtype)
    _order_rows(indptr, indices, hashes, np.uint64(seed))
    return Adjacency(indptr, indices)


def check_edge_index(edge_index: NDArray[Any]) -> None:
    """Refuse what is not integers [2, num_edges] with a `GraphInputError`."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or not np.issubdtype(edge_index.dtype, np.integer):
        raise GraphInputError(
            f"edge_index must be integers [2, num_edges], but is {edge_index.dtype} {list(edge_index.shape)}"
        )


def write_snapshot(
    folder: Path,
    graph: GraphArrays,
    *,
    seed: int = 0,
    replace: bool = False,
    report: Report = lambda step: None,
) -> BuildReport:
    """Build a snapshot in a folder beside `folder`, and move it there when it is complete.

    Args:
        folder: where it goes; an existing one is only replaced if `replace` is set and it is a snapshot.
        seed: of the `seeded` ordering.
        report: is told each step as it begins.

    Raises:
        GraphInputError: the arrays are no graph.
        SnapshotError: the folder is taken or cannot be written.
    """
    _check_target(folder, replace)
    report("checking the arrays")
    _check_graph(graph)
    ids = _index_ids(graph)
    report(f"ordering {graph.edge_index.shape[1]} edges")
    adjacency = order_adjacency(graph.edge_index, ids.hashes(), seed)
    manifest, arrays = _compose(graph, ids, adjacency, seed)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise SnapshotError(folder, f"cannot be written: {error.strerror}") from None
    try:
        _write_files(staging, manifest, arrays, report)
        _move_into_place(staging, folder)
    except OSError as error:
        raise SnapshotError(folder, f"cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    num_edges = len(adjacency.indices)
    return BuildReport(graph.num_nodes, num_edges, graph.edge_index.shape[1] - num_edges)


def _check_target(folder: Path, replace: bool) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if not (folder / MANIFEST_NAME).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SnapshotError(folder, "exists and is no graph snapshot, so it is left alone")
    if (folder / MANIFEST_NAME).is_file() and not replace:
        raise SnapshotError(folder, "a snapshot is there already")


def _check_graph(graph: GraphArrays) -> None:
    edges, nodes = graph.edge_index, graph.num_nodes
    if nodes < 1:
        raise GraphInputError("the graph has no nodes")
    check_edge_index(edges)
    if edges.size and (edges.min() < 0 or edges.max() >= nodes):
        worst = int(edges.max()) if edges.max() >= nodes else int(edges.min())
        raise GraphInputError(f"edge_index names node {worst}, but the nodes are 0 to {nodes - 1}")
    _check_features(graph)
    rows = {"ids": graph.ids, "label": graph.label, "split": graph.split}
    for name, values in rows.items():
        if values is not None and len(values) != nodes:
            raise GraphInputError(f"{name} has {len(values)} entries for {nodes} nodes")
    if graph.label is not None:
        _check_labels(graph.label, graph.label_names)


def _check_labels(label: NDArray[Any], names: tuple[str, ...] | None) -> None:
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer):
        raise GraphInputError(
            f"classes must be integers [num_nodes], but are {label.dtype} {list(label.shape)}"
        )
    lowest, highest = int(label.min()), int(label.max())
    if lowest < -1 or highest < 0:
        raise GraphInputError(
            f"classes must be 0 or more, or -1 where unknown, but run from {lowest} to {highest}"
        )
    if names is not None and highest >= len(names):
        raise GraphInputError(f"classes run to {highest}, but there are {len(names)} class names")


def _check_features(graph: GraphArrays) -> None:
    if graph.features is None:
        return
    if graph.features.shape[0] != graph.num_nodes:
        raise GraphInputError(f"the features have {graph.features.shape[0]} rows for {graph.num_nodes} nodes")
    for name in ("x", "x_data"):
        values = graph.features.arrays().get(name)
        if values is None:
            continue
        if values.dtype not in (np.float32, np.float16):
            raise GraphInputError(f"features must be float32 or float16, but are {values.dtype}")
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise GraphInputError(f"the features hold NaN or infinity (first at position {bad} of {name})")


def _index_ids(graph: GraphArrays) -> NodeIds:
    ids = graph.ids
    if ids is None:
        return RangeIds(graph.num_nodes)
    if not isinstance(ids, np.ndarray) or ids.dtype.kind == "U":
        return StrIds.build([str(node_id) for node_id in ids])
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or int(ids.max()) > np.iinfo(np.int64).max:
        raise GraphInputError(
            f"node ids must be strings or 64-bit integers [num_nodes], but are {ids.dtype} {list(ids.shape)}"
        )
    if np.array_equal(ids, np.arange(graph.num_nodes)):
        return RangeIds(graph.num_nodes)
    return IntIds.build(ids.astype(np.int64))


def _compose(
    graph: GraphArrays, ids: NodeIds, adjacency: Adjacency, seed: int
) -> tuple[Manifest, dict[str, NDArray[Any]]]:
    arrays: dict[str, NDArray[Any]] = {
        "indptr": adjacency.indptr,
        "indices": adjacency.indices,
    } | ids.arrays()
    if graph.features is not None:
        arrays |= graph.features.arrays()
    label_names = graph.label_names
    if graph.label is not None:
        arrays["label"] = graph.label.astype(np.int64)
        if label_names is None:
            label_names = tuple(str(label) for label in range(int(graph.label.max()) + 1))
    if graph.split is not None:
        arrays["split"] = graph.split.astype(np.uint8)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=graph.name,
        snapshot_id="",
        seq=0,
        num_nodes=graph.num_nodes,
        num_edges=len(adjacency.indices),
        feature_dim=0 if graph.features is None else graph.features.shape[1],
        ordering=Ordering("seeded", seed),
        id_kind=ids.kind,
        feature_kind=None if graph.features is None else graph.features.kind,
        label_names=label_names,
        arrays={},
    )
    return manifest, arrays


def _write_files(staging: Path, manifest: Manifest, arrays: dict[str, NDArray[Any]], report: Report) -> None:
    for name, array in arrays.items():
        report(f"writing {name} ({array.nbytes / 1e6:.1f} MB)")
        path = array_path(staging, name)
        np.save(path, np.ascontiguousarray(array), allow_pickle=False)
        manifest.arrays[name] = describe_array(path, array)
        _sync(path)
    write_manifest(staging, manifest)
    _sync(staging / MANIFEST_NAME)
    staging.chmod(0o755)  # mkdtemp's own 0o700 would hide it from other users' workers


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _move_into_place(staging: Path, folder: Path) -> None:
    """Workers that have the old snapshot mapped keep it: its files live on until they let go."""
    if not folder.exists():
        staging.rename(folder)
        return
    retired = folder.with_name(f".{folder.name}-retired-{os.getpid()}")
    folder.rename(retired)
    staging.rename(folder)
    shutil.rmtree(retired)


@compiled
def _order_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[np.integer],
    hashes: NDArray[np.uint64],
    seed: np.uint64,
) -> None:
    for node in range(len(indptr) - 1):
        start, end = indptr[node], indptr[node + 1]
        keys = np.empty(end - start, dtype=np.uint64)
        for position in range(start, end):
            keys[position - start] = edge_key(seed, hashes[node], hashes[indices[position]])
        indices[start:end] = indices[start:end][np.argsort(keys, kind="mergesort")]
