"""Holds snapshots, so that nobody removes one that a process still reads.

Whoever reads a snapshot has a shared flock on its file `lock`, and whoever removes it needs the exclusive
one. The kernel lets go when the process ends, however it ends. It is not the manifest that is locked, because
a new manifest takes the old one's place by a rename, and a lock stays with the old file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from handler.errors import SnapshotError
from handler.graph.layout import CURRENT_NAME, current_folder
from handler.graph.manifest import MANIFEST_NAME, read_manifest

LOCK_NAME = "lock"
_COMPACTION_LOCK_NAME = "compaction.lock"
_PATIENCE_S = 10.0
_PAUSE_S = 0.005
# Where nothing can be locked, nobody can get the exclusive lock either, and nothing is removed.
_UNLOCKABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOLCK, errno.EOPNOTSUPP})


class Hold:
    """A lock that lasts until it is closed, forgotten, or the process ends; a context manager.

    Args:
        folder: what is held.
        descriptor: of the locked file; none where nothing can be locked, as on a medium that is read only.
    """

    def __init__(self, folder: Path, descriptor: int | None) -> None:
        self.folder = folder
        self._release = None if descriptor is None else weakref.finalize(self, os.close, descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go; a second time does nothing."""
        # No LOCK_UN: it would take the lock from a forked child, too.
        if self._release is not None:
            self._release()


def hold(folder: Path) -> Hold:
    """Hold the snapshot that counts: the current one of a home, or a bare one.

    Where `CURRENT` moves on and its snapshot is removed before it could be held, the next one is taken.

    Raises:
        SnapshotError: there is none; names the file.
    """
    deadline = time.monotonic() + _PATIENCE_S
    gone = None
    while True:
        snapshot = current_folder(folder)
        held = _share(snapshot)
        if held is not None:
            return held
        if not os.path.exists(snapshot / MANIFEST_NAME):  # noqa: PTH110 - unlike Path's, it raises nothing
            if gone == snapshot:  # and CURRENT names it still
                _refuse_missing(folder, snapshot)
            gone = snapshot
        elif time.monotonic() > deadline:
            raise SnapshotError(snapshot, "is locked by another process that replaces or removes it")
        else:
            time.sleep(_PAUSE_S)


def hold_new(folder: Path) -> Hold:
    """Hold a folder that is about to become a snapshot."""
    # Locked before it has the name that others look for.
    draft = folder / f".{LOCK_NAME}"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    held = Hold(folder, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    draft.rename(folder / LOCK_NAME)
    return held


def claim(folder: Path) -> Hold | None:
    """Have a snapshot for oneself, to remove or replace it; None if somebody holds it, or it is gone.

    Raises:
        OSError: it cannot be locked.
    """
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _lock(folder, descriptor, fcntl.LOCK_EX)


def hold_for_compaction(home: Path) -> Hold:
    """Be the only one who changes which snapshots a home has.

    Raises:
        SnapshotError: another process is at it, or the folder cannot be written.
    """
    path = home / _COMPACTION_LOCK_NAME
    with ExitStack() as undo:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            held = undo.enter_context(Hold(home, descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SnapshotError(home, "is being compacted by another process") from None
        except OSError as error:
            raise SnapshotError(path, f"cannot be locked: {error.strerror}") from None
        undo.pop_all()
    return held


def _share(snapshot: Path) -> Hold | None:
    """None if the snapshot is gone, or about to be."""
    try:
        return _lock(snapshot, _open_to_share(snapshot), fcntl.LOCK_SH)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in _UNLOCKABLE:
            return Hold(snapshot, None)
        raise SnapshotError(snapshot / LOCK_NAME, f"cannot be locked: {error.strerror}") from None


def _open_to_share(snapshot: Path) -> int:
    path = snapshot / LOCK_NAME
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        (snapshot / MANIFEST_NAME).stat()  # nothing is left behind in a folder of something else
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _lock(folder: Path, descriptor: int, operation: int) -> Hold | None:
    held = Hold(folder, descriptor)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        # Who had it before may have moved the folder away.
        if os.path.samestat(os.fstat(descriptor), (folder / LOCK_NAME).stat()):
            return held
    except (BlockingIOError, FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        held.close()
        raise
    held.close()
    return None


def _refuse_missing(folder: Path, snapshot: Path) -> None:
    if snapshot != folder and not snapshot.exists():
        raise SnapshotError(folder / CURRENT_NAME, f"names {snapshot.name}, which is missing")
    read_manifest(snapshot)  # says what is wrong with it
