"""Looks after the cache of outputs in LMDB: what is in it, and away with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from handler.cache.protocol import VersionStats
from handler.cache.shelf import acquire_folder, holds_cache
from handler.cache.value import HEADER_BYTES, node_prefix
from handler.cache.versions import Tally
from handler.errors import LogUnavailable
from handler.log.environments import Environment, release, translated

# Whoever reads for long keeps LMDB from using pages that are free, and whoever changes much needs many.
_NUM_READ_AT_ONCE = 4096
_NUM_REMOVED_AT_ONCE = 256


class LmdbStore:
    """A cache's folder, for the command line; workers may have it open meanwhile."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        named = environment.databases
        self._values, self._used, self._order = named["values"], named["used"], named["order"]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open what a worker has made.

        Raises:
            LogUnavailable: there is no cache, or it cannot be used.
            LogCorrupt: it is damaged; a worker would begin it anew.
        """
        if not holds_cache(folder):
            raise LogUnavailable(f"{folder}: holds no cache of outputs")
        # Its size is the workers' to say.
        return cls(acquire_folder(folder, 0))

    def stats(self) -> list[VersionStats]:
        tally = Tally()
        last_key = b""
        while (next_key := self._count(tally, last_key)) is not None:
            last_key = next_key
        return tally.stats()

    def clear(self, version: str | None) -> int:
        if version is None:
            return self._clear_all()
        prefix = node_prefix(version).encode()
        num_removed = 0
        while num := self._remove_some(prefix):
            num_removed += num
        return num_removed

    def close(self) -> None:
        release(self._environment)

    @contextmanager
    def _begun(self, *, write: bool = False) -> Iterator[Any]:
        with translated(self._environment.folder), self._environment.env.begin(write=write) as txn:
            yield txn

    def _count(self, tally: Tally, after_key: bytes) -> bytes | None:
        """Count some entries; the last one's key, or None if there were none."""
        last_key = None
        with self._begun() as txn:
            cursor = txn.cursor(db=self._values)
            # No other key lies between one and the same with a zero behind it.
            found = cursor.set_range(after_key + b"\0") if after_key else cursor.first()
            for _ in range(_NUM_READ_AT_ONCE):
                if not found:
                    break
                last_key, value = cursor.item()
                tally.add(last_key, len(value), value[:HEADER_BYTES])
                found = cursor.next()
        return last_key

    def _clear_all(self) -> int:
        with self._begun(write=True) as txn:
            num_removed = txn.stat(self._values)["entries"]
            for database in (self._values, self._used, self._order):
                txn.drop(database, delete=False)
        return int(num_removed)

    def _remove_some(self, prefix: bytes) -> int:
        with self._begun(write=True) as txn:
            cursor = txn.cursor(db=self._values)
            found, num_removed = cursor.set_range(prefix), 0
            while found and num_removed < _NUM_REMOVED_AT_ONCE and cursor.key().startswith(prefix):
                key = cursor.key()
                found = cursor.delete() and bool(cursor.key())
                used = txn.pop(key, db=self._used)
                txn.delete(used + key, db=self._order)
                num_removed += 1
        return num_removed
