"""Folds the log of a graph into a new snapshot, while workers go on with the old one.

`python -m handler.graph.compaction HOME` does so in a process of its own, and prints one line of JSON: what
came of it, or `null` where there was nothing to fold.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from handler.errors import HopserveError, LogCorrupt, SnapshotError
from handler.graph.files import write_contents
from handler.graph.folding import folded
from handler.graph.holding import hold_new
from handler.graph.home import (
    GraphHome,
    compaction_lock,
    oldest_held_seq,
    open_held,
    remove_unfinished,
    remove_unused,
)
from handler.graph.live_graph import LiveGraph
from handler.graph.manifest import Manifest
from handler.graph.progress import SILENT, Progress
from handler.graph.snapshot import Snapshot
from handler.graph.staging import staged
from handler.log.opening import open_log
from handler.log.protocol import Log


@dataclass(frozen=True)
class Compacted:
    """What came of a compaction.

    Args:
        seq: the position in the log up to which the new snapshot is complete.
        num_folded: mutations that were folded into it.
        num_expired: edges that were older than the rules let them be.
        size_bytes: of the new snapshot.
        removed: the seqs of older snapshots that are gone, because nobody held them.
        log_first_seq: where the log begins now.
    """

    seq: int
    num_folded: int
    num_nodes: int
    num_edges: int
    num_expired: int
    size_bytes: int
    removed: tuple[int, ...]
    log_first_seq: int


@dataclass(frozen=True)
class _Written:
    """A new snapshot, and what it left out."""

    manifest: Manifest
    num_folded: int
    num_expired: int
    size_bytes: int


def compact(
    home: GraphHome, log: Log, *, progress: Progress = SILENT, now: float | None = None
) -> Compacted | None:
    """Write a snapshot with all that the log has at this moment, let it count, and drop what nobody needs.

    Older snapshots go unless somebody holds them, and the log is cut behind the oldest one that is left;
    that happens also where there is nothing to fold. If this process ends in between, the graph is as it was
    before or as it is after, and the next compaction removes what is left over.

    Args:
        log: of this graph.
        now: from which the age of edges counts, in seconds since 1970; edges that are older than the rules
            let them be are left out.

    Returns:
        None where the snapshot has all that the log has. (Edges that have expired go with the next mutation:
        a snapshot's name is its position in the log.)

    Raises:
        SnapshotError: another process compacts the graph, its snapshot is damaged, or the folder cannot be
            written, as when the disk is full; then what counted counts still, and nothing is left behind.
        LogError: the log cannot be read, or has not what follows the snapshot.
    """
    with compaction_lock(home):
        remove_unfinished(home)
        try:
            written = _write_next(home, log, progress, time.time() if now is None else now)
        except BaseException:
            with suppress(SnapshotError):
                remove_unfinished(home)
            raise
        removed = tuple(remove_unused(home))
        log_first_seq = log.truncate(oldest_held_seq(home))
    if written is None:
        return None
    return Compacted(
        written.manifest.seq,
        written.num_folded,
        written.manifest.num_nodes,
        written.manifest.num_edges,
        written.num_expired,
        written.size_bytes,
        removed,
        log_first_seq,
    )


def _write_next(home: GraphHome, log: Log, progress: Progress, now: float) -> _Written | None:
    with open_held(home.folder) as held:
        if held.home != home:
            raise SnapshotError(home.folder, "was replaced by another graph")
        live = _replayed(held.snapshot, log, progress)
        if live.seq == held.snapshot.seq:
            return None
        target = home.snapshot_folder(live.seq)
        max_age = live.manifest.rules.max_edge_age
        earliest = -np.inf if max_age is None else now - max_age
        # Nested like this, the hold is let go last, when the snapshot counts.
        with ExitStack() as build:
            with staged(target, replace=False) as staging:
                build.enter_context(hold_new(staging))
                manifest = write_contents(staging, folded(live, earliest, progress), progress)
                size_bytes = sum(file.stat().st_size for file in staging.iterdir())
            home.move_current(live.seq)
    return _Written(manifest, live.seq - held.snapshot.seq, live.num_edges - manifest.num_edges, size_bytes)


def _replayed(snapshot: Snapshot, log: Log, progress: Progress) -> LiveGraph:
    """The graph with all that the log has at this moment; what comes later is for the next snapshot."""
    live = LiveGraph(snapshot)
    last_seq = log.last_seq()
    if last_seq < live.seq:
        raise LogCorrupt("log", f"ends with mutation {last_seq}, but {snapshot.folder} has {live.seq}")
    with progress.bar("reading the log", last_seq - live.seq, "mutation") as advance:
        while (before := live.seq) < last_seq:
            for record in log.read(before):
                if record.last_seq <= last_seq:
                    live.apply_record(record)
            advance(live.seq - before)
    return live


def main(arguments: list[str]) -> int:
    """Compact the graph whose home is the one argument; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m handler.graph.compaction HOME\n")
        return 2
    try:
        home = GraphHome.read(Path(arguments[0]))
        with closing(open_log(home.log, home.log_folder, home.graph_id)) as log:
            compacted = compact(home, log)
    except HopserveError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(msgspec.json.encode(compacted).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
