"""Opens graphs for the ids of their nodes, and sees when they move on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from handler.graph.layout import GRAPH_NAME, current_folder, is_home
from handler.graph.manifest import MANIFEST_NAME
from handler.graph.snapshot import Snapshot

# Inode, size and time of change of files; none of one that cannot be looked at.
Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class OpenGraph:
    """The snapshot of a graph that counts, for the ids of its nodes.

    Args:
        grows: whether there may be nodes that the snapshot does not have.
    """

    folder: Path
    stamp: Stamp
    snapshot: Snapshot
    grows: bool


class Graphs:
    """The graphs that tables are open of, each mapped once, for as long as one of its tables is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: WeakValueDictionary[Path, OpenGraph] = WeakValueDictionary()

    def of(self, folder: Path) -> OpenGraph:
        """A graph as it is now.

        Raises:
            SnapshotError: it cannot be opened; names the file.
        """
        with self._lock:
            # Before it is opened: what changes meanwhile is found by the next look.
            stamp = stamp_of([folder / GRAPH_NAME, current_folder(folder) / MANIFEST_NAME])
            opened = self._opened.get(folder)
            if opened is None or opened.stamp != stamp:
                # It is not held: who replaces or removes it need not wait, and mapped files outlive that.
                opened = OpenGraph(folder, stamp, Snapshot.open(folder), is_home(folder))
                opened.snapshot.ids.index_of([])  # loads the kernel
                self._opened[folder] = opened
            return opened


def stamp_of(files: Iterable[Path]) -> Stamp:
    """Tells files from others in their places, and from what they were before they were written to."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
