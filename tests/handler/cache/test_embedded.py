"""The cache in LMDB: its bounds, its damages, and the processes that share it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from handler.cache.embedded import LmdbCache
from handler.cache.embedded_store import LmdbStore
from handler.cache.opening import open_cache, open_store
from handler.errors import LogUnavailable
from handler.log.embedded import LmdbLog
from tests.handler.cache.samples import DIM, assert_same, outputs_of
from tests.handler.log.processes import kill, run_code, start_code

_MAX_BYTES = 4 << 20
_OpenCache = Callable[..., LmdbCache]

_PUT = """
    import itertools, sys
    from pathlib import Path
    from handler.cache.embedded import LmdbCache
    from tests.handler.cache.samples import outputs_of
    cache = LmdbCache.open(Path(sys.argv[1]), version="1.0", tag=1, dim=64, max_bytes=4 << 20)
    def put(start):
        ids = range(start, start + 100)
        cache.put(ids, outputs_of(ids))
        cache.flush()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def open_it(folder: Path, failures: list[str]) -> Iterator[_OpenCache]:
    opened: list[LmdbCache] = []

    def open_cache(**settings: object) -> LmdbCache:
        defaults = {"version": "1.0", "tag": 1, "dim": DIM, "max_bytes": _MAX_BYTES}
        cache = LmdbCache.open(folder, **{**defaults, "on_failure": failures.append, **settings})
        opened.append(cache)
        return cache

    yield open_cache
    for cache in opened:
        cache.close()


@pytest.fixture
def cache(open_it: _OpenCache) -> LmdbCache:
    return open_it()


def _fill(cache: LmdbCache, start: int, stop: int) -> None:
    for first in range(start, stop, 500):
        ids = range(first, min(first + 500, stop))
        cache.put(ids, outputs_of(ids))
        cache.flush()


def test_what_was_put_is_found(cache: LmdbCache, failures: list[str]) -> None:
    assert len(cache.get([3, 1]).place) == 0
    cache.put([1, 2, 3], outputs_of([1, 2, 3]))
    cache.flush()
    found = cache.get([9, 3, 8, 1])
    assert found.place.tolist() == [1, 3]
    assert_same(found.outputs, outputs_of([3, 1]))
    assert cache.get([]).place.tolist() == []
    assert failures == []


def test_the_latest_counts(cache: LmdbCache) -> None:
    for times in (1, 2):
        cache.put([1], outputs_of([1], times=times))
    cache.flush()
    assert_same(cache.get([1]).outputs, outputs_of([1], times=2))


def test_it_is_there_after_closing(open_it: _OpenCache) -> None:
    first = open_it()
    first.put([1], outputs_of([1]))
    first.close()
    first.close()
    assert_same(open_it().get([1]).outputs, outputs_of([1]))
    assert len(first.get([1]).place) == 0


@pytest.mark.parametrize("other", [{"tag": 2}, {"version": "2.0"}, {"dim": DIM + 1}])
def test_other_models_do_not_meet(cache: LmdbCache, open_it: _OpenCache, other: dict[str, object]) -> None:
    cache.put([1], outputs_of([1]))
    cache.flush()
    assert len(open_it(**other).get([1]).place) == 0


def test_a_damaged_value_is_a_miss(cache: LmdbCache, failures: list[str]) -> None:
    cache.put([1, 2], outputs_of([1, 2]))
    cache.flush()
    shelf = cache._shelf
    with shelf._env.begin(write=True, db=shelf._values) as txn:
        txn.put(b"1.0:node:1", txn.get(b"1.0:node:1")[:-1] + b"!")
    assert cache.get([1, 2]).place.tolist() == [1]
    assert failures == ["corrupt"]


def test_it_never_outgrows_its_bound(cache: LmdbCache, folder: Path, failures: list[str]) -> None:
    num_rows = 20 * _MAX_BYTES // (4 * DIM)
    for first in range(0, num_rows, 5000):
        _fill(cache, first, min(first + 5000, num_rows))
        assert (folder / "data.mdb").stat().st_size <= _MAX_BYTES
    newest = range(num_rows - 1000, num_rows)
    assert len(cache.get(newest).place) == 1000
    assert failures == []
    (stats,) = _stats(folder)
    assert stats.num_bytes > _MAX_BYTES // 4
    assert stats.newest_us == outputs_of([num_rows - 1]).computed_us[0]


def test_what_is_too_large_is_dropped(open_it: _OpenCache, folder: Path, failures: list[str]) -> None:
    cache = open_it(dim=2_000_000)
    cache.put([1], outputs_of([1], dim=2_000_000))
    cache.flush()
    assert failures == ["full"]
    assert (folder / "data.mdb").stat().st_size <= _MAX_BYTES


def test_what_was_not_used_for_longest_goes_first(open_it: _OpenCache) -> None:
    cache = open_it(touch_s=0)
    _fill(cache, 0, 1000)
    for first in range(1000, 20_000, 1000):
        assert cache.get(range(100)).place.tolist() == list(range(100))
        _fill(cache, first, first + 1000)
    assert len(cache.get(range(100)).place) == 100
    assert len(cache.get(range(100, 1000)).place) == 0


def test_a_smaller_bound_begins_anew(open_it: _OpenCache, folder: Path) -> None:
    cache = open_it()
    _fill(cache, 0, 10_000)
    cache.close()
    cache = open_it(max_bytes=1 << 20)
    _fill(cache, 0, 10_000)
    assert (folder / "data.mdb").stat().st_size <= 1 << 20
    assert len(cache.get(range(9900, 10_000)).place) == 100


def test_a_reader_that_stays_does_not_empty_it(cache: LmdbCache, folder: Path) -> None:
    _fill(cache, 0, 5000)
    with cache._shelf._env.begin():
        _fill(cache, 5000, 40_000)
        (stats,) = _stats(folder)
        assert stats.num_entries > 2000
    _fill(cache, 40_000, 42_000)
    assert len(cache.get(range(41_900, 42_000)).place) == 100
    assert (folder / "data.mdb").stat().st_size <= _MAX_BYTES


def test_a_folder_of_rubbish_is_begun_anew(
    open_it: _OpenCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_it().close()
    (folder / "data.mdb").write_bytes(b"something else" * 1000)
    with caplog.at_level(logging.WARNING):
        cache = open_it()
    assert "damaged and begun anew" in caplog.text
    _fill(cache, 0, 10)
    assert len(cache.get(range(10)).place) == 10


def test_a_file_that_lost_its_end_is_begun_anew(open_it: _OpenCache, folder: Path) -> None:
    cache = open_it()
    _fill(cache, 0, 1000)
    cache.close()
    os.truncate(folder / "data.mdb", 50_000)
    cache = open_it()
    assert len(cache.get(range(1000)).place) == 0
    _fill(cache, 0, 10)
    assert len(cache.get(range(10)).place) == 10


def test_what_is_not_a_cache_is_left_alone(folder: Path, open_it: _OpenCache) -> None:
    LmdbLog.open(folder, "graph").close()
    with pytest.raises(LogUnavailable, match="something else than a cache"):
        open_it()
    with pytest.raises(LogUnavailable, match="no cache"):
        LmdbStore.open(folder)
    LmdbLog.open(folder, "graph").close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailable, match="Not a directory"):
        LmdbCache.open(tmp_path / "file" / "cache", version="1", tag=1, dim=1, max_bytes=1 << 20)


def test_processes_share_it(cache: LmdbCache, folder: Path, failures: list[str]) -> None:
    cache.put([5000], outputs_of([5000]))
    cache.flush()
    code = _PUT + "    for start in range(0, 1000, 100): put(start)\n    print(cache.get([5000]).place)\n"
    assert run_code(code, folder) == "[0]\n"
    assert_same(cache.get(range(1000)).outputs, outputs_of(range(1000)))
    assert failures == []


def test_a_writer_may_be_killed(cache: LmdbCache, folder: Path, failures: list[str]) -> None:
    code = _PUT + "    for start in itertools.count(0, 100): put(start); print(start, flush=True)\n"
    for wait_s in (0.0, 0.1, 0.3):
        process = start_code(code, folder)
        time.sleep(wait_s)
        starts = [int(line) for line in kill(process)]
        newest = range(starts[-1], starts[-1] + 100) if starts else range(100)
        assert_same(cache.get(newest).outputs, outputs_of(newest))
        cache.put([-1], outputs_of([-1]))
        cache.flush()
        assert len(cache.get([-1]).place) == 1
    assert failures == []


def test_a_forked_process_has_misses_and_no_failure() -> None:
    code = """
        import os, sys, tempfile
        from pathlib import Path
        from handler.cache.embedded import LmdbCache
        from tests.handler.cache.samples import outputs_of
        failures = []
        cache = LmdbCache.open(
            Path(tempfile.mkdtemp()),
            version="1.0",
            tag=1,
            dim=64,
            max_bytes=1 << 20,
            on_failure=failures.append,
        )
        cache.put([1], outputs_of([1]))
        cache.flush()
        child = os.fork()
        if not child:
            cache.put([2], outputs_of([2]))
            cache.flush()
            print(len(cache.get([1]).place), failures, flush=True)
            cache.close()
            os._exit(0)
        os.waitpid(child, 0)
        print(len(cache.get([1]).place), failures)
    """
    assert run_code(code) == "0 ['full', 'unavailable']\n1 []\n"


def test_versions_are_counted_and_cleared_apart(open_it: _OpenCache, folder: Path) -> None:
    for version, num in (("1.0", 300), ("10", 20), ("1.0:node", 3)):
        cache = open_it(version=version)
        _fill(cache, 0, num)
    assert [(each.version, each.num_entries) for each in _stats(folder)] == [
        ("1.0", 300),
        ("1.0:node", 3),
        ("10", 20),
    ]
    store = open_store("embedded", folder, "model")
    assert store.clear("1.0") == 300
    assert store.clear("1") == 0
    assert [each.version for each in store.stats()] == ["1.0:node", "10"]
    assert len(cache.get([0, 1, 2]).place) == 3
    assert store.clear(None) == 23
    assert store.stats() == []
    store.close()
    _fill(cache, 0, 10)
    assert len(cache.get(range(10)).place) == 10


def test_many_entries_are_counted_once(open_it: _OpenCache, folder: Path) -> None:
    cache = open_it(max_bytes=32 << 20)
    _fill(cache, 0, 9000)
    (stats,) = _stats(folder)
    assert (stats.num_entries, stats.oldest_us) == (9000, 1_700_000_000_000_000)


def test_opening_by_location(folder: Path) -> None:
    settings = {"prefix": "model", "version": "1.0", "tag": 1, "dim": DIM, "max_bytes": 1 << 20}
    cache = open_cache("embedded", folder, timeout_ms=5, ttl_s=60, **settings)
    cache.put([1], outputs_of([1]))
    cache.flush()
    assert len(cache.get([1]).place) == 1
    cache.close()
    with pytest.raises(LogUnavailable, match="a cache at http:// is not known"):
        open_cache("http://secret", folder, timeout_ms=5, ttl_s=60, **settings)


def _stats(folder: Path) -> list:
    store = LmdbStore.open(folder)
    try:
        return store.stats()
    finally:
        store.close()
