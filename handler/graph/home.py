"""The home of a graph that changes: snapshots come, one counts, and those that nobody holds go."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from handler.errors import SnapshotError
from handler.graph.arrays import GraphArrays
from handler.graph.durable import sync_folder
from handler.graph.holding import LOCK_NAME, Hold, claim, hold, hold_for_compaction
from handler.graph.layout import (
    CURRENT_NAME,
    HOME_VERSION,
    LOG_NAME,
    GraphFile,
    is_home,
    read_current,
    read_graph_file,
    seq_of,
    snapshot_name,
    snapshots_in,
    write_current,
    write_graph_file,
)
from handler.graph.progress import SILENT, Progress
from handler.graph.snapshot import Snapshot
from handler.graph.staging import staged
from handler.graph.writer import BuildPlan, BuildReport, write_files

_LEFTOVER_AGE_S = 60.0
_LEFTOVER_PREFIX = ".snapshot-"


@dataclass(frozen=True)
class GraphHome:
    """The folder of a graph that changes.

    Args:
        graph_id: of the graph for as long as it lives; a new build makes a new graph.
        log: where the mutations are, such as `redis://...`; none for the embedded log in `log_folder`.
    """

    folder: Path
    graph_id: str
    log: str | None

    @classmethod
    def read(cls, folder: Path) -> GraphHome:
        """Read `graph.json`.

        Raises:
            SnapshotError: it is missing, garbled or of another version.
        """
        graph = read_graph_file(folder)
        return cls(folder, graph.graph_id, graph.log)

    @property
    def current(self) -> Path:
        """The folder of the snapshot that counts now; `SnapshotError` where `CURRENT` names none."""
        return read_current(self.folder)

    @property
    def current_seq(self) -> int:
        """The position in the log up to which the snapshot that counts is complete."""
        return seq_of(self.current.name) or 0

    @property
    def log_folder(self) -> Path:
        """Where the embedded log is."""
        return self.folder / LOG_NAME

    def snapshot_folder(self, seq: int) -> Path:
        """Where the snapshot up to `seq` is, or would be."""
        return self.folder / snapshot_name(seq)

    def move_current(self, seq: int) -> None:
        """Let another snapshot count, in one step that outlasts a power failure.

        Raises:
            SnapshotError: there is no such snapshot, or the folder cannot be written.
        """
        try:
            with hold(self.snapshot_folder(seq)) as target:
                sync_folder(target.folder)
                sync_folder(self.folder)
                write_current(self.folder, seq)
        except OSError as error:
            raise SnapshotError(self.folder, f"cannot be written: {error.strerror}") from None


class HeldSnapshot:
    """A snapshot that stays on disk until it is closed, or the process ends; a context manager.

    Args:
        snapshot: the graph.
        home: where it comes from; none for a bare snapshot.
    """

    def __init__(self, snapshot: Snapshot, home: GraphHome | None, held: Hold) -> None:
        self.snapshot = snapshot
        self.home = home
        self._held = held

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the snapshot be removed; arrays that are in use still stay readable."""
        self._held.close()


def open_held(folder: Path) -> HeldSnapshot:
    """Open and hold the snapshot that counts: the current one of a home, or a bare one.

    Raises:
        SnapshotError: it is missing, truncated, corrupt or of another format; names the file.
    """
    with ExitStack() as undo:
        held = undo.enter_context(hold(folder))
        # Read only now: a graph that is held is not replaced by another one.
        home = GraphHome.read(folder) if is_home(folder) else None
        opened = HeldSnapshot(Snapshot.open(held.folder), home, held)
        undo.pop_all()
    return opened


def write_home(
    folder: Path,
    graph: GraphArrays,
    plan: BuildPlan | None = None,
    *,
    log: str | None = None,
    replace: bool = False,
    progress: Progress = SILENT,
) -> BuildReport:
    """Build a graph that may change later: a home with its first snapshot, whole or not at all.

    Args:
        folder: where it goes; an existing one is only replaced if `replace` is set, it is a home or a bare
            snapshot, and no process holds a snapshot of it.
        log: where mutations are going to be; none for the embedded log.

    Raises:
        GraphInputError: this is no graph, or has not what the plan needs.
        SnapshotError: the folder is taken, held or cannot be written.
    """
    with staged(folder, replace=replace) as staging:
        first = staging / snapshot_name(0)
        first.mkdir()
        with write_files(first, graph, plan or BuildPlan(), progress) as report:
            sync_folder(first)
            write_graph_file(staging, GraphFile(HOME_VERSION, secrets.token_hex(8), log))
            write_current(staging, 0)
    return report


@contextmanager
def compaction_lock(home: GraphHome) -> Iterator[None]:
    """Be the only process that makes snapshots of this graph.

    Raises:
        SnapshotError: another one does so now.
    """
    with hold_for_compaction(home.folder):
        yield


@contextmanager
def sole_use(home: GraphHome) -> Iterator[None]:
    """Have a graph for oneself: no process holds a snapshot of it, and none gets to until the end.

    Raises:
        SnapshotError: one does, or the folder cannot be written.
    """
    with compaction_lock(home), ExitStack() as claims:
        for folder in snapshots_in(home.folder):
            try:
                claimed = claim(folder)
            except OSError as error:
                raise SnapshotError(folder, f"cannot be locked: {error.strerror}") from None
            if claimed is None:
                raise SnapshotError(
                    home.folder, "is being served or read by a running process: stop it first"
                )
            claims.enter_context(claimed)
        yield


def oldest_held_seq(home: GraphHome) -> int:
    """The position in the log after which mutations are still needed: that of the oldest snapshot there."""
    seqs = [seq_of(folder.name) or 0 for folder in snapshots_in(home.folder)]
    return min([home.current_seq, *seqs])


def remove_unused(home: GraphHome) -> list[int]:
    """Remove snapshots older than the current one that nobody holds, and what killed builds left behind.

    A snapshot that is newer than the current one stays: it may be about to become current.

    Returns:
        The seqs of the snapshots that were removed.

    Raises:
        SnapshotError: something cannot be removed.
    """
    current = home.current_seq
    removed = []
    for folder in sorted(home.folder.iterdir()):
        seq = seq_of(folder.name)
        if seq is not None and seq < current and _remove(home, folder):
            removed.append(seq)
        elif folder.name.startswith(_LEFTOVER_PREFIX) and not _is_just_made(folder):
            _remove(home, folder)
    return sorted(removed)


def remove_unfinished(home: GraphHome) -> None:
    """Remove what is newer than the current snapshot: of compactions that ended before it counted.

    Only for who has the compaction lock.

    Raises:
        SnapshotError: something cannot be removed.
    """
    current = home.current_seq
    for folder in snapshots_in(home.folder):
        if (seq_of(folder.name) or 0) > current:
            _remove(home, folder)
    for draft in home.folder.glob(f".{CURRENT_NAME}-*"):
        try:
            draft.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotError(draft, f"cannot be removed: {error.strerror}") from None


def _remove(home: GraphHome, folder: Path) -> bool:
    """Whether nobody held the folder, so that it is gone."""
    try:
        claimed = claim(folder)
        if claimed is None:
            return False
        with claimed:
            if folder == home.current:  # it was made so before we had the lock
                return False
            hidden = folder
            if not folder.name.startswith("."):
                hidden = folder.with_name(f".{folder.name}-removed-{os.getpid()}")
                folder.rename(hidden)
            shutil.rmtree(hidden)
    except OSError as error:
        raise SnapshotError(folder, f"cannot be removed: {error.strerror}") from None
    return True


def _is_just_made(folder: Path) -> bool:
    """Whether this may be a build that is about to take hold of its folder."""
    try:
        return not (folder / LOCK_NAME).exists() and time.time() - folder.stat().st_mtime < _LEFTOVER_AGE_S
    except FileNotFoundError:
        return True
