from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from handler.errors import LogCorrupt
from handler.log.embedded import LmdbLog
from handler.log.protocol import Mark
from handler.log.repair import Repaired, repair
from tests.handler.log.stores import LmdbStore, read_all, records_of

Entries = Mapping[int, bytes]


@pytest.fixture
def store(tmp_path: Path) -> LmdbStore:
    """A log of four records, which end with mutations 2, 3, 5 and 6."""
    store = LmdbStore(str(tmp_path))
    log = store.open("graph")
    marks = [Mark(str(seq), "1f", seq, seq) for seq in (2, 3, 5, 6)]
    log.append(records_of(2, 1, 2, 1), marks, 0)
    log.close()
    return store


def _damaged(entries: Entries, seq: int) -> Entries:
    return {**entries, seq: entries[seq][:-1] + b"!"}


@pytest.mark.parametrize(
    ("tamper", "repaired", "num_left"),
    [
        (lambda entries: entries, Repaired(4, None, None), 4),
        (lambda entries: _damaged(entries, 5), Repaired(2, 4, 6), 2),
        (lambda entries: _damaged(entries, 6), Repaired(3, 6, 6), 3),
        (lambda entries: _damaged(entries, 2), Repaired(0, 1, 6), 0),
        (lambda entries: {**entries, 2: b""}, Repaired(0, 2, 6), 0),
        (lambda entries: {seq: entries[seq] for seq in (2, 3, 6)}, Repaired(2, 4, 6), 2),
        (lambda entries: {seq: entries[seq] for seq in (2, 3)}, Repaired(2, 4, 6), 2),
        (lambda entries: {seq: entries[seq] for seq in (5, 6)}, Repaired(2, None, None), 2),
        (lambda entries: {}, Repaired(0, None, None), 0),
    ],
    ids=["whole", "middle", "last", "first", "first is empty", "gap", "end is missing", "truncated", "empty"],
)
def test_what_is_damaged_is_cut_off(
    store: LmdbStore, tamper: Callable[[Entries], Entries], repaired: Repaired, num_left: int
) -> None:
    entries = tamper(store.entries("graph"))
    store.replace("graph", entries)
    assert repair(Path(store.where) / "graph", "graph") == repaired
    log = store.open("graph")
    last_seq = (repaired.cut_from_seq or 7) - 1
    assert log.last_seq() == last_seq
    assert len(log.read(log.first_seq() - 1)) == num_left
    # Requests whose mutations are lost may come again.
    assert [seq for seq in (2, 3, 5, 6) if log.find(str(seq))] == [
        seq for seq in (2, 3, 5, 6) if seq <= last_seq
    ]
    log.append(records_of(1, after_seq=last_seq), [], last_seq)
    assert repair(Path(store.where) / "graph", "graph") == Repaired(num_left + 1, None, None)
    log.close()


def test_a_record_of_another_history_is_cut_off(store: LmdbStore) -> None:
    other = store.open("other")
    other.append(records_of(3, 2), [], 0)
    other.close()
    store.replace("graph", {**store.entries("graph"), 5: store.entries("other")[5]})
    assert repair(Path(store.where) / "graph", "graph") == Repaired(2, 4, 6)


def test_where_the_log_ends_is_found_again(store: LmdbStore) -> None:
    log = store.open("graph")
    with log._begun(write=True) as txn:
        txn.put(b"tail", bytes(24), db=log._environment.facts)
    assert repair(Path(store.where) / "graph", "graph") == Repaired(4, None, None)
    assert read_all(log) == records_of(2, 1, 2, 1)
    log.append(records_of(1, after_seq=6), [], 6)
    log.close()


def test_a_log_of_which_nothing_is_left_says_so(store: LmdbStore) -> None:
    store.replace("graph", {})
    log = store.open("graph")
    with log._begun(write=True) as txn:
        txn.put(b"tail", bytes(24), db=log._environment.facts)
    log.close()
    with pytest.raises(LogCorrupt, match="cannot be repaired: it holds no record"):
        repair(Path(store.where) / "graph", "graph")


def test_a_file_that_lost_its_end_cannot_be_repaired(tmp_path: Path) -> None:
    log = LmdbLog.open(tmp_path / "log", "graph")
    for seq in range(20):
        log.append(records_of(1, after_seq=seq, data=bytes(5000)), [], seq)
    log.close()
    os.truncate(tmp_path / "log" / "data.mdb", 50_000)
    with pytest.raises(LogCorrupt, match="bytes are missing .* restore a copy, or begin a new log"):
        repair(tmp_path / "log", "graph")


def test_a_damaged_structure_is_not_touched(tmp_path: Path) -> None:
    log = LmdbLog.open(tmp_path / "log", "graph")
    for seq in range(200):
        log.append(records_of(1, after_seq=seq, data=bytes(1000)), [], seq)
    log.close()
    data = (tmp_path / "log" / "data.mdb").read_bytes()
    # The pages' own numbers, from some page on: LMDB itself would not notice.
    broken = bytearray(data)
    for page in range(20, 30):
        broken[page * 4096] ^= 0xFF
    (tmp_path / "log" / "data.mdb").write_bytes(broken)
    with pytest.raises(LogCorrupt, match="LMDB's own structure is damaged"):
        repair(tmp_path / "log", "graph")
    assert (tmp_path / "log" / "data.mdb").read_bytes() == broken
