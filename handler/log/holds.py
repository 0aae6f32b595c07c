"""How far each reader on this host has read a log: one small file each, locked for as long as it lives."""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

# The same number twice: a file that is read while it is written shows two.
_POSITION = struct.Struct(">QQ")
_GATE = ".gate"
_NUM_TRIES = 100


class Holds:
    """The readers of one log object, and a view on those of all others.

    The kernel drops the lock on a file when its process ends, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, tuple[Path, int]] = {}
        _all_holds.add(self)

    def hold(self, reader: str, seq: int) -> None:
        """Say how far a reader has read. The first time takes a file, later ones microseconds."""
        with self._lock:
            if reader in self._files:
                os.pwrite(self._files[reader][1], _POSITION.pack(seq, seq), 0)
            else:
                self._files[reader] = self._register(reader, seq)

    def release(self, reader: str) -> None:
        """Forget a reader of this object."""
        with self._lock:
            path, descriptor = self._files.pop(reader, (None, -1))
        if path is not None:
            _drop(path, descriptor)

    def release_all(self) -> None:
        """Forget every reader of this object."""
        for reader in tuple(self._files):
            self.release(reader)

    def least(self) -> int | None:
        """How far the slowest reader of any process has read; forgets those that died."""
        if not self._folder.exists():
            return None
        with self._gate():
            files = [path for path in self._folder.iterdir() if path.name != _GATE]
            positions = [_position(path) for path in files]
        return min((seq for seq in positions if seq is not None), default=None)

    def abandon(self) -> None:
        """Close a forked process's copies: they would keep its parent's readers alive."""
        for _, descriptor in self._files.values():
            os.close(descriptor)
        self._files, self._lock = {}, threading.Lock()

    def _register(self, reader: str, seq: int) -> tuple[Path, int]:
        self._folder.mkdir(exist_ok=True)
        # Readers of one name in several processes are several readers.
        path = self._folder / f"{quote(reader, safe='')}.{secrets.token_hex(4)}"
        with self._gate():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.pwrite(descriptor, _POSITION.pack(seq, seq), 0)
            except BaseException:
                _drop(path, descriptor)
                raise
        return path, descriptor

    @contextmanager
    def _gate(self) -> Iterator[None]:
        # Without it a file that is there but not locked yet would be taken for a dead reader's.
        descriptor = os.open(self._folder / _GATE, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _position(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_position(descriptor)
    else:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _read_position(descriptor: int) -> int:
    for _ in range(_NUM_TRIES):
        data = os.pread(descriptor, _POSITION.size, 0)
        if len(data) == _POSITION.size and data[:8] == data[8:]:
            return int(_POSITION.unpack(data)[0])
    # Unreadable, but alive: it may need everything.
    return 0


def _drop(path: Path, descriptor: int) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
    os.close(descriptor)


_all_holds: weakref.WeakSet[Holds] = weakref.WeakSet()


def _abandon_all() -> None:
    for holds in tuple(_all_holds):
        holds.abandon()


os.register_at_fork(after_in_child=_abandon_all)
