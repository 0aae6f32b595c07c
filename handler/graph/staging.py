"""Makes a folder whole or not at all: beside its place, and moved there when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from handler.errors import SnapshotError
from handler.graph.durable import sync_folder
from handler.graph.holding import claim
from handler.graph.layout import is_graph, snapshots_in


@contextmanager
def staged(folder: Path, *, replace: bool) -> Iterator[Path]:
    """Give an empty folder beside `folder`, which takes its place at the end, and is removed after an error.

    Args:
        folder: an existing one is only replaced if `replace` is set, it is a graph, and nobody holds it.

    Raises:
        SnapshotError: the folder is taken or cannot be written, which an OSError within means as well.
    """
    check_target(folder, replace=replace)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _cannot_be_written(folder, error) from None
    try:
        yield staging
        staging.chmod(0o755)  # mkdtemp's own 0o700 would hide it from other users' workers
        sync_folder(staging)
        _move_into_place(staging, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise _cannot_be_written(folder, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_target(folder: Path, *, replace: bool) -> None:
    """Refuse a folder that a graph may not be written to with a `SnapshotError`."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not is_graph(folder):
        raise SnapshotError(folder, "exists and is no graph snapshot, so it is left alone")
    if not replace:
        raise SnapshotError(folder, "a snapshot is there already")
    try:
        with ExitStack() as claims:
            _claim_all(folder, claims)
    except OSError as error:
        raise _cannot_be_written(folder, error) from None


def _move_into_place(staging: Path, folder: Path) -> None:
    """Who has files of the old folder mapped keeps them: they live on until the last one lets go."""
    if not folder.exists():
        staging.rename(folder)
        return
    with ExitStack() as claims:
        _claim_all(folder, claims)
        retired = folder.with_name(f".{folder.name}-retired-{os.getpid()}")
        folder.rename(retired)
        staging.rename(folder)
        shutil.rmtree(retired)


def _claim_all(folder: Path, claims: ExitStack) -> None:
    for snapshot in snapshots_in(folder):
        claimed = claim(snapshot)
        if claimed is None:
            raise SnapshotError(
                folder, "is being served or read by a running process: stop it, or choose another folder"
            )
        claims.enter_context(claimed)


def _cannot_be_written(folder: Path, error: OSError) -> SnapshotError:
    return SnapshotError(folder, f"cannot be written: {error.strerror}")
