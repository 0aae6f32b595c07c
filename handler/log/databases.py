"""The databases of a log in LMDB."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from handler.log.environments import Environment, acquire

_NAMES = ("records", "marks", "mark_times", "facts")


@dataclass(frozen=True)
class LogEnvironment:
    """An open environment that holds a log.

    Args:
        shared: the environment, which other objects of this process may use too.
        records: sealed records by the number of their last mutation.
        marks: requests by a hash of their id.
        mark_times: the keys of `marks` behind the time at which they came.
        facts: whose log this is, and where it ends.
    """

    shared: Environment
    records: Any
    marks: Any
    mark_times: Any
    facts: Any

    @classmethod
    def acquire(cls, folder: Path, map_bytes: int, *, writable: bool) -> Self:
        """As `environments.acquire`."""
        shared = acquire(folder, map_bytes, writable=writable, databases=_NAMES, what="log of mutations")
        return cls(shared, **shared.databases)

    @property
    def env(self) -> Any:
        """LMDB's own object."""
        return self.shared.env

    @property
    def folder(self) -> Path:
        return self.shared.folder

    @property
    def writable(self) -> bool:
        return self.shared.writable
