"""Runs the work on a table: stage by stage, chunk by chunk, in one or several processes, and joins it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from archive.precompute.compute import CHUNK_BYTES, Models, Task, device_for
from archive.precompute.pool import Compute, computing
from archive.precompute.similar import build_index, check_indexes
from archive.precompute.work import WorkFolder, WorkPlan
from archive.reading import PackedModel
from handler.cache.similar import Metric, index_folder
from handler.cache.table import (
    FORMAT_VERSION,
    Table,
    TableManifest,
    table_folder,
    versions_folder,
    written_table,
)
from handler.cache.tags import tag_of
from handler.errors import TableError
from handler.graph.home import HeldSnapshot, open_held
from handler.graph.npy import NpyWriter
from handler.graph.progress import SILENT, Progress
from handler.inputs import ModelInputs
from handler.keeping import embeddings_folder
from handler.locks import locked

_LEAST_CHUNK, _MOST_CHUNK = 256, 1 << 16
_POLL_S = 1.0
_JOINED_ROWS = 1 << 16


@dataclass(frozen=True)
class PrecomputePlan:
    """How a table is computed.

    Args:
        num_processes: on this machine.
        shard, num_shards: the range of nodes that this machine computes, of so many ranges.
        chunk_nodes: nodes at once; none for as many as take about 128 MB.
        restart: begin anew, whatever is done already.
        indexes: by which metrics similar nodes are to be found.
    """

    num_processes: int = 1
    shard: int = 0
    num_shards: int = 1
    chunk_nodes: int | None = None
    restart: bool = False
    indexes: tuple[Metric, ...] = ()


def precompute(model: PackedModel, plan: PrecomputePlan, progress: Progress = SILENT) -> Path | None:
    """Compute the outputs of all nodes of the snapshot that counts, or this machine's share of them.

    A table that is there already is only given the indexes that it lacks.

    Returns:
        The table; none where shards of other machines are missing.

    Raises:
        ModelError, SnapshotError: model or graph cannot be opened, or do not fit each other.
        TableError: what is written cannot be, or another process is at the same.
    """
    check_indexes(plan.indexes)
    with open_held(Path(model.settings.graph)) as held:
        table = None if plan.restart else _finished(model, held)
        if table is None:
            table = _computed(model, plan, held, progress)
        else:
            progress.say(f"{table} is of this snapshot and model; --restart computes it anew")
    if table is not None:
        _add_indexes(Table.open(table), plan.indexes, model.signature.embedding_dim, progress)
    return table


def _finished(model: PackedModel, held: HeldSnapshot) -> Path | None:
    """The table that would be computed, if it is there."""
    try:
        table = Table.open(table_folder(_versions(model), held.snapshot.seq))
    except TableError:
        return None
    tag = tag_of(model.signature, Path(model.settings.graph))
    is_same = table.manifest.snapshot_id == held.snapshot.manifest.snapshot_id
    return table.folder if is_same and int(table.manifest.tag, 16) == tag else None


def _computed(
    model: PackedModel, plan: PrecomputePlan, held: HeldSnapshot, progress: Progress
) -> Path | None:
    with ExitStack() as locks:
        ModelInputs(held.snapshot, model.signature, model.settings)  # says whether they fit each other
        models = Models(model.folder, device_for(model.settings))
        if not models.layers:
            progress.say("the model has no layers of its own: whole trees are computed, which takes longer")
        versions = _versions(model)
        work_plan = _work_plan(model, models, held, plan)
        work = _opened(versions, work_plan, plan, locks)
        task = Task(
            model.folder,
            held.snapshot.folder,
            model.settings,
            work.folder,
            work.plan,
            max(1, len(os.sched_getaffinity(0)) // plan.num_processes),
        )
        with computing(task, plan.num_processes) as compute:
            for stage in range(1, work.plan.num_stages + 1):
                if stage > 1:
                    _wait_for_others(work, stage - 1, progress)
                _run_stage(work, stage, plan.shard, compute, progress)
        return _join(work, model, versions, progress)


def _versions(model: PackedModel) -> Path:
    return versions_folder(embeddings_folder(model.settings), model.name, model.version)


def _add_indexes(table: Table, metrics: Sequence[Metric], dim: int, progress: Progress) -> None:
    for metric in metrics:
        with locked(table.folder / f".similar-{metric}.lock", wait=True):
            if not index_folder(table.folder, metric).exists():
                for left in table.folder.glob(f".similar-{metric}-*"):  # by one that was killed
                    shutil.rmtree(left, ignore_errors=True)
                build_index(table, metric, dim, progress)


def _opened(versions: Path, work_plan: WorkPlan, plan: PrecomputePlan, locks: ExitStack) -> WorkFolder:
    """The work, of which this process alone computes its shard until `locks` end."""
    try:
        versions.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(versions, f"cannot be written: {error.strerror}") from None
    with locked(versions / ".begin", wait=True):
        folder = versions / f".work-{work_plan.seq}"
        work = WorkFolder.open(folder, work_plan, restart=plan.restart)
        locks.enter_context(locked(work.folder / f"shard-{plan.shard}.lock"))
    return work


def _work_plan(model: PackedModel, models: Models, held: HeldSnapshot, plan: PrecomputePlan) -> WorkPlan:
    snapshot, signature = held.snapshot, models.whole.signature
    widest = max(signature.feature_dim, *models.widths)
    row_bytes = 4 * widest * (1 + max(signature.layer_fanouts))
    chunk = min(max(CHUNK_BYTES // row_bytes, _LEAST_CHUNK), _MOST_CHUNK)
    return WorkPlan(
        tag=f"{tag_of(signature, Path(model.settings.graph)):016x}",
        snapshot_id=snapshot.manifest.snapshot_id,
        seq=snapshot.seq,
        num_nodes=snapshot.num_nodes,
        num_shards=plan.num_shards,
        chunk_nodes=plan.chunk_nodes or chunk,
        widths=models.widths if models.layers else models.widths[-1:],
        begun=time.time(),
    )


def _run_stage(work: WorkFolder, stage: int, shard: int, compute: Compute, progress: Progress) -> None:
    chunks = work.missing(stage, shard)
    first, last = work.plan.shard_range(shard)
    left = sum(end - start for start, end in chunks)
    if left:
        work.reserve(stage, shard)
    with progress.bar(f"stage {stage} of {work.plan.num_stages}", last - first, "node") as advance:
        advance(last - first - left)
        for num_nodes in compute(stage, shard, chunks):
            advance(num_nodes)
    work.finish(stage, shard)


def _unfinished_shards(work: WorkFolder, stage: int) -> list[int]:
    return [shard for shard in range(work.plan.num_shards) if not work.is_finished(stage, shard)]


def _wait_for_others(work: WorkFolder, stage: int, progress: Progress) -> None:
    """Wait until all shards of a stage are there: the next one reads them all."""
    said: list[int] = []
    while missing := _unfinished_shards(work, stage):
        if missing != said:
            listed = ", ".join(map(str, missing))
            progress.say(f"waiting for stage {stage} of the shards {listed} in {work.folder}")
            said = missing
        time.sleep(_POLL_S)


def _join(work: WorkFolder, model: PackedModel, versions: Path, progress: Progress) -> Path | None:
    """Make the table if all shards are there; one process of any machine does so."""
    plan, last = work.plan, work.plan.num_stages
    target = table_folder(versions, plan.seq)
    missing = _unfinished_shards(work, last)
    if missing and work.folder.exists():  # else another one has joined them, and removed it
        progress.say(f"the table is joined by who computes the last of the shards {missing}")
        return None
    with locked(versions / ".join", wait=True):
        if not work.folder.exists():  # another one was first
            return target
        manifest = TableManifest(
            format_version=FORMAT_VERSION,
            model_name=model.name,
            model_version=model.version,
            tag=plan.tag,
            snapshot_id=plan.snapshot_id,
            seq=plan.seq,
            computed=plan.begun,
            num_nodes=plan.num_nodes,
            dim=plan.widths[-1],
        )
        try:
            with written_table(versions, manifest) as folder:
                _copy(work, folder, progress)
        except OSError as error:
            raise TableError(target, f"cannot be written: {error.strerror}") from None
        work.remove()
    return target


def _copy(work: WorkFolder, folder: Path, progress: Progress) -> None:
    plan, last = work.plan, work.plan.num_stages
    rows = work.rows(last)
    with progress.bar("joining", len(rows) * plan.num_nodes, "row") as advance:
        for name, row in rows.items():
            path = folder / f"{'output' if name == 'state' else name}.npy"
            with NpyWriter(path, row.base, row.shape) as writer:
                for shard in range(plan.num_shards):
                    states = work.read(last, shard, name)
                    for start in range(0, len(states), _JOINED_ROWS):
                        part = states[start : start + _JOINED_ROWS]
                        writer.append(part)
                        advance(len(part))
