"""`manifest.json`: what a snapshot holds, and how each file of it must look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import xxhash
from numpy.typing import NDArray

from handler.errors import SnapshotError
from handler.graph.features import FeatureKind
from handler.graph.ids import IdKind

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_HASHED_BLOCK_BYTES = 1 << 22

Count = Annotated[int, msgspec.Meta(ge=0)]


class ArrayEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `.npy` file of a snapshot; `checksum` is XXH3-128 of the whole file, in hexadecimal."""

    dtype: str
    shape: tuple[Count, ...]
    checksum: str


class Ordering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each list of neighbours is ordered, which is what a sample is a prefix of."""

    strategy: Literal["seeded"]
    seed: Count


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot's description.

    Args:
        snapshot_id: short hash of everything else, so that equal graphs have equal names.
        seq: the position in the log of mutations up to which the snapshot is complete.
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
    ordering: Ordering
    id_kind: IdKind
    feature_kind: FeatureKind | None
    label_names: tuple[str, ...] | None
    arrays: dict[str, ArrayEntry]


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
    """Write the manifest with its `snapshot_id`, which is derived from all its other fields."""
    nameless = msgspec.structs.replace(manifest, snapshot_id="")
    snapshot_id = xxhash.xxh3_64_hexdigest(msgspec.json.encode(nameless))[:12]
    named = msgspec.structs.replace(manifest, snapshot_id=snapshot_id)
    text = msgspec.json.format(msgspec.json.encode(named), indent=2)
    (folder / MANIFEST_NAME).write_bytes(text + b"\n")


def array_path(folder: Path, name: str) -> Path:
    """Where the array `name` of a snapshot lies."""
    return folder / f"{name}.npy"


def describe_array(path: Path, array: NDArray[Any]) -> ArrayEntry:
    """The manifest's entry for an array that was just written to `path`."""
    return ArrayEntry(str(array.dtype), array.shape, file_checksum(path))


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_HASHED_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class _Versioned(msgspec.Struct):
    format_version: int
