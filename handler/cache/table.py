"""The precomputed outputs of one model version, a mapped row for each node of one snapshot."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.cache.described import check_files, read_description
from handler.cache.outputs import Outputs
from handler.errors import SnapshotError, TableError
from handler.graph.durable import replace_file, replaced_folder
from handler.graph.manifest import ArrayEntry, array_path, describe_file
from handler.graph.snapshot import map_array

FORMAT_VERSION = 1
MANIFEST_NAME = "table.json"
_NAME = re.compile(r"table-([0-9]+)")


class TableManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`table.json`: what a table stands for.

    Args:
        tag: of the model's file and the graph, in hexadecimal; see `handler.cache.tags`.
        snapshot_id, seq: the snapshot, and the latest mutation in it.
        computed: when it was begun, in seconds since 1970; ages of edges count from then.
        num_nodes: of the snapshot.
        dim: columns of `output`: those of the embedding, then those of the prediction.
        arrays: the files, by array name.
    """

    format_version: int
    model_name: str
    model_version: str
    tag: str
    snapshot_id: str
    seq: int
    computed: float
    num_nodes: int
    dim: int
    arrays: dict[str, ArrayEntry] = {}


@dataclass(frozen=True)
class Table:
    """A mapped table.

    Args:
        output: float32 [num_nodes, dim].
        fingerprint: uint64 [num_nodes]; 0 where the row must not be used: the node's tree is over budget, or
            the output is not finite.
        sampled: int32 [num_nodes], nodes of each sampled tree.
        stamp: tells a folder from another one that took its place.
    """

    folder: Path
    stamp: int
    manifest: TableManifest
    output: NDArray[np.float32]
    fingerprint: NDArray[np.uint64]
    sampled: NDArray[np.int32]

    @classmethod
    def open(cls, folder: Path) -> Table:
        """Map a table; small ones are checked byte by byte, larger ones at spots, as snapshots are.

        Raises:
            TableError: it is missing, truncated, corrupt or of another format; names the file.
        """
        manifest = read_description(folder / MANIFEST_NAME, TableManifest, FORMAT_VERSION, "a table")
        stamp = folder.stat().st_ino
        shapes = _shapes(manifest)
        if set(manifest.arrays) != set(shapes):
            raise TableError(folder / MANIFEST_NAME, f"does not name the arrays {', '.join(shapes)}")
        try:
            arrays: dict[str, Any] = {
                name: map_array(folder, name, dtype, shape) for name, (dtype, shape) in shapes.items()
            }
        except SnapshotError as error:
            raise TableError(error.path, str(error).partition(": ")[2]) from None
        check_files(
            {array_path(folder, name): entry for name, entry in manifest.arrays.items()},
            sum(array.nbytes for array in arrays.values()),
        )
        return cls(folder, stamp, manifest, arrays["output"], arrays["fingerprint"], arrays["sampled"])

    def rows(self, node: NDArray[np.int64]) -> Outputs:
        """The rows of nodes, float32 [len(node), dim] and so on; of nodes that it does not have, unusable.

        Args:
            node: int64 [num_asked], node indices.
        """
        there = np.flatnonzero(node < self.manifest.num_nodes)
        place = node[there]
        outputs = Outputs(
            np.zeros((len(node), self.manifest.dim), dtype=np.float32),
            np.zeros(len(node), dtype=np.uint64),
            np.full(len(node), self.manifest.seq, dtype=np.int64),
            np.full(len(node), int(self.manifest.computed * 1e6), dtype=np.int64),
            np.zeros(len(node), dtype=np.int32),
        )
        outputs.output[there] = self.output[place]
        outputs.fingerprint[there] = self.fingerprint[place]
        outputs.num_nodes[there] = self.sampled[place]
        return outputs


def versions_folder(embeddings: Path, model_name: str, version: str) -> Path:
    """Where the tables of a model version are, below the folder of all that is kept for a graph."""
    return embeddings / model_name / version


def table_folder(versions: Path, seq: int) -> Path:
    """Where the table of the snapshot up to `seq` is, or would be."""
    return versions / f"table-{seq}"


def tables_in(versions: Path) -> list[Path]:
    """The tables of a model version, the one with the latest seq first."""
    if not versions.is_dir():
        return []
    found = {int(match[1]): path for path in versions.iterdir() if (match := _NAME.fullmatch(path.name))}
    return [found[seq] for seq in sorted(found, reverse=True)]


@contextmanager
def written_table(versions: Path, manifest: TableManifest) -> Iterator[Path]:
    """Give an empty folder for `output.npy`, `fingerprint.npy` and `sampled.npy`, which is then described,
    put in place in one step, and replaces older tables of the version.

    Who has an older table mapped keeps it until letting go.
    """
    versions.mkdir(parents=True, exist_ok=True)
    target = table_folder(versions, manifest.seq)
    with replaced_folder(target) as staging:
        yield staging
        arrays = {
            name: describe_file(array_path(staging, name), dtype, shape)
            for name, (dtype, shape) in _shapes(manifest).items()
        }
        text = msgspec.json.format(
            msgspec.json.encode(msgspec.structs.replace(manifest, arrays=arrays)), indent=2
        )
        replace_file(staging / MANIFEST_NAME, text + b"\n")
        old = tables_in(versions)
    for folder in old:
        if folder != target:
            shutil.rmtree(folder, ignore_errors=True)


def _shapes(manifest: TableManifest) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Dtype and shape of each array of a table."""
    return {
        "output": (np.dtype(np.float32), (manifest.num_nodes, manifest.dim)),
        "fingerprint": (np.dtype(np.uint64), (manifest.num_nodes,)),
        "sampled": (np.dtype(np.int32), (manifest.num_nodes,)),
    }
