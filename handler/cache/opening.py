"""Opens the cache of a model's outputs, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handler.cache.embedded import LmdbCache
from handler.cache.embedded_store import LmdbStore
from handler.cache.protocol import CacheStore, OnFailure, OutputCache, ignore_failure
from handler.errors import LogUnavailable
from handler.settings import read_location

_SERVERS = {"redis", "rediss", "unix"}


def open_cache(
    location: str,
    folder: Path,
    *,
    prefix: str,
    version: str,
    tag: int,
    dim: int,
    max_bytes: int,
    timeout_ms: int,
    ttl_s: int,
    on_failure: OnFailure = ignore_failure,
) -> OutputCache:
    """The cache at a location.

    Args:
        location: `embedded` for LMDB in `folder`, a server such as `redis://host:6379/0`, or `env:NAME` for
            what the environment says.
        prefix: tells apart the models that share a server; a folder is one model's.
        version, tag, dim: see `handler.cache.value.Values`.
        max_bytes: of the file in the folder.
        timeout_ms, ttl_s: how long the server may take, and how long an entry lives there.

    Raises:
        LogUnavailable: it cannot be used, or nothing is known of such a location.
    """
    if location == "embedded":
        return LmdbCache.open(
            folder, version=version, tag=tag, dim=dim, max_bytes=max_bytes, on_failure=on_failure
        )
    location = read_location(location)
    _check_server(location)
    with _extra_named():
        from handler.cache.server import RedisCache  # an extra: only who names a server needs it
    return RedisCache.open(
        location,
        prefix=prefix,
        version=version,
        tag=tag,
        dim=dim,
        ttl_s=ttl_s,
        timeout_ms=timeout_ms,
        on_failure=on_failure,
    )


def open_store(location: str, folder: Path, prefix: str) -> CacheStore:
    """What is cached of all versions at a location; arguments and errors as `open_cache`.

    Raises:
        LogUnavailable: there is no cache, or it cannot be used.
        LogCorrupt: it is damaged; a worker would begin it anew.
    """
    if location == "embedded":
        return LmdbStore.open(folder)
    location = read_location(location)
    _check_server(location)
    with _extra_named():
        from handler.cache.server_store import RedisStore
    return RedisStore.open(location, prefix)


def _check_server(location: str) -> None:
    scheme = location.partition("://")[0]  # what follows may hold a password
    if scheme not in _SERVERS or "://" not in location:
        raise LogUnavailable(
            f"a cache at {scheme}:// is not known, only embedded, redis://, rediss:// and unix://"
        )


@contextmanager
def _extra_named() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise LogUnavailable(
            "a cache in Redis needs the packages redis and pybreaker: pip install 'hopserve[redis]'"
        ) from None
