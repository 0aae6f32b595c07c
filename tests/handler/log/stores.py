"""The stores that a log may lie in, as the tests use them: opened, and tampered with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import redis

from handler.log.embedded import LmdbLog
from handler.log.protocol import Log, Record
from handler.log.stream import RedisLog


class Store(Protocol):
    """Where logs of several graphs may be."""

    kind: str
    where: str

    def open(self, graph_id: str, **settings: Any) -> Log: ...

    def entries(self, graph_id: str) -> dict[int, bytes]:
        """What is stored of each record, by last_seq."""
        ...

    def replace(self, graph_id: str, entries: Mapping[int, bytes]) -> None:
        """Store something else."""
        ...


@dataclass(frozen=True)
class LmdbStore:
    where: str
    kind: str = "lmdb"

    def open(self, graph_id: str, **settings: Any) -> LmdbLog:
        return LmdbLog.open(Path(self.where) / graph_id, graph_id, **settings)

    def entries(self, graph_id: str) -> dict[int, bytes]:
        log = self.open(graph_id)
        with log._begun() as txn:
            found = {int.from_bytes(key, "big"): value for key, value in txn.cursor(log._environment.records)}
        log.close()
        return found

    def replace(self, graph_id: str, entries: Mapping[int, bytes]) -> None:
        log = self.open(graph_id)
        with log._begun(write=True) as txn:
            txn.drop(log._environment.records, delete=False)
            for seq, value in entries.items():
                txn.put(seq.to_bytes(8, "big"), value, db=log._environment.records)
        log.close()


@dataclass(frozen=True)
class RedisStore:
    where: str
    kind: str = "redis"

    def open(self, graph_id: str, **settings: Any) -> RedisLog:
        return RedisLog.open(self.where, graph_id, **settings)

    def entries(self, graph_id: str) -> dict[int, bytes]:
        with redis.Redis.from_url(self.where, protocol=2) as client:
            found: Any = client.xrange(f"hopserve:{{{graph_id}}}:records")
        return {int(entry_id.partition(b"-")[0]): fields[b"record"] for entry_id, fields in found}

    def replace(self, graph_id: str, entries: Mapping[int, bytes]) -> None:
        stream = f"hopserve:{{{graph_id}}}:records"
        with redis.Redis.from_url(self.where, protocol=2) as client:
            client.delete(stream)
            for seq, value in entries.items():
                client.xadd(stream, {"record": value}, id=f"{seq}-0")


def store_of(kind: str, where: str) -> Store:
    return {"lmdb": LmdbStore, "redis": RedisStore}[kind](where)


def records_of(*sizes: int, after_seq: int = 0, data: bytes = b"data") -> list[Record]:
    """Records of so many mutations each, the first of which follows `after_seq`."""
    records = []
    for size in sizes:
        records.append(Record(after_seq + 1, after_seq + size, b"%s %d" % (data, after_seq)))
        after_seq += size
    return records


def read_all(log: Log) -> list[Record]:
    found: list[Record] = []
    while more := log.read(found[-1].last_seq if found else 0):
        found += more
    return found
