"""What is LMDB's alone: files, their limits and damages, and the processes that use them."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handler.errors import LogCorrupt, LogUnavailable
from handler.log.embedded import LmdbLog
from handler.log.protocol import Mark, Record
from tests.handler.log.processes import kill, run_code, start_appending, start_code
from tests.handler.log.stores import read_all, records_of

_HOLD = """
    import sys, time
    from pathlib import Path
    from handler.log.embedded import LmdbLog
    log = LmdbLog.open(Path(sys.argv[1]), "graph")
    log.hold("reader", 1)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(folder: Path) -> Iterator[LmdbLog]:
    opened = LmdbLog.open(folder, "graph")
    yield opened
    opened.close()


def test_another_graphs_log_is_refused(folder: Path, log: LmdbLog) -> None:
    with pytest.raises(LogCorrupt, match='"graph_id":"graph"}, not .*"graph_id":"other"'):
        LmdbLog.open(folder, "other")
    assert log.last_seq() == 0


def test_closing_one_object_leaves_the_others(folder: Path, log: LmdbLog) -> None:
    other = LmdbLog.open(folder / ".." / "log", "graph")
    other.close()
    other.close()
    assert log.last_seq() == 0
    with pytest.raises(LogUnavailable, match="was closed"):
        other.last_seq()


def test_for_reading_only(folder: Path, log: LmdbLog) -> None:
    log.append(records_of(1), [], 0)
    log.close()
    reader = LmdbLog.open(folder, "graph", writable=False)
    assert reader.read(0) == records_of(1)
    with pytest.raises(LogUnavailable, match="for reading only"):
        reader.append(records_of(1, after_seq=1), [], 1)
    with pytest.raises(LogUnavailable, match="for reading only"):
        LmdbLog.open(folder, "graph")
    reader.close()


def test_a_folder_without_a_log_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="No such file"):
        LmdbLog.open(tmp_path / "absent", "graph", writable=False)
    with pytest.raises(LogUnavailable):
        LmdbLog.open(tmp_path, "graph", writable=False)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogUnavailable, match="file/log: Not a directory"):
        LmdbLog.open(tmp_path / "file" / "log", "graph")


def test_a_file_that_is_no_log(folder: Path) -> None:
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(LogCorrupt, match="not an LMDB data file"):
        LmdbLog.open(folder, "graph")


def test_a_full_map_refuses_whole_appends_and_recovers(folder: Path) -> None:
    log = LmdbLog.open(folder, "graph", map_bytes=1 << 19)
    with pytest.raises(LogUnavailable, match="MDB_MAP_FULL"):
        _append_until_it_fails(log)
    after_seq = log.last_seq()
    assert read_all(log)[-1].last_seq == after_seq
    log.truncate(after_seq - 3)
    log.append(records_of(1, after_seq=after_seq), [], after_seq)
    log.close()


def test_a_full_disk_refuses_whole_appends_and_recovers(folder: Path) -> None:
    printed = run_code(
        """
        import resource, sys
        from pathlib import Path
        from handler.errors import LogUnavailable
        from handler.log.embedded import LmdbLog
        from tests.handler.log.stores import records_of
        log = LmdbLog.open(Path(sys.argv[1]), "graph")
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        after_seq = 0
        try:
            while True:
                log.append(records_of(2, 1, after_seq=after_seq, data=bytes(5000)), [], after_seq)
                after_seq += 3
        except LogUnavailable as error:
            print(str(error).replace(chr(10), "//"))
        assert log.last_seq() == after_seq
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append(records_of(1, after_seq=after_seq), [], after_seq)
        print(after_seq + 1)
        """,
        folder,
    )
    message, last_seq = printed.splitlines()
    assert re.search("File too large|as when the disk is full", message)
    log = LmdbLog.open(folder, "graph")
    assert log.last_seq() == read_all(log)[-1].last_seq == int(last_seq)
    log.close()


def test_a_file_that_lost_its_end_is_refused(folder: Path, log: LmdbLog) -> None:
    for seq in range(20):
        log.append(records_of(1, after_seq=seq, data=bytes(5000)), [], seq)
    log.close()
    os.truncate(folder / "data.mdb", 50_000)
    with pytest.raises(LogCorrupt, match="data.mdb: .* bytes are missing at its end"):
        LmdbLog.open(folder, "graph")


def test_a_file_that_lost_only_free_pages_is_opened(folder: Path, log: LmdbLog) -> None:
    log.append(records_of(1, data=bytes(500_000)), [], 0)
    log.truncate(1)
    # The pages that are in use move to where there is room before them.
    for seq in range(1, 5):
        log.append(records_of(1, after_seq=seq), [], seq)
    log.close()
    os.truncate(folder / "data.mdb", (folder / "data.mdb").stat().st_size - 4096)
    log = LmdbLog.open(folder, "graph")
    log.append(records_of(1, after_seq=5, data=bytes(900_000)), [], 5)
    assert log.read(5) == records_of(1, after_seq=5, data=bytes(900_000))
    log.close()


def test_where_it_ends_has_a_checksum(log: LmdbLog) -> None:
    log.append(records_of(1), [], 0)
    with log._begun(write=True) as txn:
        txn.put(b"tail", bytes(24), db=log._environment.facts)
    with pytest.raises(LogCorrupt, match="where the log ends"):
        log.last_seq()


def test_records_beyond_the_end_are_not_appended_to(log: LmdbLog) -> None:
    with log._begun(write=True) as txn:
        txn.put((9).to_bytes(8, "big"), b"", db=log._environment.records)
    with pytest.raises(LogCorrupt, match="beyond 0"):
        log.append(records_of(1), [Mark("a", "1f", 1, 1)], 0)
    assert log.find("a") is None


def test_a_dead_reader_does_not_count(folder: Path, log: LmdbLog) -> None:
    log.append(records_of(1, 1, 1), [], 0)
    process = start_code(_HOLD, folder)
    assert log.truncate(3) == 2
    kill(process)
    assert log.truncate(3) == 4
    assert [path.name for path in (folder / "readers").iterdir()] == [".gate"]


def test_closing_lets_go_of_readers(folder: Path, log: LmdbLog) -> None:
    log.append(records_of(1, 1), [], 0)
    other = LmdbLog.open(folder, "graph")
    other.hold("reader", 1)
    other.close()
    assert log.truncate(2) == 3


def test_old_requests_leave_the_store_in_the_order_of_time(folder: Path) -> None:
    log = LmdbLog.open(folder, "graph", remember_s=1)
    log.append(records_of(1, 1), [Mark("a", "1f", 1, 1), Mark("b", "1f", 2, 2)], 0)
    time.sleep(1.1)
    # The same id again: its old time must not take it along.
    log.append(records_of(1, after_seq=2), [Mark("b", "2f", 3, 3)], 2)
    log.truncate(0)
    assert log.find("b") == Mark("b", "2f", 3, 3)
    with log._begun() as txn:
        environment = log._environment
        assert txn.stat(environment.marks)["entries"] == txn.stat(environment.mark_times)["entries"] == 1
    log.close()


def test_much_is_truncated_in_several_steps(log: LmdbLog) -> None:
    log.append(records_of(*[1] * 9000), [], 0)
    assert log.truncate(8999) == 9000
    assert log.read(8999) == records_of(1, after_seq=8999)


def test_a_forked_process_is_told_and_does_not_keep_its_parents_readers(folder: Path) -> None:
    code = """
        import os, sys, time
        from pathlib import Path
        from handler.errors import LogUnavailable
        from handler.log.embedded import LmdbLog
        log = LmdbLog.open(Path(sys.argv[1]), "graph")
        log.append(__import__("tests.handler.log.stores", fromlist=["x"]).records_of(1), [], 0)
        log.hold("reader", 0)
        child = os.fork()
        if not child:
            for use in (log.last_seq, lambda: LmdbLog.open(Path(sys.argv[1]), "graph")):
                try:
                    use()
                except LogUnavailable as error:
                    assert "across a fork" in str(error), error
                    continue
                os._exit(1)
            print("refused", os.getpid(), flush=True)
            time.sleep(60)
            os._exit(0)
        os.waitpid(child, 0)
    """
    process = start_code(code, folder)
    log = LmdbLog.open(folder, "graph")
    assert log.truncate(1) == 1
    # The child goes on, with a copy of every descriptor of its parent's.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    assert log.truncate(1) == 2
    for child in children:
        os.kill(int(child), 9)
    process.communicate()
    log.close()


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for _ in range(10):
        process = start_appending("lmdb", str(tmp_path), "graph")
        acknowledged += _lines_until_killed(process, random.randint(1, 15), random.random() * 0.02)
    log = LmdbLog.open(tmp_path / "graph", "graph")
    _check_each_is_there_once(read_all(log), acknowledged)
    log.close()


def _append_until_it_fails(log: LmdbLog) -> None:
    for after_seq in range(0, 3000, 3):
        log.append(records_of(2, 1, after_seq=after_seq, data=bytes(5000)), [], after_seq)


def _lines_until_killed(process: subprocess.Popen[str], num_lines: int, wait_s: float) -> list[str]:
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(num_lines)]
    time.sleep(wait_s)
    return [*lines, *kill(process)]


def _check_each_is_there_once(records: list[Record], acknowledged: list[str]) -> None:
    by_seq = {record.first_seq: record for record in records}
    assert len(by_seq) == len(records)
    for line in acknowledged:
        name, number, first_seq, last_seq = line.split()
        record = by_seq[int(first_seq)]
        assert record.last_seq == int(last_seq)
        assert record.data.startswith(f"{name} {number} ".encode())
    # One more at most of each process that was killed: it was written, but not yet acknowledged.
    assert len(acknowledged) <= len(records) <= len(acknowledged) + 10
