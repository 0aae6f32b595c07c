"""The files of one shard of one stage: written chunk by chunk, in any order, and whole in one step."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archive.precompute.plan import Column, Stage, WorkPlan
from handler.errors import TableError
from handler.graph.durable import sync_folder
from handler.graph.manifest import array_path
from handler.graph.snapshot import map_array

_MARKERS = "done"


class ShardFiles:
    """Where a shard of a stage is, and how much of it.

    A folder with a dot before its name until it is whole: a folder without one has all that it should, once
    its files have their sizes. Each chunk has a marker that is made when its rows are on the disk, so that a
    run may be killed at any moment.

    Args:
        work: folder of the run.
        number: of the shard, counted from 0.
    """

    def __init__(self, work: Path, plan: WorkPlan, stage: Stage, number: int) -> None:
        name = f"shard-{number + 1}-of-{plan.num_shards}"
        self.folder = work / stage.name / name
        self.nodes = plan.shard(number)
        self.columns = stage.columns
        self._chunks = plan.chunks(number)
        self._part = work / stage.name / f".{name}"

    def is_whole(self) -> bool:
        """Whether all is computed."""
        return all(
            _size(array_path(self.folder, column.name)) == self._file_size(column) for column in self.columns
        )

    def begin(self) -> None:
        """Take the room that the arrays need.

        Raises:
            TableError: there is not so much.
        """
        with _told(self._part):
            (self._part / _MARKERS).mkdir(parents=True, exist_ok=True)
            for column in self.columns:
                if _size(array_path(self._part, column.name)) != self._file_size(column):
                    self._reserve(column)
            sync_folder(self._part)

    def pending(self) -> list[range]:
        """The chunks that are yet to be computed."""
        done = set(os.listdir(self._part / _MARKERS))
        return [chunk for chunk in self._chunks if str(chunk.start) not in done]

    def write(self, chunk: range, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write the rows of a chunk, and then its marker.

        Raises:
            TableError: they cannot be written.
        """
        with _told(self._part):
            for column in self.columns:
                rows = np.ascontiguousarray(arrays[column.name], dtype=column.dtype)
                offset = len(self._header(column)) + (chunk.start - self.nodes.start) * column.row_bytes
                _write_at(array_path(self._part, column.name), rows, offset)
            (self._part / _MARKERS / str(chunk.start)).touch()

    def finish(self) -> None:
        """All chunks are there: others may read it now."""
        with _told(self._part):
            self._part.rename(self.folder)
            sync_folder(self.folder.parent)
            shutil.rmtree(self.folder / _MARKERS)

    def map(self, name: str) -> NDArray[Any]:
        """An array of a whole shard, mapped."""
        (column,) = (each for each in self.columns if each.name == name)
        return map_array(self.folder, name, np.dtype(column.dtype), (len(self.nodes), *column.shape))

    def _reserve(self, column: Column) -> None:
        path, header = array_path(self._part, column.name), self._header(column)
        draft = path.with_name(f".{path.name}")
        with draft.open("wb") as file:
            # Not a hole: a full disk is to be noticed now, and not after days.
            os.posix_fallocate(file.fileno(), 0, self._file_size(column))
            file.write(header)
            file.flush()
            os.fsync(file.fileno())
        for marker in (self._part / _MARKERS).iterdir():  # what they tell of is gone
            marker.unlink()
        draft.replace(path)

    def _file_size(self, column: Column) -> int:
        return len(self._header(column)) + len(self.nodes) * column.row_bytes

    def _header(self, column: Column) -> bytes:
        header = io.BytesIO()
        described = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(column.dtype)),
            "fortran_order": False,
            "shape": (len(self.nodes), *column.shape),
        }
        np.lib.format.write_array_header_1_0(header, described)
        return header.getvalue()


def _write_at(path: Path, rows: NDArray[Any], offset: int) -> None:
    """Plain writes, not a memory map: a full disk is then an `OSError`, and not the end of the process."""
    left = memoryview(rows).cast("B") if rows.size else memoryview(b"")
    descriptor = os.open(path, os.O_WRONLY)
    try:
        while left:
            written = os.pwrite(descriptor, left, offset)
            left, offset = left[written:], offset + written
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(path, f"cannot be written: {error.strerror}") from None
