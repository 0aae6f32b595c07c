"""A table says of every node what the model says when it is asked, whatever happens while it is made."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.nn import GCN

from archive.checkpoint import ModelConfig
from archive.export.export import export_model
from archive.export.plan import ExportPlan
from archive.precompute import compute, run
from archive.precompute.compute import ChunkComputer
from archive.precompute.run import PrecomputePlan, precompute
from archive.reading import PackedModel
from handler.cache.table import Table
from handler.cache.tags import tag_of
from handler.errors import HopserveError, LockError, ModelError, TableError
from handler.graph.fanout import FanoutPlan
from handler.graph.home import write_home
from handler.graph.live_graph import LiveGraph
from handler.graph.ordering import STRATEGIES, Ordering
from handler.graph.progress import SILENT
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from handler.inputs import ModelInputs
from handler.model.exported import ExportedModel
from handler.model.signature import read_signature
from handler.settings import Settings
from tests.graphs import FEATURE_DIM, EdgeData, SmallGraph, graphs_with_edge_data
from tests.models import random_model
from tests.served import CPU, Answering, close

RING = SmallGraph(list(range(40)), [(node, (node + step) % 40) for node in range(40) for step in (1, 5, 9)])


def packed(folder: Path, graph: SmallGraph, export: Callable[[Path], Any], plan: Any = None) -> PackedModel:
    """A model over a graph, as if it had been packed."""
    if not (folder / "graph").exists():
        write_home(folder / "graph", graph.to_arrays(), plan)
    export(folder / "model")
    return PackedModel(
        "model",
        "1.0",
        folder / "model",
        read_signature(folder / "model"),
        Settings(graph=str(folder / "graph")),
    )


def exporting(config: ModelConfig, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: export_model(
        config.build().eval(), replace(config.export_plan(), **options), folder
    )


RANDOM = exporting(random_model((3, 2))[0])


def check(table: Path | None, model: PackedModel) -> Table:
    """The rows are what a service answers, and the fingerprints what a worker proves them by."""
    assert table is not None
    opened = Table.open(table)
    graph = Snapshot.open(Path(model.settings.graph))
    loaded = ExportedModel.load(model.folder, CPU)
    ids = list(graph.ids.id_of(np.arange(graph.num_nodes)))
    returned = ["embedding"] if model.signature.embedding_dim else ["probabilities"]
    ((status, answer),) = Answering(graph, loaded).ask({"node_ids": ids, "return": returned})
    assert status == 200, answer
    for row, found in zip(answer["predictions"], opened.output, strict=True):
        assert close(found[: model.signature.embedding_dim], row["embedding"])
    inputs = ModelInputs(LiveGraph(graph, model.signature.sampling), model.signature, Settings(graph=""))
    sampled = inputs.sample(np.arange(graph.num_nodes), FanoutPlan.of(model.signature.layer_fanouts))
    tag = tag_of(model.signature, Path(model.settings.graph))
    assert opened.fingerprint.tolist() == inputs.fingerprints(sampled, tag).tolist()
    assert opened.sampled.tolist() == np.diff(sampled.trees.ptr).tolist()
    assert not list(table.parent.glob(".work-*"))
    return opened


WEIGHTED = exporting(random_model((2, 3), edge_inputs=("edge_weight", "edge_attr"), edge_dim=1)[0])
WALKS = exporting(
    random_model((3, 2), sampling=Sampling(strategy="walk", num_walks=6), edge_inputs=("edge_weight",))[0]
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    graphs_with_edge_data(),
    st.sampled_from(STRATEGIES),
    st.sampled_from([RANDOM, WEIGHTED, WALKS]),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_a_table_equals_what_is_answered(
    graph: EdgeData, strategy: Any, export: Any, chunk_nodes: int, num_shards: int
) -> None:
    with TemporaryDirectory() as folder:
        model = packed(Path(folder), graph, export, BuildPlan(Ordering(strategy)))
        check(_by_shards(model, num_shards, chunk_nodes), model)


def _by_shards(model: PackedModel, num_shards: int, chunk_nodes: int) -> Path | None:
    """By several machines, of which each waits for the others after a stage."""
    table: Path | None = None
    with pytest.MonkeyPatch.context() as patch:

        def by_others(work: Any, stage: int, progress: Any) -> None:
            for shard in range(num_shards):
                for chunk in work.missing(stage, shard):
                    computers[0].run(stage, shard, chunk)
                work.finish(stage, shard)

        patch.setattr(run, "_wait_for_others", by_others)
        computers: list[ChunkComputer] = []
        original = ChunkComputer.__init__

        def noted(self: ChunkComputer, task: Any) -> None:
            original(self, task)
            computers[:] = [self]

        patch.setattr(ChunkComputer, "__init__", noted)
        for shard in range(num_shards):
            assert table is None
            plan = PrecomputePlan(shard=shard, num_shards=num_shards, chunk_nodes=chunk_nodes)
            table = precompute(model, plan)
    return table


def test_degrees_are_those_of_each_layers_samples(tmp_path: Path) -> None:
    plan = ExportPlan("embedding", (2, 2), FEATURE_DIM)
    model = packed(tmp_path, RING, lambda folder: export_model(GCN(FEATURE_DIM, 8, 2, 4), plan, folder))
    assert model.signature.takes_degree
    check(precompute(model, PrecomputePlan(chunk_nodes=7)), model)


@pytest.mark.parametrize("options", [{"layers": False}, {"contract": "plain"}])
def test_models_without_layers_run_whole_trees(tmp_path: Path, options: dict[str, Any]) -> None:
    model = packed(tmp_path, RING, exporting(random_model((3, 2))[0], **options))
    check(precompute(model, PrecomputePlan(chunk_nodes=7)), model)


def test_edges_age_from_when_it_was_begun(tmp_path: Path) -> None:
    now = time.time()
    graph = EdgeData([0, 1, 2], [(0, 1), (1, 2), (2, 0)], [1.0] * 3, [now, now - 900, now])
    model = packed(tmp_path, graph, RANDOM, BuildPlan(rules=EdgeRules(max_edge_age=600)))
    assert check(precompute(model, PrecomputePlan()), model).sampled.tolist() == [2, 3, 1]


@pytest.mark.parametrize("layers", [True, False])
def test_chunks_of_many_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: bool) -> None:
    monkeypatch.setattr(compute, "_BATCH_BYTES", {"cpu": 1})
    monkeypatch.setattr(compute, "_LEAST_BATCH", 3)
    model = packed(tmp_path, RING, exporting(random_model((3, 2))[0], layers=layers))
    check(precompute(model, PrecomputePlan(chunk_nodes=29)), model)


def test_several_processes(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    check(precompute(model, PrecomputePlan(num_processes=2, chunk_nodes=7)), model)


def test_trees_over_the_budget_and_rows_that_are_not_finite_are_left_to_the_model(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    settings_ = msgspec.structs.replace(model.settings, max_nodes_per_forward=5)
    table = precompute(replace(model, settings=settings_), PrecomputePlan())
    assert table is not None
    assert not Table.open(table).fingerprint.any()


def _killed(model: PackedModel, num_chunks: int) -> None:
    """Compute some chunks, and die like the machine does."""
    original = ChunkComputer.run
    done = 0

    def counted(self: ChunkComputer, *chunk: Any) -> int:
        nonlocal done
        if done == num_chunks:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        return original(self, *chunk)

    ChunkComputer.run = counted  # type: ignore[method-assign]
    precompute(model, PrecomputePlan(chunk_nodes=7))


@pytest.mark.parametrize("num_chunks", [0, 3, 8, 11])
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path, num_chunks: int) -> None:
    model = packed(tmp_path, RING, RANDOM)
    killed = multiprocessing.get_context("spawn").Process(target=_killed, args=(model, num_chunks))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    computed = _count_chunks()
    with computed as chunks:
        check(precompute(model, PrecomputePlan(chunk_nodes=7)), model)
    assert len(chunks) == 12 - num_chunks


@contextmanager
def _count_chunks() -> Any:
    chunks: list[Any] = []
    original = ChunkComputer.run
    with pytest.MonkeyPatch.context() as patch:

        def counted(self: ChunkComputer, *chunk: Any) -> int:
            chunks.append(chunk)
            return original(self, *chunk)

        patch.setattr(ChunkComputer, "run", counted)
        yield chunks


def test_work_of_another_model_or_snapshot_is_begun_anew(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    folder = tmp_path / "graph" / "embeddings" / "model" / "1.0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_join", lambda *_: None)
        assert precompute(model, PrecomputePlan()) is None
    assert (folder / ".work-0" / "stage-1" / "done-0").exists()
    other = packed(tmp_path, RING, exporting(random_model((2, 2))[0]))
    with _count_chunks() as chunks:
        check(precompute(other, PrecomputePlan()), other)
    assert len(chunks) == 2


def test_shards_of_another_number_are_not_thrown_away(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, exporting(random_model((3,))[0]))
    assert precompute(model, PrecomputePlan(shard=0, num_shards=2)) is None
    with pytest.raises(TableError, match="is in work with --shard K/2"):
        precompute(model, PrecomputePlan())
    check(precompute(model, PrecomputePlan(restart=True)), model)


def test_a_part_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, exporting(random_model((3,))[0]))
    assert precompute(model, PrecomputePlan(shard=0, num_shards=2)) is None
    (state,) = (tmp_path / "graph").rglob("shard-0.state")
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(TableError, match=r"shard-0.state: has 479 bytes, not 480"):
        precompute(model, PrecomputePlan(shard=1, num_shards=2))


def test_shards_may_be_computed_apart_and_copied_together(tmp_path: Path) -> None:
    export = exporting(random_model((3,))[0])
    model = packed(tmp_path / "one", RING, export)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    elsewhere = replace(model, settings=Settings(graph=str(tmp_path / "two" / "graph")))
    assert precompute(model, PrecomputePlan(shard=0, num_shards=2)) is None
    assert precompute(elsewhere, PrecomputePlan(shard=1, num_shards=2)) is None
    work = Path("embeddings", "model", "1.0", ".work-0", "stage-1")
    for file in (tmp_path / "two" / "graph" / work).iterdir():
        shutil.copy(file, tmp_path / "one" / "graph" / work)
    check(precompute(model, PrecomputePlan(shard=0, num_shards=2), SILENT), model)


def test_shards_that_begin_at_once_agree(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    context = multiprocessing.get_context("spawn")
    shards = [
        context.Process(target=precompute, args=(model, PrecomputePlan(shard=number, num_shards=3)))
        for number in range(3)
    ]
    for each in shards:
        each.start()
    for each in shards:
        each.join()
    assert [each.exitcode for each in shards] == [0, 0, 0]
    check(tmp_path / "graph" / "embeddings" / "model" / "1.0" / "table-0", model)


def test_work_that_a_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    with pytest.MonkeyPatch.context() as patch:
        original = ChunkComputer.run
        refused = []

        def crossed(self: ChunkComputer, *chunk: Any) -> int:
            patch.setattr(ChunkComputer, "run", original)
            for restart in (False, True):
                with pytest.raises(LockError, match="another process is at work there") as error:
                    precompute(model, PrecomputePlan(restart=restart))
                refused.append(error)
            return original(self, *chunk)

        patch.setattr(ChunkComputer, "run", crossed)
        check(precompute(model, PrecomputePlan()), model)
    assert len(refused) == 2


def test_work_on_older_snapshots_goes(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    versions = tmp_path / "graph" / "embeddings" / "model" / "1.0"
    (versions / ".work-7" / "stage-1").mkdir(parents=True)
    check(precompute(model, PrecomputePlan()), model)
    assert not (versions / ".work-7").exists()


def test_rows_are_not_read_before_all_of_their_shard_are_there(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, exporting(random_model((3,))[0]))
    assert precompute(model, PrecomputePlan(shard=0, num_shards=2, chunk_nodes=5)) is None
    stage = tmp_path / "graph" / "embeddings" / "model" / "1.0" / ".work-0" / "stage-1"
    for file in list(stage.glob("shard-0.*")):  # as a copy finds it that was made meanwhile
        file.rename(f"{file}.part")
    assert precompute(model, PrecomputePlan(shard=1, num_shards=2, chunk_nodes=5)) is None
    check(precompute(model, PrecomputePlan(shard=0, num_shards=2, chunk_nodes=5)), model)


def _fails(*_: Any) -> None:
    raise RuntimeError("no such operator")


def test_a_forward_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(tmp_path, RING, RANDOM)
    monkeypatch.setattr(ExportedModel, "run", _fails)
    with pytest.raises(ModelError, match="the model fails on this graph: no such operator"):
        precompute(model, PrecomputePlan())


def test_errors_of_other_processes_arrive(tmp_path: Path) -> None:
    model = packed(tmp_path, RING, RANDOM)
    with pytest.MonkeyPatch.context() as patch:
        original = run._run_stage

        def sabotaged(work: Any, stage: int, *rest: Any) -> None:
            shutil.rmtree(work.folder / f"stage-{stage}")  # a file system that went away
            work.reserve = lambda *_: None
            original(work, stage, *rest)

        patch.setattr(run, "_run_stage", sabotaged)
        with pytest.raises(HopserveError, match="cannot be written: No such file"):
            precompute(model, PrecomputePlan(num_processes=2, chunk_nodes=7))
