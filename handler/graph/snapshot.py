"""Opens a graph snapshot: an immutable folder of mapped arrays that all workers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import SnapshotError
from handler.graph.features import CsrFeatures, DenseFeatures, Features
from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds
from handler.graph.manifest import Manifest, array_path, file_checksum, read_manifest
from handler.graph.sampler import Adjacency

_ALWAYS_HASHED_BYTES = 64 << 20  # a hundredth of a second to hash
_FROM_IDS = {
    "range": (),
    "int": ("ids", "id_slots"),
    "str": ("id_bytes", "id_offsets", "id_slots"),
}
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
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.adjacency = adjacency
        self.ids = ids
        self.features = features
        self.label = label
        self.split = split

    @classmethod
    def open(cls, folder: Path) -> Snapshot:
        """Map a snapshot.

        Every file's size, dtype and shape is checked, and its checksum too where the snapshot is small
        (up to 64 MiB); `verify` checks the checksums at any size.

        Raises:
            SnapshotError: it is missing, truncated, corrupt or of another format; names the file.
        """
        manifest = read_manifest(folder)
        arrays = {name: _map_array(folder, manifest, name) for name in manifest.arrays}
        if sum(array.nbytes for array in arrays.values()) <= _ALWAYS_HASHED_BYTES:
            verify(folder, manifest)
        _check_counts(folder, manifest, arrays)
        return cls(
            folder,
            manifest,
            Adjacency(arrays["indptr"], arrays["indices"]),
            _read_ids(manifest, arrays),
            _read_features(manifest, arrays),
            arrays.get("label"),
            arrays.get("split"),
        )

    @property
    def num_nodes(self) -> int:
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        return self.manifest.num_edges


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with its checksum; the first that differs is a `SnapshotError`."""
    for name, entry in manifest.arrays.items():
        path = array_path(folder, name)
        found = file_checksum(path)
        if found != entry.checksum:
            raise SnapshotError(path, f"corrupt: its checksum is {found}, the manifest says {entry.checksum}")


def _map_array(folder: Path, manifest: Manifest, name: str) -> NDArray[Any]:
    path, entry = array_path(folder, name), manifest.arrays[name]
    try:
        # Without elements there is nothing to map, and mmap refuses it.
        mapped = 0 not in entry.shape
        array = np.asarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))
    except FileNotFoundError:
        raise SnapshotError(path, "missing, but named in the manifest") from None
    except (OSError, ValueError, EOFError) as error:
        raise SnapshotError(path, f"truncated or not a .npy file: {error}") from None
    if str(array.dtype) != entry.dtype or array.shape != entry.shape:
        raise SnapshotError(
            path,
            f"holds {array.dtype} {list(array.shape)}, the manifest says {entry.dtype} {list(entry.shape)}",
        )
    array.flags.writeable = False
    return array


def _check_counts(folder: Path, manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    nodes, edges = manifest.num_nodes, manifest.num_edges
    wanted: dict[str, tuple[int, ...] | None] = {"indptr": (nodes + 1,), "indices": (edges,)}
    wanted |= dict.fromkeys(_FROM_IDS[manifest.id_kind])
    wanted |= dict.fromkeys(_FROM_FEATURES[manifest.feature_kind])
    wanted |= {name: (nodes,) for name in ("label", "split", "ids") if name in arrays}
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
