"""File changes that a reader sees whole and that outlast a power failure."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader finds the old content or the new, and so does a restart."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power failure, as fsync does for what files hold."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder beside `target`, which takes its place at the end, and is removed after an error.

    Who has files of the older folder mapped keeps them; who looks finds none for an instant.
    """
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield staging
        staging.chmod(0o755)  # mkdtemp's own 0o700 would hide it from other users' workers
        sync_folder(staging)
        if target.exists():
            retired = target.with_name(f"{staging.name}-retired")
            target.rename(retired)
            staging.rename(target)
            shutil.rmtree(retired)
        else:
            staging.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
