"""Makes new snapshots of a graph by itself, when its log has grown long."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from handler.errors import HopserveError
from handler.graph.follower import Follower

_log = logging.getLogger(__name__)
_CHECK_S = 2.0
_PAUSE_AFTER_FAILURE_S = 60.0
_PACKAGES = Path(__file__).resolve().parents[1]


def compact_regularly(follower: Follower[Any], compact_after: int) -> None:
    """Compact in a process of its own whenever it is due, for as long as this process lives.

    Args:
        compact_after: mutations since the latest snapshot; see `GraphSettings`.
    """

    def watch() -> None:
        pause_s = _CHECK_S
        while not follower.stopping.wait(pause_s):
            pause_s = _CHECK_S
            try:
                if is_due(follower, compact_after) and not _compact(follower.folder):
                    pause_s = _PAUSE_AFTER_FAILURE_S
            except (HopserveError, OSError) as error:
                _log.warning("%s", error)

    threading.Thread(target=watch, name="hopserve-compaction", daemon=True).start()


def is_due(follower: Follower[Any], compact_after: int) -> bool:
    """Whether the log is long for the size of the graph."""
    waiting = follower.log.last_seq() - follower.current_seq
    return waiting > max(compact_after, follower.num_snapshot_edges // 10)


def _compact(folder: Path) -> bool:
    """Whether a process that compacts the graph succeeded; it says itself what was wrong."""
    _log.info("compacting %s", folder)
    result = subprocess.run(
        [sys.executable, "-m", "handler.graph.compaction", str(folder)],
        env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (result.stderr if result.returncode else result.stdout).strip().splitlines() or [""]
    (_log.warning if result.returncode else _log.info)("compaction of %s: %s", folder, lines[-1])
    return result.returncode == 0
