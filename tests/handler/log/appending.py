"""A program that appends to a log until it is killed, and prints what was acknowledged."""

from __future__ import annotations

import random
import sys
import time

from handler.errors import LogMoved, LogUnavailable
from handler.log.protocol import Log, Mark, Record
from tests.handler.log.stores import store_of


def append_one(log: Log, name: str, number: int) -> Record:
    """Append one record of one to three mutations, however often it takes."""
    while True:
        after_seq = log.last_seq()
        last_seq = after_seq + random.randint(1, 3)
        record = Record(after_seq + 1, last_seq, f"{name} {number} ".encode().ljust(3000, b"."))
        mark = Mark(f"{name}-{number}", "digest", record.first_seq, last_seq)
        try:
            while True:
                try:
                    log.append([record], [mark], after_seq)
                except LogUnavailable:
                    time.sleep(0.02)
                else:
                    return record
        except LogMoved:
            continue


def main() -> None:
    kind, where, graph_id, name, limit = sys.argv[1:]
    log = store_of(kind, where).open(graph_id)
    for number in range(int(limit)):
        try:
            record = append_one(log, name, number)
        except LogUnavailable:
            # last_seq() met a server that is away.
            time.sleep(0.02)
            continue
        sys.stdout.write(f"{name} {number} {record.first_seq} {record.last_seq}\n")
        sys.stdout.flush()
    log.close()


if __name__ == "__main__":
    main()
