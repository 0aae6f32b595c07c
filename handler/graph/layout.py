"""Where the files of a graph lie that changes: its home, with one folder per snapshot.

    FOLDER/graph.json        what the graph is, for as long as it lives
    FOLDER/CURRENT           the name of the snapshot that counts
    FOLDER/snapshot-SEQ/     snapshots, each complete up to that position in the log
    FOLDER/log/              the embedded log of mutations

A snapshot without a home, whose `manifest.json` lies in FOLDER itself, is a graph that does not change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec

from handler.errors import SnapshotError
from handler.graph.durable import replace_file
from handler.graph.manifest import MANIFEST_NAME

HOME_VERSION = 1
GRAPH_NAME = "graph.json"
CURRENT_NAME = "CURRENT"
LOG_NAME = "log"
_SNAPSHOT_NAME = re.compile(r"snapshot-(0|[1-9][0-9]{0,18})")


class GraphFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`graph.json`.

    Args:
        graph_id: 16 hexadecimal digits, drawn when the graph was built.
        log: where the mutations are; none for the embedded log.
    """

    format_version: int
    graph_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    log: Annotated[str, msgspec.Meta(min_length=1)] | None


def read_graph_file(folder: Path) -> GraphFile:
    """Read a home's `graph.json`; anything but a valid one of this version is a `SnapshotError`."""
    path = folder / GRAPH_NAME
    data = _read(path)
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version != HOME_VERSION:
            raise SnapshotError(path, f"format_version is {version}, this Hopserve reads {HOME_VERSION}")
        return msgspec.json.decode(data, type=GraphFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(path, f"does not describe a graph: {error}") from None


def write_graph_file(folder: Path, graph: GraphFile) -> None:
    replace_file(folder / GRAPH_NAME, msgspec.json.format(msgspec.json.encode(graph), indent=2) + b"\n")


def read_current(folder: Path) -> Path:
    """The snapshot folder that a home's `CURRENT` names; it may be missing.

    Raises:
        SnapshotError: `CURRENT` is missing or holds something else.
    """
    path = folder / CURRENT_NAME
    data = _read(path)
    name = data.decode(errors="replace").removesuffix("\n")
    if seq_of(name) is None:
        raise SnapshotError(path, f"holds {name!r:.80}, not the name of a snapshot such as snapshot-0")
    return folder / name


def write_current(folder: Path, seq: int) -> None:
    """Move `CURRENT`, in one step."""
    replace_file(folder / CURRENT_NAME, f"{snapshot_name(seq)}\n".encode())


def current_folder(folder: Path) -> Path:
    """The snapshot that counts in a home; a folder that is no home itself.

    Raises:
        SnapshotError: this is a home, but `graph.json` or `CURRENT` is missing or not what it should be.
    """
    if not is_home(folder):
        return folder
    read_graph_file(folder)
    return read_current(folder)


def is_home(folder: Path) -> bool:
    """Whether this is the home of a graph, if perhaps a damaged one, and no bare snapshot."""
    if (folder / MANIFEST_NAME).is_file():
        return False
    return (folder / GRAPH_NAME).is_file() or (folder / CURRENT_NAME).is_file()


def is_graph(folder: Path) -> bool:
    """Whether this can be nothing but a graph: a bare snapshot or a home."""
    if (folder / MANIFEST_NAME).is_file():
        return True
    return (folder / GRAPH_NAME).is_file() and (folder / CURRENT_NAME).is_file()


def snapshots_in(folder: Path) -> list[Path]:
    """The folders of all snapshots of a home, by seq; of a bare snapshot the folder itself."""
    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    found = {seq: path for path in folder.iterdir() if (seq := seq_of(path.name)) is not None}
    return [found[seq] for seq in sorted(found)]


def snapshot_name(seq: int) -> str:
    """The name of the folder of a snapshot."""
    return f"snapshot-{seq}"


def seq_of(name: str) -> int | None:
    """The position in the log in the name of a snapshot's folder; none if it is no such name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SnapshotError(path, "missing, so this folder is no home of a graph") from None
    except OSError as error:
        raise SnapshotError(path, f"cannot be read: {error.strerror}") from None


class _Versioned(msgspec.Struct):
    format_version: int
