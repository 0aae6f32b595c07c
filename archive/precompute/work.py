"""The folder in which a table grows: states of nodes after each layer, and what of them is done.

    .work-SEQ/plan.json
    .work-SEQ/shard-0.lock                 held by the process that computes the shard
    .work-SEQ/stage-1/shard-0.state        float32 [nodes of the shard, width], row after row
    .work-SEQ/stage-1/done-4096            nodes 4096 and following, a chunk, are on the disk
    .work-SEQ/stage-2/shard-0.fingerprint  of the last stage also uint64 and int32, one for each node
    .work-SEQ/stage-2/shard-0.sampled

A chunk is marked when it is on the disk, so whoever goes on after a crash knows what there is. Shards are
ranges of nodes, whose files are called `shard-0.state.part` until all of their chunks are there: what is
copied to another machine without `.part` is whole.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from handler.errors import TableError
from handler.graph.durable import replace_file, sync_folder
from handler.graph.features import DenseFeatures
from handler.locks import locked

FORMAT_VERSION = 1
_PLAN = "plan.json"


class WorkPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is computed, and in which parts; work that was begun by another plan is not gone on with.

    Args:
        tag: of the model's files and the graph, in hexadecimal.
        snapshot_id, seq, num_nodes: of the snapshot.
        widths: columns after each stage; of the last one those of the model's output.
        begun: seconds since 1970; ages of edges count from then.
    """

    format_version: int = FORMAT_VERSION
    tag: str
    snapshot_id: str
    seq: int
    num_nodes: int
    num_shards: int
    chunk_nodes: int
    widths: tuple[int, ...]
    begun: float

    @property
    def num_stages(self) -> int:
        return len(self.widths)

    def shard_range(self, shard: int) -> tuple[int, int]:
        """The nodes of a shard: from the first, up to the second."""
        return (
            self.num_nodes * shard // self.num_shards,
            self.num_nodes * (shard + 1) // self.num_shards,
        )

    def chunks(self, shard: int) -> list[tuple[int, int]]:
        """The chunks of a shard, each from its first node up to another."""
        first, last = self.shard_range(shard)
        return [
            (start, min(start + self.chunk_nodes, last)) for start in range(first, last, self.chunk_nodes)
        ]


@dataclass(frozen=True)
class Block:
    """What was computed of the nodes of a chunk.

    Args:
        state: float32 [num_nodes, width].
        fingerprint, sampled: uint64, int32 [num_nodes]; of the last stage only.
    """

    state: NDArray[np.float32]
    fingerprint: NDArray[np.uint64] | None = None
    sampled: NDArray[np.int32] | None = None


class WorkFolder:
    """The work on one table."""

    def __init__(self, folder: Path, plan: WorkPlan) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def open(cls, folder: Path, plan: WorkPlan, *, restart: bool = False) -> WorkFolder:
        """Go on with what is there if it is of this plan, but for when it was begun; else begin.

        Only for who is the only process that opens work of this model version. What is left of work on older
        snapshots goes.

        Raises:
            TableError: another plan with other shards is at work there, or the folder cannot be written.
        """
        try:
            for old in folder.parent.glob(".work-*"):
                if old != folder or restart:
                    _clear(old)
            found = _read_plan(folder)
            if found is not None and msgspec.structs.replace(found, begun=plan.begun) == plan:
                return cls(folder, found)
            if found is not None and found.num_shards > 1 and found.tag == plan.tag:
                raise TableError(
                    folder,
                    f"is in work with --shard K/{found.num_shards} and --chunk-nodes {found.chunk_nodes}:"
                    " go on like that, or --restart",
                )
            if folder.exists():
                _clear(folder)
            for stage in range(1, plan.num_stages + 1):
                (folder / f"stage-{stage}").mkdir(parents=True)
            replace_file(folder / _PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")
        except OSError as error:
            raise TableError(folder, f"cannot be written: {error.strerror}") from None
        return cls(folder, plan)

    def rows(self, stage: int) -> dict[str, np.dtype[Any]]:
        """What one row of each file of a stage is, by the file's name."""
        rows: dict[str, np.dtype[Any]] = {"state": np.dtype((np.float32, (self.plan.widths[stage - 1],)))}
        if stage == self.plan.num_stages:
            rows |= {"fingerprint": np.dtype(np.uint64), "sampled": np.dtype(np.int32)}
        return rows

    def missing(self, stage: int, shard: int) -> list[tuple[int, int]]:
        """The chunks of a shard that a stage has yet to compute."""
        done = {path.name for path in self._stage(stage).glob("done-*")}
        return [chunk for chunk in self.plan.chunks(shard) if f"done-{chunk[0]}" not in done]

    def is_finished(self, stage: int, shard: int) -> bool:
        """Whether all of a shard is there, and may be read."""
        return all(self._file(stage, shard, name).exists() for name in self.rows(stage))

    def reserve(self, stage: int, shard: int) -> None:
        """Take the room that a shard needs: a full disk is to be noticed now, and not after days.

        Raises:
            TableError: there is not so much.
        """
        first, last = self.plan.shard_range(shard)
        try:
            for name, row in self.rows(stage).items():
                with _part(self._file(stage, shard, name)).open("ab") as file:
                    os.posix_fallocate(file.fileno(), 0, max(1, (last - first) * row.itemsize))
                    file.truncate((last - first) * row.itemsize)
        except OSError as error:
            raise TableError(self._stage(stage), f"cannot be written: {error.strerror}") from None

    def finish(self, stage: int, shard: int) -> None:
        """All chunks of a shard are there: from now on others may read it."""
        for name in self.rows(stage):
            path = self._file(stage, shard, name)
            if not path.exists():
                _part(path).touch()  # a shard without nodes has no chunks either
                _part(path).rename(path)
        sync_folder(self._stage(stage))

    def write(self, stage: int, shard: int, first: int, block: Block) -> None:
        """Put a chunk on the disk, and only then mark it.

        Raises:
            TableError: the disk is full, or the like.
        """
        place = first - self.plan.shard_range(shard)[0]
        arrays = {"state": block.state, "fingerprint": block.fingerprint, "sampled": block.sampled}
        try:
            for name, array in arrays.items():
                if array is not None:
                    _write_rows(_part(self._file(stage, shard, name)), np.ascontiguousarray(array), place)
            (self._stage(stage) / f"done-{first}").touch()
            sync_folder(self._stage(stage))
        except OSError as error:
            raise TableError(self._stage(stage), f"cannot be written: {error.strerror}") from None

    def states(self, stage: int) -> StateRows:
        """What a stage has computed of all nodes, which must be complete."""
        return StateRows(
            [self.read(stage, shard, "state") for shard in range(self.plan.num_shards)],
            [self.plan.shard_range(shard)[0] for shard in range(self.plan.num_shards)],
        )

    def read(self, stage: int, shard: int, name: str) -> NDArray[Any]:
        """One file of a shard, mapped; a row, as `rows` says, for each of its nodes.

        Raises:
            TableError: it is not as long as it should be.
        """
        dtype = self.rows(stage)[name]
        first, last = self.plan.shard_range(shard)
        path = self._file(stage, shard, name)
        if first == last:
            return np.empty(0, dtype=dtype)
        size = path.stat().st_size if path.exists() else 0
        if size != (last - first) * dtype.itemsize:
            raise TableError(
                path, f"has {size} bytes, not {(last - first) * dtype.itemsize}: --restart, or copy it again"
            )
        mapped: NDArray[Any] = np.memmap(path, dtype=dtype, mode="r", shape=(last - first,))
        return np.asarray(mapped)

    def remove(self) -> None:
        """Remove all of it, once the table is there."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stage(self, stage: int) -> Path:
        return self.folder / f"stage-{stage}"

    def _file(self, stage: int, shard: int, name: str) -> Path:
        return self._stage(stage) / f"shard-{shard}.{name}"


class StateRows:
    """States of all nodes, in the files of shards; see `handler.model.device.FeatureRows`.

    Args:
        shards: float32 [nodes of the shard, width] each.
        firsts: first node of each shard, ascending.
    """

    def __init__(self, shards: list[NDArray[np.float32]], firsts: list[int]) -> None:
        self._shards = shards
        self._firsts = np.array(firsts)

    def gather(self, node: NDArray[np.int64]) -> Tensor:
        """float32 [num_nodes, width], the states of some nodes; on the CPU."""
        if len(self._shards) == 1:
            return torch.from_numpy(_rows_at(self._shards[0], node))
        rows = np.empty((len(node), self._shards[0].shape[1]), dtype=np.float32)
        shard_of = np.searchsorted(self._firsts, node, side="right") - 1
        for shard in np.unique(shard_of).tolist():
            places = np.flatnonzero(shard_of == shard)
            rows[places] = _rows_at(self._shards[shard], node[places] - self._firsts[shard])
        return torch.from_numpy(rows)


def _rows_at(states: NDArray[np.float32], place: NDArray[np.int64]) -> NDArray[np.float32]:
    return DenseFeatures(states).gather(place)


def _write_rows(path: Path, rows: NDArray[Any], place: int) -> None:
    # Plain writes, not a memory map: a full disk is then an OSError, and not the end of the process.
    data, offset = rows.data.cast("B"), place * (rows.nbytes // len(rows))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _clear(folder: Path) -> None:
    """Remove work that no process is at."""
    with ExitStack() as locks:
        for lock in folder.glob("*.lock"):
            locks.enter_context(locked(lock))
        shutil.rmtree(folder)


def _read_plan(folder: Path) -> WorkPlan | None:
    try:
        return msgspec.json.decode((folder / _PLAN).read_bytes(), type=WorkPlan)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
