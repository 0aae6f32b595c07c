"""What it takes to fold many changes into a new snapshot, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import click
import msgspec
import numpy as np

from handler.graph.home import GraphHome
from handler.graph.snapshot import Snapshot
from tests.bench.live.graphs import TwinGraphs, additions, fill_log
from tests.bench.pipeline import show_table

_PEAK_CHECK_S = 0.02
_FIRST_SHARE = 0.1


def show_compaction(work: Path, *, num_edges: int) -> None:
    """Fold a tenth of the later edges, and then all of them.

    Raises:
        RuntimeError: compaction failed, or the outcome is not the snapshot of all edges.
    """
    twins = TwinGraphs.make(work, num_edges)
    home, num_nodes = GraphHome.read(twins.home), Snapshot.open(twins.whole).num_nodes
    before = home.current
    rows = []
    for share in (_FIRST_SHARE, 1.0):
        chosen = twins.later[:, : int(twins.later.shape[1] * share)]
        fill_log(twins.home, additions(chosen, num_nodes))
        seconds, peak_bytes, compacted = _compact(twins.home)
        size_bytes = compacted["size_bytes"]
        rows.append(
            [
                f"{compacted['num_folded']:,}",
                f"{seconds:.1f}",
                f"{compacted['num_folded'] / seconds:,.0f}",
                f"{peak_bytes / 1e6:.0f}",
                f"{size_bytes / 1e6:.0f}",
                f"{peak_bytes / size_bytes:.2f}x",
            ]
        )
    click.echo(f"Compaction of a graph of {num_edges:,} edges, in a process of its own\n")
    header = ("mutations", "seconds", "mutations/s", "peak MB", "snapshot MB", "peak of snapshot")
    show_table(header, rows)
    ours, theirs = Snapshot.open(home.current).adjacency, Snapshot.open(twins.whole).adjacency
    if before == home.current or not np.array_equal(ours.indices, theirs.indices):
        raise RuntimeError("the compacted graph is not the snapshot of the same edges")


def _compact(folder: Path) -> tuple[float, int, dict[str, int]]:
    """Seconds, peak memory in bytes, and what the process said."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "handler.graph.compaction", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
        time.sleep(_PEAK_CHECK_S)
    if process.returncode:
        raise RuntimeError(f"compaction ended with status {process.returncode}")
    text = process.stdout.read() if process.stdout else ""
    return time.monotonic() - started, peak_bytes, msgspec.json.decode(text.strip().splitlines()[-1])


def _peak_bytes(pid: int) -> int:
    # Not getrusage, which begins with the peak of the process that started this one.
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
