"""Starts processes that outlive this one."""

from __future__ import annotations

import atexit
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_POLL_S = 0.05

# Python warns of processes that nobody refers to any more while they run; those here are meant to.
_started: list[subprocess.Popen[bytes]] = []


@atexit.register
def _forget_ended() -> None:
    _started[:] = [process for process in _started if process.poll() is None]


def start_in_background(command: Sequence[str | Path], console: Path) -> subprocess.Popen[bytes]:
    """Start a process that goes on when this one ends, and that no interrupt at the terminal reaches.

    Args:
        console: the file that takes what it prints; its content of before is lost.
    """
    console.parent.mkdir(parents=True, exist_ok=True)
    _forget_ended()
    with console.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    _started.append(process)
    return process


def has_ended(process: psutil.Process, timeout_s: float) -> bool:
    """Wait for the end of a process; whether it came in time.

    One that has ended counts as such even while whoever started it has taken no notice.
    """
    deadline = time.monotonic() + timeout_s
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE and process.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    return True
