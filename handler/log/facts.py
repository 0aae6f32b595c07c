"""Whose log an LMDB environment holds, together with where that log ends."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import xxhash

from handler.errors import LogCorrupt, LogUnavailable
from handler.log.databases import LogEnvironment
from handler.log.record import NO_TAG, Tail

FORMAT_VERSION = 1
_IDENTITY, _TAIL = b"log", b"tail"
_TAIL_FORM = struct.Struct(">Q8s")


def identify(environment: LogEnvironment, graph_id: str) -> None:
    """Make a new environment a graph's log; one that is another graph's is `LogCorrupt`."""
    expected = msgspec.json.encode({"format_version": FORMAT_VERSION, "graph_id": graph_id})
    with environment.env.begin(db=environment.facts) as txn:
        found = txn.get(_IDENTITY)
    if found is None:
        found = _claim(environment, expected)
    if found != expected:
        raise LogCorrupt(str(environment.folder), f"holds the log {_shown(found)}, not {_shown(expected)}")


def read_tail(environment: LogEnvironment, txn: Any) -> Tail:
    """Where the log ends."""
    value = txn.get(_TAIL, db=environment.facts)
    if value is None:
        return Tail(0, NO_TAG)
    packed = value[: _TAIL_FORM.size]
    if xxhash.xxh3_64_digest(packed) != value[_TAIL_FORM.size :]:
        raise LogCorrupt(str(environment.folder), "where the log ends is stored with a wrong checksum")
    return Tail(*_TAIL_FORM.unpack(packed))


def put_tail(environment: LogEnvironment, txn: Any, tail: Tail) -> None:
    """Say where the log ends."""
    packed = _TAIL_FORM.pack(tail.seq, tail.tag)
    txn.put(_TAIL, packed + xxhash.xxh3_64_digest(packed), db=environment.facts)


def _claim(environment: LogEnvironment, identity: bytes) -> Any:
    if not environment.writable:
        raise LogUnavailable(f"{environment.folder}: holds no log of mutations")
    with environment.env.begin(db=environment.facts, write=True) as txn:
        # Another process may have been faster.
        txn.put(_IDENTITY, identity, overwrite=False)
        return txn.get(_IDENTITY)


def _shown(identity: bytes) -> str:
    return identity.decode(errors="replace")
