"""Opens the log of a graph, wherever it is."""

from __future__ import annotations

from pathlib import Path

from handler.errors import LogUnavailable
from handler.log.embedded import LmdbLog
from handler.log.protocol import Log
from handler.settings import read_location


def open_log(location: str | None, folder: Path, graph_id: str) -> Log:
    """The log at a location such as `redis://host:6379/0`, or without one the embedded log in `folder`.

    A location `env:NAME` is read in the environment.

    Raises:
        LogUnavailable: it cannot be reached, or nothing is known of such a location.
        LogCorrupt: it is of another graph.
    """
    if location is None:
        return LmdbLog.open(folder, graph_id)
    location = read_location(location)
    if location.partition("://")[0] in {"redis", "rediss", "unix"}:
        from handler.log.stream import RedisLog  # an extra: only who names a server needs it

        return RedisLog.open(location, graph_id)
    scheme = location.partition("://")[0]  # what follows may hold a password
    raise LogUnavailable(f"a log at {scheme}:// is not known, only redis://, rediss:// and unix://")
