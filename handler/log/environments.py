"""The LMDB environments that this process has open: each once, as LMDB demands."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
from lmdb import verify

from handler.errors import LogCorrupt, LogUnavailable, in_one_line

_NUM_READ_SLOTS = 1022
_DATABASES = ("records", "marks", "mark_times", "facts")
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
    """An open environment with the databases of a log.

    Args:
        env: the environment itself.
        records: sealed records by the number of their last mutation.
        marks: requests by a hash of their id.
        mark_times: the keys of `marks` behind the time at which they came.
        facts: whose log this is, and where it ends.
    """

    folder: Path
    env: Any
    writable: bool
    records: Any
    marks: Any
    mark_times: Any
    facts: Any


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


def acquire(folder: Path, map_bytes: int, *, writable: bool) -> Environment:
    """Open the environment in a folder, or share it if this process has it open; `release` it after use."""
    with translated(folder):
        if writable:
            folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
    with _registry.lock:
        shared = _registry.opened.get(folder)
        if shared is None:
            _refuse_after_fork(folder)
            with translated(folder):
                shared = _open(folder, map_bytes, writable)
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
            " start processes with spawn, or open the log in them alone"
        )


def _open(folder: Path, map_bytes: int, writable: bool) -> Environment:
    _check_length(folder)
    env = lmdb.open(
        str(folder),
        map_size=map_bytes,
        max_dbs=len(_DATABASES),
        max_readers=_NUM_READ_SLOTS,
        readonly=not writable,
        create=writable,
    )
    try:
        # Processes that were killed while they read.
        env.reader_check()
        databases = {name: env.open_db(name.encode(), create=writable) for name in _DATABASES}
    except lmdb.NotFoundError:
        env.close()
        raise LogUnavailable(f"{folder}: holds no log of mutations") from None
    except BaseException:
        env.close()
        raise
    _sync_entry(folder)
    return Environment(folder, env, writable, **databases)


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
