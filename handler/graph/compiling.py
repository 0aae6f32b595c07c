"""Lets one process compile the kernels that others, which start at the same time, need as well."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from handler.graph.kernels import cache_root

_LOCK_NAME = "first.lock"
_PATIENCE_S = 120.0
_PAUSE_S = 0.05
_log = logging.getLogger(__name__)


@contextmanager
def one_goes_first(patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Enter at once, or, where another process is inside that came first, once it has left.

    All that have waited for it enter together then, and find what it has compiled. Nobody is kept from
    entering: after `patience_s`, and where nothing can be locked, each compiles for itself.
    """
    descriptor = None
    with suppress(OSError):
        descriptor = _open()
        if not _lock(descriptor, fcntl.LOCK_EX):
            _wait(descriptor, patience_s)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open() -> int:
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    return os.open(root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(descriptor: int, patience_s: float) -> None:
    """Until nobody is inside alone; whoever waits shares the lock, and gives it back at once."""
    _log.info("waiting for another process that may be compiling the same kernels")
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if _lock(descriptor, fcntl.LOCK_SH):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return
        time.sleep(_PAUSE_S)
