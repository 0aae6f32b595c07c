"""The thread that writes behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from handler.cache.touches import Touches
from handler.cache.writing import Put, WriteBehind
from tests.handler.cache.samples import outputs_of


class _Store:
    """Remembers what is written, once it is let; fails if told to."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.entered = threading.Event()
        self.fails = False
        self.batches: list[list[int | str]] = []
        self.failures: list[str] = []

    def write(self, puts: list[Put]) -> None:
        self.entered.set()
        self.may_write.wait(10)
        if self.fails:
            raise OSError("broken")
        self.batches.append([node_id for put in puts for node_id in put.node_ids])

    @property
    def written(self) -> list[int | str]:
        return [node_id for batch in self.batches for node_id in batch]


@pytest.fixture
def store() -> _Store:
    return _Store()


@pytest.fixture
def writer(store: _Store) -> Iterator[WriteBehind]:
    opened = WriteBehind(store.write, store.failures.append, max_rows=10)
    yield opened
    store.may_write.set()
    assert opened.close()


def _put(*node_ids: int) -> Put:
    return Put(node_ids, outputs_of(node_ids))


def test_all_is_written_in_order(store: _Store, writer: WriteBehind) -> None:
    for node_id in range(5):
        writer.put(_put(node_id))
    writer.flush()
    assert store.written == [0, 1, 2, 3, 4]
    assert store.failures == []


def test_it_is_written_without_asking(store: _Store, writer: WriteBehind) -> None:
    writer.put(_put(1))
    deadline = time.monotonic() + 10
    while not store.written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.written == [1]


def test_too_much_is_dropped_and_counted(store: _Store, writer: WriteBehind) -> None:
    store.may_write.clear()
    writer.put(_put(0))
    assert store.entered.wait(10)
    writer.put(_put(*range(1, 10)))
    # What is being written takes room too.
    writer.put(_put(10))
    assert store.failures == ["full"]
    store.may_write.set()
    writer.flush()
    writer.put(_put(11))
    writer.flush()
    assert store.written == [*range(10), 11]


def test_a_failure_is_told_once_counted_and_survived(
    store: _Store, writer: WriteBehind, caplog: pytest.LogCaptureFixture
) -> None:
    store.fails = True
    for node_id in range(3):
        writer.put(_put(node_id))
        writer.flush()
    store.fails = False
    writer.put(_put(3))
    writer.flush()
    assert store.written == [3]
    assert store.failures == ["unavailable"] * 3
    assert len(caplog.records) == 1


def test_closing_writes_what_is_left(store: _Store) -> None:
    writer = WriteBehind(store.write, store.failures.append)
    writer.put(_put(1))
    assert writer.close()
    assert store.written == [1]
    writer.put(_put(2))
    writer.flush()
    assert writer.close()
    assert (store.written, store.failures) == ([1], ["full"])


def test_idle_rounds(store: _Store) -> None:
    writer = WriteBehind(store.write, store.failures.append, idle_s=0.01)
    assert store.entered.wait(10)
    assert writer.close()


def test_a_touch_is_told_once_in_a_while() -> None:
    touches = Touches(1000)
    touches.note({b"a", b"b"})
    assert touches.take().keys() == {b"a", b"b"}
    touches.note({b"b", b"c"})
    assert touches.take().keys() == {b"c"}
    assert not touches.take()


def test_each_touch_is_told_without_a_while() -> None:
    touches = Touches(0)
    for _ in range(2):
        touches.note({b"a"})
        assert touches.take().keys() == {b"a"}
