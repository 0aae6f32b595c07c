"""The LMDB environments that this process has open: each once, as LMDB demands."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
from lmdb import verify

from handler.errors import LogCorrupt, LogUnavailable, in_one_line

_NUM_READ_SLOTS = 1022
_CORRUPT = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    verify.VerifyError,
)


@dataclass(frozen=True)
class Environment:
    """An open environment with its databases.

    Args:
        env: the environment itself.
        databases: those that were asked for when it was opened, by name.
    """

    folder: Path
    env: Any
    writable: bool
    databases: Mapping[str, Any]


class _Registry:
    """Which environments are open, and how often."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: dict[Path, Environment] = {}
        self.num_users: dict[Path, int] = {}
        self.inherited: list[Environment] = []

    def leave_to_parent(self) -> None:
        # They stay the parent's: closing them here would free the slots of its running reads.
        self.inherited += self.opened.values()
        self.opened, self.num_users, self.lock = {}, {}, threading.Lock()


_registry = _Registry()
os.register_at_fork(after_in_child=_registry.leave_to_parent)


@contextmanager
def translated(where: Path) -> Iterator[None]:
    """Turn what LMDB and the file system refuse into errors of the log."""
    try:
        yield
    except _CORRUPT as error:
        raise LogCorrupt(str(where), in_one_line(error)) from None
    except OSError as error:
        raise LogUnavailable(f"{where}: {error.strerror or in_one_line(error)}") from None
    except lmdb.Error as error:
        # LMDB says no more of a write that was cut short.
        hint = ", as when the disk is full" if error.code == errno.EIO else ""
        raise LogUnavailable(f"{where}: {in_one_line(error)}{hint}") from None


def acquire(
    folder: Path,
    map_bytes: int,
    *,
    writable: bool,
    databases: tuple[str, ...],
    what: str,
) -> Environment:
    """Open the environment in a folder, or share it if this process has it open; `release` it after use.

    Args:
        map_bytes: the most that its file may take; 0 for what was said when it was last written.
        writable: it is made if there is none.
        databases: their names.
        what: what they are together, for messages.

    Raises:
        LogUnavailable: the folder cannot be used, or this process uses it otherwise.
        LogCorrupt: what is in it is no environment, or not a whole one.
    """
    with translated(folder):
        if writable:
            folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
    with _registry.lock:
        shared = _registry.opened.get(folder)
        if shared is None:
            _refuse_after_fork(folder)
            with translated(folder):
                shared = _open(folder, map_bytes, writable, databases, what)
        elif set(databases) != set(shared.databases):
            raise LogUnavailable(f"{folder}: holds no {what}, but what this process uses otherwise")
        elif writable and not shared.writable:
            raise LogUnavailable(f"{folder}: this process has it open for reading only")
        _registry.opened[folder] = shared
        _registry.num_users[folder] = _registry.num_users.get(folder, 0) + 1
        return shared


def release(shared: Environment) -> None:
    """Close an environment when nobody in this process uses it any more."""
    with _registry.lock:
        if _registry.opened.get(shared.folder) is not shared:
            return
        _registry.num_users[shared.folder] -= 1
        if not _registry.num_users[shared.folder]:
            del _registry.opened[shared.folder], _registry.num_users[shared.folder]
            shared.env.close()


def check_usable(shared: Environment) -> None:
    """Raise `LogUnavailable` if an environment was opened before this process was forked off."""
    if _registry.inherited and any(shared is inherited for inherited in _registry.inherited):
        _refuse_after_fork(shared.folder)


def _refuse_after_fork(folder: Path) -> None:
    if any(inherited.folder == folder for inherited in _registry.inherited):
        raise LogUnavailable(
            f"{folder}: was open when this process was forked, and LMDB cannot be used across a fork:"
            " start processes with spawn, or open it in them alone"
        )


def _open(folder: Path, map_bytes: int, writable: bool, databases: tuple[str, ...], what: str) -> Environment:
    _check_length(folder)
    env = lmdb.open(
        str(folder),
        map_size=map_bytes,
        max_dbs=len(databases),
        max_readers=_NUM_READ_SLOTS,
        readonly=not writable,
        create=writable,
    )
    try:
        # Processes that were killed while they read.
        env.reader_check()
        opened = {name: env.open_db(name.encode(), create=writable) for name in databases}
    except lmdb.NotFoundError:
        env.close()
        raise LogUnavailable(f"{folder}: holds no {what}") from None
    except BaseException:
        env.close()
        raise
    _sync_entry(folder)
    return Environment(folder, env, writable, opened)


def _check_length(folder: Path) -> None:
    # LMDB reads through a memory map and trusts its page numbers: a page beyond the end of the file is
    # not an error there but the end of the process (SIGBUS).
    data = folder / "data.mdb"
    if not data.exists() or not data.stat().st_size:
        return
    with data.open("rb") as file:
        pages = verify._Verifier(file, data.stat().st_size)
        pages.detect_engine()
        pages.load_metas()
        # Looked at after the page numbers, because a writer grows the file before it says so.
        missing = pages.next_pgno * pages.psize - os.fstat(file.fileno()).st_size
    # Pages at the end that are free may never have been written, so only a full look can tell.
    if missing > 0 and (problems := verify.verify(str(folder))):
        raise LogCorrupt(
            str(data),
            f"{missing} bytes are missing at its end, and with them what it needs ({problems[0]}): restore"
            " a copy, or begin a new log with a snapshot that is complete up to its last mutation",
        )


def _sync_entry(folder: Path) -> None:
    # LMDB syncs what is in its files, but not that there are any.
    for each in (folder, folder.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
