"""The folder of a cache in LMDB: what is in it, and what of it goes when it is full.

Three databases: `values`; `used`, when each was last used; `order`, the keys in the order of that time.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from handler.errors import LogCorrupt, LogUnavailable
from handler.log.environments import Environment, acquire, check_usable, release, translated

_logger = logging.getLogger(__name__)

_NAMES = ("values", "used", "order")
_FILES = ("data.mdb", "lock.mdb")
# Nothing is ever removed from a folder without it.
_GATE = ".cache"
_TIME_BYTES = 8
_MAX_EVICTED_AT_ONCE = 64
_FILL = 0.75
# A row that is written, and one that goes for it, change about ten pages, which must fit into what is free.
_BYTES_PER_ROW = 1 << 18
_MAX_ROWS_AT_ONCE = 4096
_NUM_PIECES = 8


@dataclass(frozen=True)
class Row:
    """A value to be written, or with None one that was used; the time is in microseconds since 1970."""

    key: bytes
    value: bytes | None
    used_us: int


class Shelf:
    """An open folder of cached values. Several processes may write at the same time.

    Args:
        max_bytes: what the file may take; values are evicted so that a quarter of it stays free.
    """

    def __init__(self, environment: Environment, max_bytes: int) -> None:
        self._environment = environment
        self._env = environment.env
        self._values, self._used, self._order = (environment.databases[name] for name in _NAMES)
        self._max_bytes = max_bytes
        self._page_bytes = self._env.stat()["psize"]
        self._rows_at_once = max(1, min(_MAX_ROWS_AT_ONCE, max_bytes // _BYTES_PER_ROW))

    @property
    def folder(self) -> Path:
        return self._environment.folder

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values under these keys.

        Raises:
            LogUnavailable, LogCorrupt: as LMDB says.
        """
        with self._usable(), self._env.begin(db=self._values) as txn:
            get = txn.get
            return [get(key) for key in keys]

    def write(self, rows: Sequence[Row]) -> int:
        """Write values and say which were used; how many rows were dropped for want of room."""
        with self._usable():
            steps = range(0, len(rows), self._rows_at_once)
            return sum(self._write_some(rows[start : start + self._rows_at_once]) for start in steps)

    def discard(self) -> None:
        """Remove the files, for who opens the folder next; those who have them open keep what they have."""
        with self._usable(), _gate(self.folder):
            _remove(self.folder)

    def close(self) -> None:
        release(self._environment)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        check_usable(self._environment)
        with translated(self.folder):
            yield

    def _write_some(self, rows: Sequence[Row], *, again: bool = True) -> int:
        try:
            with self._env.begin(write=True) as txn:
                self._evict(txn, int(self._max_bytes * _FILL))
                for row in rows:
                    self._put(txn, row)
        except lmdb.MapFullError:
            if not again:
                return len(rows)
        else:
            return 0
        self._make_room()
        size = -(-len(rows) // _NUM_PIECES)
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
        return sum(self._write_some(piece, again=False) for piece in pieces)

    def _put(self, txn: Any, row: Row) -> None:
        old = txn.get(row.key, db=self._used)
        if old is None and row.value is None:
            return  # evicted since it was used
        used = row.used_us.to_bytes(_TIME_BYTES, "big")
        if old is not None and used > old:
            txn.delete(old + row.key, db=self._order)
        if old is None or used > old:
            txn.put(row.key, used, db=self._used)
            txn.put(used + row.key, b"", db=self._order)
        if row.value is not None:
            txn.put(row.key, row.value, db=self._values)

    def _evict(self, txn: Any, max_used_bytes: int) -> None:
        # Freed pages count at once, though LMDB gives them out again only two transactions later.
        while self._used_bytes(txn) > max_used_bytes and self._evict_some(txn):
            pass

    def _evict_some(self, txn: Any) -> bool:
        cursor = txn.cursor(db=self._order)
        found = cursor.first()
        for _ in range(min(_MAX_EVICTED_AT_ONCE, self._rows_at_once)):
            if not found:
                return False
            key = cursor.key()[_TIME_BYTES:]
            found = cursor.delete() and bool(cursor.key())
            txn.delete(key, db=self._used)
            txn.delete(key, db=self._values)
        return True

    def _make_room(self) -> None:
        # A process that was killed while it read keeps LMDB from using pages that are free.
        self._env.reader_check()
        with self._env.begin() as txn:
            # Below a half it is not values that take the room, and evicting more would be for nothing.
            target = max(self._used_bytes(txn) * 7 // 8, self._max_bytes // 2)
        try:
            while self._evict_step(target):
                pass
        except lmdb.MapFullError:
            return

    def _evict_step(self, max_used_bytes: int) -> bool:
        with self._env.begin(write=True) as txn:
            return self._used_bytes(txn) > max_used_bytes and self._evict_some(txn)

    def _used_bytes(self, txn: Any) -> int:
        stats = [txn.stat(db) for db in (self._values, self._used, self._order)]
        pages = [each["branch_pages"] + each["leaf_pages"] + each["overflow_pages"] for each in stats]
        return int(sum(pages)) * int(self._page_bytes)


def open_folder(folder: Path, max_bytes: int) -> Environment:
    """Open a cache's folder, which is made if there is none; what is in it and no use is removed.

    That is a damaged file, or one that is larger than `max_bytes`.

    Raises:
        LogUnavailable: the folder cannot be used, or holds something else than a cache.
    """
    map_bytes = max(1, max_bytes // os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PAGE_SIZE")
    with translated(folder), _gate(folder):
        data = folder / "data.mdb"
        if data.exists() and data.stat().st_size > map_bytes:
            _logger.warning("%s is larger than the %d bytes it may take: begun anew", data, max_bytes)
            _remove(folder)
        try:
            return acquire_folder(folder, map_bytes)
        except LogCorrupt as error:
            _logger.warning("the cache is damaged and begun anew: %s", error)
            _remove(folder)
            return acquire_folder(folder, map_bytes)


def acquire_folder(folder: Path, map_bytes: int) -> Environment:
    """As `environments.acquire`, for the databases of a cache."""
    return acquire(folder, map_bytes, writable=True, databases=_NAMES, what="cache of outputs")


def holds_cache(folder: Path) -> bool:
    """Whether there is a cache in a folder."""
    return (folder / _GATE).exists() and (folder / "data.mdb").exists()


@contextmanager
def _gate(folder: Path) -> Iterator[None]:
    """Let one process at a time make or remove the files of a folder that is a cache's."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "data.mdb").exists() and not (folder / _GATE).exists():
        raise LogUnavailable(f"{folder}: holds something else than a cache of outputs")
    descriptor = os.open(folder / _GATE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
