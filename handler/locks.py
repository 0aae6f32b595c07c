"""Locks between processes; the kernel lets go of them when a process ends, however it does."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handler.errors import LockError


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Be the only process that has locked a file, which is made if it is not there.

    Args:
        wait: until another one lets go.

    Raises:
        LockError: another one has it, or it cannot be locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LockError(path, f"cannot be locked: {error.strerror}") from None
    try:
        _lock(path, descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, descriptor: int, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise LockError(path.parent, "another process is at work there now") from None
    except OSError as error:
        raise LockError(path, f"cannot be locked: {error.strerror}") from None
