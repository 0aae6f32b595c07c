"""The form in which a record lies in a store, whichever it is: sealed, and tied to the one before it."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from handler.errors import LogCorrupt
from handler.log.protocol import Record

TAG_BYTES = 8
NO_TAG = bytes(TAG_BYTES)
# tag of the record before, XXH3-64 of all that follows it, first_seq, last_seq, tag
_HEADER = struct.Struct(">8s8sQQ8s")
HEADER_BYTES = _HEADER.size
_SUMMED_FROM = 16


@dataclass(frozen=True)
class Tail:
    """Where a log ends.

    Args:
        seq: the latest mutation ever appended, 0 before the first.
        tag: of the record that it came in: random, so that another mutation of the same number shows.
    """

    seq: int
    tag: bytes


@dataclass(frozen=True)
class Linked:
    """A record as it was stored.

    Args:
        previous: the tag of the record before it.
        tag: its own.
    """

    record: Record
    previous: bytes
    tag: bytes


def new_tag() -> bytes:
    """A tag that no other record has."""
    return secrets.token_bytes(TAG_BYTES)


def seal(record: Record, tag: bytes) -> bytes:
    """All of a record but the tag of the one before, which is put in front of it by whoever knows it."""
    covered = struct.pack(">QQ8s", record.first_seq, record.last_seq, tag) + record.data
    return xxhash.xxh3_64_digest(covered) + covered


def unseal(value: bytes | memoryview, last_seq: int, where: str) -> Linked:
    """The record that was stored under `last_seq`.

    Raises:
        LogCorrupt: it is not what was sealed.
    """
    if len(value) < HEADER_BYTES:
        raise LogCorrupt(where, f"the record that ends with mutation {last_seq} is cut off")
    previous, checksum, first_seq, sealed_seq, tag = _HEADER.unpack_from(value)
    if xxhash.xxh3_64_digest(value[_SUMMED_FROM:]) != checksum:
        raise LogCorrupt(where, f"the record that ends with mutation {last_seq} has a wrong checksum")
    if sealed_seq != last_seq or not 1 <= first_seq <= last_seq:
        raise LogCorrupt(
            where, f"mutations {first_seq} to {sealed_seq} are where mutation {last_seq} should end"
        )
    return Linked(Record(first_seq, last_seq, bytes(value[HEADER_BYTES:])), previous, tag)


def claimed_first_seq(value: bytes | memoryview) -> int:
    """The first mutation of a record, unchecked; 0 if it is too short to say."""
    return int(_HEADER.unpack_from(value)[2]) if len(value) >= HEADER_BYTES else 0


def tails_after(records: Sequence[Record], after_seq: int) -> Iterator[Tail]:
    """Where the log will end after each of some records that are to be appended.

    Raises:
        ValueError: they do not follow each other.
    """
    for record in records:
        if not after_seq + 1 == record.first_seq <= record.last_seq:
            raise ValueError(
                f"a record of mutations {record.first_seq} to {record.last_seq} cannot follow {after_seq}"
            )
        after_seq = record.last_seq
        yield Tail(after_seq, new_tag())
