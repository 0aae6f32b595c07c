"""Cuts a log in LMDB back to what of it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdb import verify

from handler.errors import LogCorrupt
from handler.log.embedded import LmdbLog, record_key
from handler.log.facts import put_tail, read_tail
from handler.log.record import TAG_BYTES, Tail, claimed_first_seq, unseal


@dataclass(frozen=True)
class Repaired:
    """What a repair left, and what it cut off.

    Args:
        num_records: those that are left.
        cut_from_seq, cut_through_seq: the mutations that are lost; None if none is.
    """

    num_records: int
    cut_from_seq: int | None
    cut_through_seq: int | None


def repair(folder: Path, graph_id: str) -> Repaired:
    """Cut off the first record that is damaged or missing, and all that follow; forget their requests.

    Nobody else may have the log open. The numbers of lost mutations are given out again: whoever has
    applied one, in a worker or in a snapshot with a `seq` beyond the cut, must begin anew with a snapshot
    from before it.

    Raises:
        LogCorrupt: LMDB's own structure is damaged, or the file too short; nothing was changed.
    """
    log = LmdbLog.open(folder, graph_id)
    try:
        if problems := verify.verify(str(folder)):
            raise LogCorrupt(
                str(folder),
                f"cannot be repaired, because LMDB's own structure is damaged ({problems[0]}): restore a"
                " copy, or begin a new log with a snapshot that is complete up to its last mutation",
            )
        with log._begun(write=True) as txn:
            return _cut(log, txn)
    finally:
        log.close()


@dataclass(frozen=True)
class _Whole:
    """The records from the first on that are whole: how many, and where they end; None if that is unknown."""

    num_records: int
    end: Tail | None
    is_all: bool


def _cut(log: LmdbLog, txn: Any) -> Repaired:
    whole, tail = _walk(log, txn), _stored_tail(log, txn)
    end = whole.end or tail
    if end is None:
        raise LogCorrupt(log._where, "cannot be repaired: it holds no record, and not where it ended")
    last_seq = max(end.seq, tail.seq if tail else 0, _last_key(log, txn))
    if whole.is_all and end == tail:
        return Repaired(whole.num_records, None, None)
    _drop_after(log, txn, end.seq)
    put_tail(log._environment, txn, end)
    if last_seq == end.seq:
        return Repaired(whole.num_records, None, None)
    return Repaired(whole.num_records, end.seq + 1, last_seq)


def _walk(log: LmdbLog, txn: Any) -> _Whole:
    num_records, end = 0, None
    for key, value in txn.cursor(db=log._environment.records):
        last_seq = int.from_bytes(key, "big")
        try:
            linked = unseal(value, last_seq, log._where)
        except LogCorrupt:
            return _Whole(num_records, end or _before(value, last_seq), is_all=False)
        if end is not None and (linked.record.first_seq != end.seq + 1 or linked.previous != end.tag):
            return _Whole(num_records, end, is_all=False)
        num_records, end = num_records + 1, Tail(last_seq, linked.tag)
    return _Whole(num_records, end, is_all=True)


def _before(value: bytes, last_seq: int) -> Tail:
    # A damaged record with none before it: what it says of itself is all there is.
    first_seq = claimed_first_seq(value)
    return Tail((first_seq if 1 <= first_seq <= last_seq else last_seq) - 1, value[:TAG_BYTES])


def _stored_tail(log: LmdbLog, txn: Any) -> Tail | None:
    try:
        return read_tail(log._environment, txn)
    except LogCorrupt:
        return None


def _last_key(log: LmdbLog, txn: Any) -> int:
    cursor = txn.cursor(db=log._environment.records)
    return int.from_bytes(cursor.key(), "big") if cursor.last() else 0


def _drop_after(log: LmdbLog, txn: Any, seq: int) -> None:
    records = txn.cursor(db=log._environment.records)
    while records.set_range(record_key(seq + 1)):
        records.delete()
    marks = txn.cursor(db=log._environment.marks)
    for key, value in tuple(marks):
        if log._read_mark(value).last_seq > seq:
            txn.delete(key, db=log._environment.marks)
