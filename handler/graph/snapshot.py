"""Opens a graph snapshot: an immutable folder of mapped arrays that all workers share."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import SnapshotError
from handler.graph.adjacency import Adjacency
from handler.graph.edges import EdgeFields
from handler.graph.features import CsrFeatures, DenseFeatures, Features
from handler.graph.holding import hold
from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds
from handler.graph.live_features import FeatureChanges, snapshot_changes
from handler.graph.manifest import (
    MANIFEST_NAME,
    Manifest,
    array_path,
    file_checksum,
    ordering_array,
    read_manifest,
    spot_checksum,
)
from handler.graph.progress import SILENT, Progress
from handler.graph.sampler import Sampler
from handler.graph.sampling import Sampling

_PARSING = threading.Lock()
_ALWAYS_HASHED_BYTES = 64 << 20  # a hundredth of a second to hash
_FROM_IDS = {
    "range": (),
    "int": ("ids", "id_slots"),
    "str": ("id_bytes", "id_offsets", "id_slots"),
}
_PER_NODE = ("label", "split", "ids", "node_created", "feature_seq")
_FROM_FEATURES = {None: (), "dense": ("x",), "csr": ("x_indptr", "x_indices", "x_data")}


class Snapshot:
    """One graph at one moment, read-only.

    Args:
        folder: where it lies.
        manifest: its description.
        adjacency: in-neighbours of every node, in sampling order.
        ids: between node ids and node indices.
        features: node features, or none.
        label: int64 [num_nodes], class of each node and -1 where it is unknown; only for training.
        split: uint8 [num_nodes], see `Split`; only for training.
        node_created: float64 [num_nodes], seconds since 1970 when a node was added, 0 for those of the build;
            none if all are of the build.
        feature_seq: int64 [num_nodes], the mutation that set a node's features last, 0 where none did; none
            if none did so to any.
        written: when its files were, in seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        adjacency: Adjacency,
        ids: NodeIds,
        features: Features | None,
        label: NDArray[np.int64] | None,
        split: NDArray[np.uint8] | None,
        node_created: NDArray[np.float64] | None = None,
        feature_seq: NDArray[np.int64] | None = None,
        written: float = 0.0,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.adjacency = adjacency
        self.ids = ids
        self.features = features
        self.label = label
        self.split = split
        self.node_created = node_created
        self.feature_seq = feature_seq
        self.written = written

    @classmethod
    def open(cls, folder: Path) -> Snapshot:
        """Map a snapshot; of a graph's home, the one that counts now.

        Every file's size, dtype and shape is checked, and its checksum too where the snapshot is small
        (up to 64 MiB); of larger ones a few spots of each file, which shows files of another snapshot.
        `verify` checks everything at any size.

        Raises:
            SnapshotError: it is missing, truncated, corrupt or of another format; names the file.
        """
        with hold(folder) as held:
            return cls._map(held.folder)

    @classmethod
    def _map(cls, folder: Path) -> Snapshot:
        manifest = read_manifest(folder)
        arrays = {
            name: map_array(folder, name, np.dtype(entry.dtype), entry.shape)
            for name, entry in manifest.arrays.items()
        }
        small = sum(array.nbytes for array in arrays.values()) <= _ALWAYS_HASHED_BYTES
        _check_files(folder, manifest, whole=small)
        _check_counts(folder, manifest, arrays)
        return cls(
            folder,
            manifest,
            _read_adjacency(manifest, arrays),
            _read_ids(manifest, arrays),
            _read_features(manifest, arrays),
            arrays.get("label"),
            arrays.get("split"),
            arrays.get("node_created"),
            arrays.get("feature_seq"),
            (folder / MANIFEST_NAME).stat().st_mtime,
        )

    @property
    def num_nodes(self) -> int:
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        return self.manifest.num_edges

    @property
    def edge_fields(self) -> EdgeFields:
        """What is known of each edge."""
        return self.adjacency.fields

    @property
    def feature_changes(self) -> FeatureChanges:
        """Which features were set by which mutation."""
        return snapshot_changes(self.feature_seq)

    @property
    def seq(self) -> int:
        """The position in the log up to which it is complete."""
        return self.manifest.seq

    def sampler(self, sampling: Sampling | None = None) -> Sampler:
        """What samples this graph; `GraphInputError` where it does not store such an ordering."""
        return Sampler(self.adjacency, sampling, self.ids, max_edge_age=self.manifest.rules.max_edge_age)


def verify(folder: Path, *, progress: Progress = SILENT) -> Snapshot:
    """Open a snapshot and check every byte of it, and that all it says of nodes and edges is possible.

    Raises:
        SnapshotError: the first thing that is wrong; names the file.
    """
    with hold(folder) as held:
        snapshot = Snapshot.open(held.folder)
        _check_everything(snapshot, progress)
    return snapshot


def _check_everything(snapshot: Snapshot, progress: Progress) -> None:
    folder = snapshot.folder
    _check_files(folder, snapshot.manifest, whole=True, progress=progress)
    progress.say("checking that edges and ids are possible")
    adjacency = snapshot.adjacency
    if (np.diff(adjacency.indptr) < 0).any():
        raise SnapshotError(array_path(folder, "indptr"), "the row offsets do not ascend")
    degree_limit = np.diff(adjacency.indptr).max(initial=0)
    for first, last in adjacency.ranges():
        edges = slice(int(adjacency.indptr[first]), int(adjacency.indptr[last]))
        _check_within(folder, "indices", adjacency.indices[edges], snapshot.num_nodes)
        for strategy, places in adjacency.permutations.items():
            _check_within(folder, ordering_array(strategy), places[edges], int(degree_limit))


def map_array(folder: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Map one file of a snapshot, read-only; one that is missing or not as said is a `SnapshotError`."""
    path = array_path(folder, name)
    try:
        # Without elements there is nothing to map, and mmap refuses it. NumPy parses the header as Python,
        # which two threads may not do at once: CPython gh-106905, a SystemError.
        with _PARSING:
            array = np.asarray(np.load(path, mmap_mode=None if 0 in shape else "r", allow_pickle=False))
    except FileNotFoundError:
        raise SnapshotError(path, "missing, but named in the manifest") from None
    except (OSError, ValueError, EOFError) as error:
        raise SnapshotError(path, f"truncated or not a .npy file: {error}") from None
    if array.dtype != dtype or array.shape != shape:
        raise SnapshotError(
            path, f"holds {array.dtype} {list(array.shape)}, the manifest says {dtype} {list(shape)}"
        )
    array.flags.writeable = False
    return array


def _check_files(folder: Path, manifest: Manifest, *, whole: bool, progress: Progress = SILENT) -> None:
    """Compare files with their checksums; the first that differs is a `SnapshotError`."""
    paths = {name: array_path(folder, name) for name in manifest.arrays}
    total = sum(path.stat().st_size for path in paths.values())
    with progress.bar("comparing checksums", total, "B") as advance:
        for name, entry in manifest.arrays.items():
            found = file_checksum(paths[name]) if whole else spot_checksum(paths[name])
            wanted = entry.checksum if whole else entry.spot_checksum
            if found != wanted:
                raise SnapshotError(
                    paths[name], f"corrupt: its checksum is {found}, the manifest says {wanted}"
                )
            advance(paths[name].stat().st_size)


def _check_within(folder: Path, name: str, values: NDArray[Any], limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        raise SnapshotError(array_path(folder, name), f"has values beyond 0 to {limit - 1}")


def _check_counts(folder: Path, manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    nodes, edges = manifest.num_nodes, manifest.num_edges
    wanted: dict[str, tuple[int, ...] | None] = {"indptr": (nodes + 1,), "indices": (edges,)}
    wanted |= dict.fromkeys(_FROM_IDS[manifest.id_kind])
    wanted |= dict.fromkeys(_FROM_FEATURES[manifest.feature_kind])
    wanted |= {name: (nodes,) for name in _PER_NODE if name in arrays}
    wanted |= {name: (edges,) for name in ("edge_weight", "edge_time") if name in arrays}
    wanted |= {ordering_array(extra.strategy): (edges,) for extra in manifest.extra_orderings}
    if manifest.edge_dim:
        wanted["edge_attr"] = (edges, manifest.edge_dim)
    if manifest.feature_kind == "dense":
        wanted["x"] = (nodes, manifest.feature_dim)
    for name, shape in wanted.items():
        if name not in arrays:
            raise SnapshotError(array_path(folder, name), "missing, also from the manifest")
        if shape is not None and arrays[name].shape != shape:
            raise SnapshotError(
                array_path(folder, name),
                f"has shape {list(arrays[name].shape)}, the manifest's counts ask for {list(shape)}",
            )
    if arrays["indptr"][0] != 0 or arrays["indptr"][-1] != edges:
        raise SnapshotError(array_path(folder, "indptr"), f"does not run from 0 to {edges}")


def _read_adjacency(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> Adjacency:
    permutations = {
        extra.strategy: arrays[ordering_array(extra.strategy)] for extra in manifest.extra_orderings
    }
    return replace(Adjacency.of_arrays(arrays, manifest.ordering), permutations=permutations)


def _read_ids(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> NodeIds:
    if manifest.id_kind == "range":
        return RangeIds(manifest.num_nodes)
    if manifest.id_kind == "int":
        return IntIds(arrays["ids"], arrays["id_slots"])
    return StrIds(arrays["id_bytes"], arrays["id_offsets"], arrays["id_slots"])


def _read_features(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> Features | None:
    if manifest.feature_kind is None:
        return None
    if manifest.feature_kind == "dense":
        return DenseFeatures(arrays["x"])
    indptr, indices, data = (arrays[name] for name in _FROM_FEATURES["csr"])
    return CsrFeatures(indptr, indices, data, manifest.feature_dim)
