"""What every log promises, whatever stores it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handler.errors import LogCorrupt, LogGap, LogMoved
from handler.log.protocol import Log, Mark, Record
from tests.handler.log.appending import append_one
from tests.handler.log.stores import Store, read_all, records_of

_ROOT = Path(__file__).parents[3]


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.last_seq(), log.first_seq(), log.read(0), log.find("a")) == (0, 1, [], None)


def test_what_was_appended_is_read_in_order(log: Log) -> None:
    first, second = records_of(2, 1), records_of(4, after_seq=3)
    log.append(first, [], 0)
    log.append(second, [], 3)
    assert (log.last_seq(), log.first_seq()) == (7, 1)
    assert log.read(0) == [*first, *second]
    assert log.read(2) == [first[1], *second]
    assert log.read(7) == []


def test_data_may_be_anything(log: Log) -> None:
    records = [Record(1, 1, b""), Record(2, 2, bytes(range(256)) * 300), Record(3, 3, b"\0")]
    log.append(records, [], 0)
    assert log.read(0) == records


def test_reading_stops_at_max_bytes_but_gives_one_record(log: Log) -> None:
    records = [Record(seq, seq, bytes(100)) for seq in range(1, 41)]
    log.append(records, [], 0)
    assert log.read(0, max_bytes=1) == records[:1]
    assert log.read(3, max_bytes=200) == records[3:5]
    assert log.read(3, max_bytes=299) == records[3:5]
    assert log.read(0, max_bytes=3500) == records[:35]


def test_who_comes_late_is_refused_and_nothing_is_done(log: Log) -> None:
    log.append(records_of(2), [], 0)
    with pytest.raises(LogMoved, match="mutation 0 was to be the latest, but 2 is"):
        log.append(records_of(5, data=b"late"), [Mark("late", "d", 1, 5)], 0)
    assert log.read(0) == records_of(2)
    assert log.find("late") is None


@pytest.mark.parametrize("records", [[Record(2, 2, b"")], [Record(1, 0, b"")], records_of(2) * 2])
def test_records_that_do_not_follow_each_other_are_refused(log: Log, records: list[Record]) -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        log.append(records, [], 0)
    assert log.last_seq() == 0


@pytest.mark.parametrize("after_seq", [1, 4, 99])
def test_only_the_end_of_a_record_can_be_read_after(log: Log, after_seq: int) -> None:
    log.append(records_of(2, 3), [], 0)
    with pytest.raises(LogGap):
        log.read(after_seq)


def test_requests_are_known_by_their_id(log: Log) -> None:
    marks = [Mark("a", "1f", 1, 2), Mark("ü" * 400, "2f", 3, 3)]
    log.append(records_of(2, 1), marks, 0)
    assert [log.find(mark.request_id) for mark in marks] == marks
    assert log.find("b") is None


def test_requests_are_forgotten_after_their_time(store: Store, graph_id: str) -> None:
    log = store.open(graph_id, remember_s=1)
    log.append(records_of(1), [Mark("a", "1f", 1, 1)], 0)
    time.sleep(1.1)
    assert log.find("a") is None
    log.append(records_of(1, after_seq=1), [Mark("b", "1f", 2, 2)], 1)
    log.truncate(0)
    assert log.find("b") is not None
    log.close()


def test_a_log_is_there_when_it_is_opened_again(store: Store, graph_id: str) -> None:
    log = store.open(graph_id)
    log.append(records_of(2), [Mark("a", "1f", 1, 2)], 0)
    log.close()
    log = store.open(graph_id)
    assert (log.last_seq(), log.read(0)) == (2, records_of(2))
    assert log.find("a") == Mark("a", "1f", 1, 2)
    log.close()


def test_several_objects_see_the_same_log(store: Store, graph_id: str, log: Log) -> None:
    other = store.open(graph_id)
    other.append(records_of(1), [], 0)
    log.append(records_of(1, after_seq=1), [], 1)
    other.close()
    assert log.last_seq() == 2


def test_truncating_drops_whole_records_and_no_number_comes_again(log: Log) -> None:
    log.append(records_of(2, 2, 2), [], 0)
    assert log.truncate(3) == 3
    assert log.read(2) == records_of(2, 2, after_seq=2)
    with pytest.raises(LogGap, match="after mutation 0 the log goes on with 3"):
        log.read(0)
    assert log.truncate(99) == 7
    assert (log.first_seq(), log.last_seq(), log.read(6)) == (7, 6, [])
    with pytest.raises(LogGap, match="after mutation 4 the log goes on with 7"):
        log.read(4)
    log.append(records_of(1, after_seq=6), [], 6)
    assert log.read(6) == records_of(1, after_seq=6)


def test_what_a_reader_has_yet_to_read_is_kept(store: Store, graph_id: str, log: Log) -> None:
    log.append(records_of(1, 1, 1, 1), [], 0)
    other = store.open(graph_id)
    other.hold("slow/../reader", 1)
    log.hold("fast", 3)
    assert log.truncate(4) == 2
    other.hold("slow/../reader", 2)
    assert log.truncate(4) == 3
    other.release("slow/../reader")
    assert log.truncate(4) == 4
    log.release("fast")
    log.release("unknown")
    assert log.truncate(4) == 5
    other.close()


def test_a_damaged_record_is_not_read(store: Store, graph_id: str) -> None:
    log = store.open(graph_id)
    log.append(records_of(1, 1, 1), [], 0)
    log.close()
    whole = store.entries(graph_id)
    value = whole[2]
    for place in range(8, len(value)):
        store.replace(graph_id, {**whole, 2: value[:place] + bytes([value[place] ^ 4]) + value[place + 1 :]})
        log = store.open(graph_id)
        with pytest.raises(LogCorrupt, match="mutation 2 has a wrong checksum"):
            log.read(0)
        assert log.read(2) == records_of(1, after_seq=2)
        log.close()


def test_a_record_in_a_wrong_place_is_not_read(store: Store, graph_id: str, log: Log) -> None:
    log.append(records_of(1, 1, 1), [], 0)
    entries = store.entries(graph_id)
    store.replace(graph_id, {**entries, 2: entries[1]})
    with pytest.raises(LogCorrupt, match="mutations 1 to 1 are where mutation 2 should end"):
        log.read(0)
    store.replace(graph_id, {**entries, 2: entries[2][:9]})
    with pytest.raises(LogCorrupt, match="ends with mutation 2 is cut off"):
        log.read(0)


def test_a_missing_record_is_a_gap(store: Store, graph_id: str, log: Log) -> None:
    log.append(records_of(1, 2, 1), [], 0)
    entries = store.entries(graph_id)
    store.replace(graph_id, {seq: entries[seq] for seq in (1, 4)})
    with pytest.raises(LogGap, match="after mutation 1 the log goes on with 4"):
        log.read(0)
    store.replace(graph_id, {seq: entries[seq] for seq in (1, 3)})
    with pytest.raises(LogGap, match="after mutation 3 the log goes on with 5"):
        log.read(3)


def test_another_history_does_not_pass_for_the_one_that_was_seen(
    store: Store, graph_id: str, log: Log
) -> None:
    log.append(records_of(1), [], 0)
    other_id = f"{graph_id}-other"
    other = store.open(other_id)
    other.append(records_of(1, 1), [], 0)
    other.close()
    log.append(records_of(1, after_seq=1), [], 1)
    store.replace(graph_id, store.entries(other_id))
    with pytest.raises(LogCorrupt, match="mutation 1 is another than the one that had been seen"):
        log.read(1)


def test_threads_share_one_object(log: Log) -> None:
    def append(name: str) -> None:
        for number in range(8):
            append_one(log, name, number)

    threads = [threading.Thread(target=append, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _check_complete(log, {f"{name} {number}" for name in "abcd" for number in range(8)})


def test_processes_append_at_once_and_no_number_is_lost_or_given_twice(
    store: Store, graph_id: str, log: Log
) -> None:
    command = [sys.executable, "-m", "tests.handler.log.appending", store.kind, store.where, graph_id]
    processes = [
        subprocess.Popen([*command, name, "12"], cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    printed = "".join(process.communicate(timeout=60)[0] for process in processes)
    assert not any(process.returncode for process in processes)
    _check_complete(log, {f"{name} {number}" for name in "abc" for number in range(12)})
    acknowledged = {
        (f"{name} {number}", int(first), int(last))
        for name, number, first, last in map(str.split, printed.splitlines())
    }
    assert acknowledged == {(_name(record), record.first_seq, record.last_seq) for record in read_all(log)}


def _check_complete(log: Log, names: set[str]) -> None:
    records = read_all(log)
    assert sorted(map(_name, records)) == sorted(names)
    assert [record.first_seq for record in records] == [
        1,
        *(record.last_seq + 1 for record in records[:-1]),
    ]


def _name(record: Record) -> str:
    return record.data.rstrip(b".").decode().strip()


_steps = st.one_of(
    st.tuples(st.just("append"), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(0, 40), st.integers(1, 60)),
    st.tuples(st.just("hold"), st.sampled_from("ab"), st.integers(0, 20)),
    st.tuples(st.just("release"), st.sampled_from("ab")),
    st.tuples(st.just("truncate"), st.integers(0, 40)),
    st.tuples(st.just("reopen")),
)
_examples = itertools.count()


class _Model:
    """A log as a plain list."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.num_dropped = 0
        self.held: dict[str, int] = {}

    @property
    def last_seq(self) -> int:
        return self.records[-1].last_seq if self.records else 0

    @property
    def first_seq(self) -> int:
        left = self.records[self.num_dropped :]
        return left[0].first_seq if left else self.last_seq + 1

    def read(self, after_seq: int, max_bytes: int) -> list[Record] | None:
        """What is to be read, None for a gap."""
        ends = {0: 0} | {record.last_seq: place + 1 for place, record in enumerate(self.records)}
        place = ends.get(after_seq, -1)
        if place < self.num_dropped:
            return None
        sizes = itertools.accumulate(len(record.data) for record in self.records[place:])
        num = max(1, sum(size <= max_bytes for size in sizes))
        return self.records[place : place + num]

    def truncate(self, through_seq: int) -> None:
        limit = min([through_seq, *self.held.values()])
        self.num_dropped = max(self.num_dropped, sum(record.last_seq <= limit for record in self.records))


@settings(max_examples=25)
@given(steps=st.lists(_steps, max_size=20))
def test_a_log_is_a_list(store: Store, steps: list[tuple]) -> None:
    graph_id, model = f"example-{next(_examples)}", _Model()
    log = store.open(graph_id)
    for verb, *what in steps:
        if verb == "append":
            _append(log, model, *what)
        elif verb == "read":
            _read(log, model, *what)
        elif verb == "hold":
            log.hold(*what)
            model.held[what[0]] = what[1]
        elif verb == "release":
            log.release(*what)
            model.held.pop(what[0], None)
        elif verb == "truncate":
            model.truncate(*what)
            assert log.truncate(*what) == model.first_seq
        else:
            for reader in tuple(model.held):
                log.release(reader)
            model.held.clear()
            log.close()
            log = store.open(graph_id)
        assert (log.first_seq(), log.last_seq()) == (model.first_seq, model.last_seq)
    log.close()


def _append(log: Log, model: _Model, sizes: list[int], late: int) -> None:
    after_seq = max(0, model.last_seq - late)
    records = records_of(*sizes, after_seq=after_seq)
    if after_seq != model.last_seq:
        with pytest.raises(LogMoved):
            log.append(records, [], after_seq)
    else:
        log.append(records, [], after_seq)
        model.records += records


def _read(log: Log, model: _Model, after_seq: int, max_bytes: int) -> None:
    expected = model.read(after_seq, max_bytes)
    if expected is None:
        with pytest.raises(LogGap):
            log.read(after_seq, max_bytes)
    else:
        assert log.read(after_seq, max_bytes) == expected
