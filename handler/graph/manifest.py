"""`manifest.json`: what a snapshot holds, and how each file of it must look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash

from handler.errors import SnapshotError
from handler.graph.durable import replace_file
from handler.graph.features import FeatureKind
from handler.graph.ids import IdKind
from handler.graph.ordering import Ordering, Strategy
from handler.graph.rules import EdgeRules

FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
_HASHED_BLOCK_BYTES = 1 << 22
_NUM_SPOTS, _SPOT_BYTES = 64, 1 << 12

Count = Annotated[int, msgspec.Meta(ge=0)]


class ArrayEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `.npy` file of a snapshot.

    Args:
        checksum: XXH3-128 of the whole file, in hexadecimal.
        spot_checksum: XXH3-64 of 64 spots of it, which tells files of different snapshots apart in a
            millisecond at any size.
    """

    dtype: str
    shape: tuple[Count, ...]
    checksum: str
    spot_checksum: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot's description.

    Args:
        snapshot_id: short hash of everything else, so that equal graphs have equal names.
        seq: the position in the log of mutations up to which the snapshot is complete.
        ordering: how the lists of neighbours lie.
        extra_orderings: how else they can be read; `order_<strategy>` holds the permutation of each.
        rules: which edges counted; later ones must follow them to give what a build from all edges gives.
        edge_dim: number of edge features.
        id_kind: which class of `handler.graph.ids` reads the ids.
        feature_kind: which class of `handler.graph.features` reads the features; none without features.
        label_names: the name of each class in `label`.
        arrays: the files, by array name.
    """

    format_version: int
    name: str
    snapshot_id: str
    seq: Count
    num_nodes: Count
    num_edges: Count
    feature_dim: Count
    rules: EdgeRules
    edge_dim: Count
    ordering: Ordering
    extra_orderings: tuple[Ordering, ...]
    id_kind: IdKind
    feature_kind: FeatureKind | None
    label_names: tuple[str, ...] | None
    arrays: dict[str, ArrayEntry]

    def orderings(self) -> dict[Strategy, Ordering]:
        """All orderings of the snapshot, by strategy; its own comes first."""
        return {each.strategy: each for each in (self.ordering, *self.extra_orderings)}


def read_manifest(folder: Path) -> Manifest:
    """Read a snapshot's manifest; anything but a valid one of this format is a `SnapshotError`."""
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SnapshotError(path, "missing, so this folder is no graph snapshot") from None
    except OSError as error:
        raise SnapshotError(path, f"cannot be read: {error.strerror}") from None
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version != FORMAT_VERSION:
            raise SnapshotError(path, f"format_version is {version}, this Hopserve reads {FORMAT_VERSION}")
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(path, f"not a valid manifest: {error}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with its `snapshot_id`, which is derived from all its other fields.

    It replaces an older one in one step, so that a reader finds the one or the other.
    """
    nameless = msgspec.structs.replace(manifest, snapshot_id="")
    snapshot_id = xxhash.xxh3_64_hexdigest(msgspec.json.encode(nameless))[:12]
    named = msgspec.structs.replace(manifest, snapshot_id=snapshot_id)
    text = msgspec.json.format(msgspec.json.encode(named), indent=2)
    replace_file(folder / MANIFEST_NAME, text + b"\n")


def array_path(folder: Path, name: str) -> Path:
    """Where the array `name` of a snapshot lies."""
    return folder / f"{name}.npy"


def ordering_array(strategy: Strategy) -> str:
    """The name of the array that holds an extra ordering."""
    return f"order_{strategy}"


def describe_file(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayEntry:
    """The manifest's entry for an array that was just written to `path`."""
    return ArrayEntry(str(dtype), shape, file_checksum(path), spot_checksum(path))


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_HASHED_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def spot_checksum(path: Path) -> str:
    """XXH3-64 of a file's size and of 64 short stretches all over it, in hexadecimal."""
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(str(size).encode())
        last = max(0, size - _SPOT_BYTES)
        for start in sorted({last * spot // (_NUM_SPOTS - 1) for spot in range(_NUM_SPOTS)}):
            digest.update(os.pread(file.fileno(), _SPOT_BYTES, start))
    return digest.hexdigest()


class _Versioned(msgspec.Struct):
    format_version: int
