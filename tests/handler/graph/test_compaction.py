"""A compacted graph is the same graph, and nothing that happens meanwhile is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler.errors import LogCorrupt, SnapshotError
from handler.graph import compaction, folding, home
from handler.graph.arrays import GraphArrays, Split
from handler.graph.compaction import Compacted, compact, main
from handler.graph.edges import EdgeArrays, EdgeBlock
from handler.graph.fanout import FanoutPlan
from handler.graph.features import CsrFeatures, DenseFeatures, Features
from handler.graph.follower import Follower
from handler.graph.home import GraphHome, compaction_lock, open_held, write_home
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import Mutations, encode_mutations
from handler.graph.npy import NpyWriter
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.progress import Advance
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot, verify
from handler.graph.writer import BuildPlan
from handler.log.embedded import LmdbLog
from handler.log.protocol import Record
from tests.graphs import EdgeData, graphs_with_edge_data
from tests.live import Change, LiveEdge, SlowGraph, changes, sampled

WriteGraph = Callable[[GraphArrays], LmdbLog]
EVERY_EDGE = FanoutPlan.of((999,))
TWO_HOPS = FanoutPlan.of((2, 3))
TRIANGLE = EdgeData([0, 1, 2], [(0, 1), (1, 2), (2, 0)], [1.0, 2.0, 0.5], [1.0, 2.0, 3.0])
strategies = st.sampled_from(STRATEGIES)
rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())


class Written:
    """A graph in its home with its log, and its slow twin."""

    def __init__(self, folder: Path, graph: EdgeData = TRIANGLE, plan: BuildPlan | None = None) -> None:
        self.plan = plan or BuildPlan()
        write_home(folder, graph.to_arrays(), self.plan)
        self.home = GraphHome.read(folder)
        self.log = LmdbLog.open(self.home.log_folder, self.home.graph_id)
        self.slow = SlowGraph.of(graph, self.plan.rules)
        self.seq = 0

    def apply(self, change: Change) -> None:
        self.append(change.to_mutations(len(self.slow.ids)))
        self.slow.apply(change)

    def append(self, mutations: Mutations) -> None:
        if not len(mutations):
            return
        record = Record(self.seq + 1, self.seq + len(mutations), encode_mutations(mutations))
        self.log.append([record], [], self.seq)
        self.seq = record.last_seq

    def live(self, sampling: Sampling | None = None) -> LiveGraph:
        """As a worker would have it that starts now."""
        live = LiveGraph(Snapshot.open(self.home.folder), sampling)
        for record in self.log.read(live.seq, 1 << 30):
            live.apply_record(record)
        assert live.seq == self.seq
        return live

    def compact(self, **options: Any) -> Compacted | None:
        return compact(self.home, self.log, **options)

    def check(self) -> None:
        """The graph as it is now is its slow twin."""
        rebuilt = self.slow.to_snapshot(self.plan)
        for plan in (EVERY_EDGE, TWO_HOPS):
            assert sampled(self.live(), Sampling(), plan) == sampled(rebuilt, Sampling(), plan)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.home.folder.iterdir())


@contextmanager
def written(graph: EdgeData = TRIANGLE, plan: BuildPlan | None = None) -> Iterator[Written]:
    with TemporaryDirectory() as folder:
        graph_on_disk = Written(Path(folder, "graph"), graph, plan)
        try:
            yield graph_on_disk
        finally:
            graph_on_disk.log.close()


@pytest.fixture
def triangle() -> Iterator[Written]:
    with written() as graph:
        yield graph


def arrays_of(snapshot: Snapshot) -> dict[str, Any]:
    """All that a snapshot holds but when its nodes were created."""
    adjacency = snapshot.adjacency
    assert snapshot.features is not None
    arrays = {
        "indptr": adjacency.indptr,
        "indices": adjacency.indices,
        "weight": adjacency.edge_weight,
        "time": adjacency.edge_time,
        "attr": adjacency.edge_attr,
        **adjacency.permutations,
        **snapshot.ids.arrays(),
        **snapshot.features.arrays(),
    }
    return {name: (str(values.dtype), values.tolist()) for name, values in arrays.items()}  # type: ignore[union-attr]


def edge(u: int, v: int, time: float = 1.0) -> LiveEdge:
    return LiveEdge(u, v, 1.0, time, 7.0)


@given(graphs_with_edge_data(), strategies, strategies, rules, st.booleans(), st.data())
def test_a_compacted_graph_equals_the_live_one_and_one_built_from_scratch(
    graph: EdgeData, own: Strategy, extra: Strategy, rules: EdgeRules, in_pieces: bool, data: st.DataObject
) -> None:
    orderings = () if own == extra else (Ordering(extra, 3),)
    plan = BuildPlan(Ordering(own, 5), orderings, rules)
    # Equal edges of a multigraph are numbered as they lie: in another order they may change places.
    samplings = [(Sampling(), True)] + [(Sampling(strategy=extra), not rules.multigraph)] * len(orderings)
    with written(graph, plan) as both, pytest.MonkeyPatch.context() as patch:
        if in_pieces:
            patch.setattr(folding, "_RANGE_BYTES", 100)
            patch.setattr(folding, "_BLOCK_NODES", 2)
        for _ in range(data.draw(st.integers(1, 3))):
            for _ in range(data.draw(st.integers(1, 2))):
                both.apply(data.draw(changes(both.slow.ids)))
            before = [
                sampled(both.live(sampling), sampling, EVERY_EDGE, with_attr=with_attr)
                for sampling, with_attr in samplings
            ]
            compacted = both.compact()
            snapshot = verify(both.home.folder)
            assert compacted is None or (compacted.seq, compacted.num_edges) == (both.seq, snapshot.num_edges)
            assert snapshot.seq == both.seq
            assert before == [
                sampled(snapshot, sampling, EVERY_EDGE, with_attr=with_attr)
                for sampling, with_attr in samplings
            ]
            assert arrays_of(snapshot) == arrays_of(both.slow.to_snapshot(plan))
            assert snapshot.manifest.rules == rules
            assert list(snapshot.manifest.orderings().values()) == [plan.ordering, *orderings]
            both.check()


def test_a_compaction_by_hand(triangle: Written) -> None:
    triangle.apply(Change((7,), ((0, 5.0),), ((0, 1, None),), (edge(3, 1), edge(0, 3))))
    compacted = triangle.compact()
    assert compacted is not None
    assert compacted == Compacted(
        seq=5, num_folded=5, num_nodes=4, num_edges=4, num_expired=0, size_bytes=compacted.size_bytes,
        removed=(0,), log_first_seq=6,
    )  # fmt: skip
    snapshot = Snapshot.open(triangle.home.folder)
    assert snapshot.folder.name == "snapshot-5"
    assert snapshot.ids.id_of(np.arange(4)) == [0, 1, 2, 7]
    assert snapshot.adjacency.indptr.tolist() == [0, 1, 2, 3, 4]
    assert snapshot.adjacency.indices.tolist() == [2, 3, 1, 0]
    assert snapshot.manifest.name == "small"
    assert snapshot.node_created is not None
    assert snapshot.node_created.tolist() == [0, 0, 0, 1000]
    assert triangle.files() == ["CURRENT", "compaction.lock", "graph.json", "log", "snapshot-5"]
    assert sum(file.stat().st_size for file in snapshot.folder.iterdir()) == compacted.size_bytes


def test_without_mutations_there_is_nothing_to_fold(triangle: Written) -> None:
    assert triangle.compact() is None
    triangle.apply(Change(nodes=(9,)))
    assert triangle.compact() is not None
    assert triangle.compact() is None
    assert triangle.files() == ["CURRENT", "compaction.lock", "graph.json", "log", "snapshot-1"]


def test_nodes_keep_when_they_were_created(triangle: Written) -> None:
    triangle.apply(Change(added=(edge(0, 1, 5.0),)))
    triangle.compact()
    assert Snapshot.open(triangle.home.folder).node_created is None
    for created, node_id in ((10.5, 10), (20.5, 20)):
        triangle.append(
            replace_created(Change(nodes=(node_id,)).to_mutations(len(triangle.slow.ids)), created)
        )
        triangle.slow.apply(Change(nodes=(node_id,)))
        triangle.compact()
    triangle.apply(Change(added=(edge(0, 2, 5.0),)))
    triangle.compact()
    created_at = verify(triangle.home.folder).node_created
    assert created_at is not None
    assert created_at.tolist() == [0, 0, 0, 10.5, 20.5]


def replace_created(mutations: Mutations, created: float) -> Mutations:
    return Mutations(
        **{name: getattr(mutations, name) for name in mutations.__struct_fields__} | {"created": created}
    )


def test_edges_that_are_too_old_are_dropped() -> None:
    plan = BuildPlan(Ordering("recent"), (Ordering("first"),), EdgeRules(max_edge_age=10.0))
    with written(TRIANGLE, plan) as graph:
        graph.apply(Change((), (), (), (edge(0, 2, 0.5), edge(2, 1, 9.0))))
        compacted = graph.compact(now=12.0)  # of times 1, 2, 3, 0.5 and 9
        assert compacted is not None
        assert (compacted.num_edges, compacted.num_expired) == (3, 2)
        graph.slow.edges = [each for each in graph.slow.edges if each.time >= 2]
        rebuilt = graph.slow.to_snapshot(plan)
        assert arrays_of(verify(graph.home.folder)) == arrays_of(rebuilt)
        graph.apply(Change((), (), (), (edge(0, 1, 1.0),)))
        assert sum(each.v == 1 and each.u == 0 for each in graph.slow.edges) == 1
        compacted = graph.compact(now=12.5)
        assert compacted is not None
        assert (compacted.num_edges, compacted.num_expired) == (2, 2)


@given(graphs_with_edge_data(), strategies, rules, st.floats(0.5, 8), st.floats(-4, 4), st.data())
@settings(max_examples=25)
def test_what_is_dropped_for_its_age_was_not_sampled(
    graph: EdgeData, own: Strategy, rules: EdgeRules, age: float, now: float, data: st.DataObject
) -> None:
    plan = BuildPlan(
        Ordering(own), rules=EdgeRules(rules.undirected, rules.duplicates, rules.self_loops, age)
    )
    with written(graph, plan) as both, pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)
        patch.setattr(folding, "_RANGE_BYTES", 100)
        both.apply(data.draw(changes(both.slow.ids)))
        before = sampled(both.live(), Sampling(), EVERY_EDGE)
        num_young = sum(each.time >= now - age for each in both.slow.edges)
        if both.compact() is None:
            return
        snapshot = Snapshot.open(both.home.folder)
        assert sampled(snapshot, Sampling(), EVERY_EDGE) == before
        assert snapshot.num_edges == num_young


def test_new_nodes_have_no_class_and_no_part_in_training(tmp_path: Path, log_of: WriteGraph) -> None:
    graph = GraphArrays(
        "labelled", EdgeArrays(np.array([[0], [1]])), 2, ids=["a", "b"],
        label=np.array([1, 0]), label_names=("no", "yes"),
        split=np.array([Split.TRAIN, Split.TEST], dtype=np.uint8),
    )  # fmt: skip
    log = log_of(graph)
    _append(log, 0, _nodes(2, ["c", "d"]))
    compact(GraphHome.read(tmp_path / "graph"), log)
    _append(log, 2, _nodes(4, ["e"]))
    compact(GraphHome.read(tmp_path / "graph"), log)
    snapshot = verify(tmp_path / "graph")
    assert snapshot.label is not None
    assert snapshot.split is not None
    assert snapshot.label.tolist() == [1, 0, -1, -1, -1]
    assert snapshot.split.tolist() == [Split.TRAIN, Split.TEST, 0, 0, 0]
    assert snapshot.manifest.label_names == ("no", "yes")
    assert snapshot.ids.id_of(np.arange(5)) == ["a", "b", "c", "d", "e"]
    assert snapshot.features is None


@pytest.fixture
def log_of(tmp_path: Path) -> Iterator[WriteGraph]:
    """Writes a graph, and opens its log."""
    with ExitStack() as logs:

        def write(graph: GraphArrays) -> LmdbLog:
            write_home(tmp_path / "graph", graph)
            home = GraphHome.read(tmp_path / "graph")
            return logs.enter_context(closing(LmdbLog.open(home.log_folder, home.graph_id)))

        yield write


def _append(log: LmdbLog, after_seq: int, mutations: Mutations) -> None:
    log.append(
        [Record(after_seq + 1, after_seq + len(mutations), encode_mutations(mutations))], [], after_seq
    )


def _nodes(first: int, ids: list[Any], **features: Any) -> Mutations:
    none = np.empty(0, dtype=np.int64)
    return Mutations(
        created=5.0,
        first_node=first,
        node_ids=ids,
        featured=features.get("featured", none),
        features=features.get("features", np.empty((0, 0), dtype=np.float32)),
        removed=EdgeBlock(none, none, None, np.empty(0)),
        added=EdgeBlock(none, none),
    )


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("block_nodes", [1, 3, 1 << 16])
def test_features_of_every_kind_keep_it(
    tmp_path: Path,
    log_of: WriteGraph,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    dtype: type[np.floating],
    block_nodes: int,
) -> None:
    monkeypatch.setattr(folding, "_BLOCK_NODES", block_nodes)
    generator = np.random.default_rng(1)

    def draw(num_rows: int) -> NDArray[np.float32]:
        return np.where(
            generator.random((num_rows, 5)) < 0.4, generator.normal(size=(num_rows, 5)), 0
        ).astype(np.float32)

    x = draw(20).astype(dtype)
    log = log_of(GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 20, features=_stored(x, kind)))
    seq = 0
    for first, num_new in ((20, 3), (23, 0), (23, 2)):
        featured = generator.integers(0, first + num_new, 6)
        features = draw(6)
        mutations = _nodes(first, list(range(first, first + num_new)), featured=featured, features=features)
        _append(log, seq, mutations)
        seq += len(mutations)
        x = np.concatenate([x, np.zeros((num_new, 5), dtype=dtype)])
        for node, row in zip(featured, features, strict=True):
            x[node] = row
        compact(GraphHome.read(tmp_path / "graph"), log)
        snapshot = verify(tmp_path / "graph")
        assert snapshot.features is not None
        assert (snapshot.features.kind, snapshot.features.dtype) == (kind, dtype)
        assert snapshot.features.gather(np.arange(len(x))).tolist() == x.astype(np.float32).tolist()
        stored, expected = snapshot.features.arrays(), _stored(x, kind).arrays()
        assert {name: each.tolist() for name, each in stored.items()} == {
            name: each.tolist() for name, each in expected.items()
        }


def _stored(x: NDArray[np.floating], kind: str) -> Features:
    if kind == "dense":
        return DenseFeatures(x)
    row, column = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(x)))])
    return CsrFeatures(indptr, column.astype(np.int32), x[row, column], x.shape[1])


def test_features_of_edges_in_half_precision_keep_it(tmp_path: Path, log_of: WriteGraph) -> None:
    attr = np.array([[0.5, 1.5]], dtype=np.float16)
    log = log_of(GraphArrays("g", EdgeArrays(np.array([[0], [1]]), attr=attr), 2))
    none = np.empty(0, dtype=np.int64)
    added = EdgeBlock(np.array([1]), np.array([0]), attr=np.array([[2.5, 0.1]], dtype=np.float32))
    mutations = Mutations(
        created=0, first_node=2, node_ids=[], featured=none, features=np.empty((0, 0), dtype=np.float32),
        removed=EdgeBlock(none, none, None, np.empty(0)), added=added,
    )  # fmt: skip
    _append(log, 0, mutations)
    compact(GraphHome.read(tmp_path / "graph"), log)
    found = verify(tmp_path / "graph").adjacency.edge_attr
    assert found is not None
    assert found.dtype == np.float16
    assert found.tolist() == np.array([[2.5, 0.1], [0.5, 1.5]], dtype=np.float16).tolist()


def test_snapshots_stay_while_they_are_held_and_with_them_the_log(triangle: Written) -> None:
    oldest = open_held(triangle.home.folder)
    triangle.apply(Change(nodes=(10, 11)))
    first = triangle.compact()
    assert first is not None
    assert (first.removed, first.log_first_seq) == ((), 1)
    older = open_held(triangle.home.folder)
    triangle.apply(Change(nodes=(12,)))
    second = triangle.compact()
    assert second is not None
    assert (second.removed, second.log_first_seq) == ((), 1)
    assert len(triangle.live().created) == 0
    # Whoever reads an old one still finds what follows it.
    late = LiveGraph(oldest.snapshot)
    for record in triangle.log.read(0):
        late.apply_record(record)
    assert late.ids.id_of(np.arange(6)) == [0, 1, 2, 10, 11, 12]
    oldest.close()
    assert triangle.compact() is None
    assert triangle.log.first_seq() == 3
    assert not triangle.home.snapshot_folder(0).exists()
    older.close()
    assert triangle.compact() is None
    assert triangle.log.first_seq() == 4
    assert "snapshot-2" not in triangle.files()


def test_the_log_is_kept_for_its_readers(triangle: Written) -> None:
    triangle.log.hold("slow", 1)
    for node_id in (10, 11, 12):
        triangle.apply(Change(nodes=(node_id,)))
    compacted = triangle.compact()
    assert compacted is not None
    assert (compacted.removed, compacted.log_first_seq) == ((0,), 2)


def test_what_comes_during_a_compaction_is_for_the_next_one(triangle: Written) -> None:
    class Meddling:
        """Appends whenever a step begins."""

        def say(self, step: str) -> None:
            triangle.apply(Change(nodes=(1000 + triangle.seq,)))

        @contextmanager
        def bar(self, step: str, total: int, unit: str) -> Iterator[Advance]:
            self.say(step)
            yield lambda done: None

    triangle.apply(Change(nodes=(10,), added=(edge(3, 1),)))
    compacted = triangle.compact(progress=Meddling())
    assert compacted is not None
    assert compacted.seq == 2
    assert triangle.seq > 5
    triangle.check()
    assert triangle.compact() is not None
    triangle.check()
    assert Snapshot.open(triangle.home.folder).seq == triangle.seq


def test_one_of_two_compactions_refuses(triangle: Written) -> None:
    triangle.apply(Change(nodes=(10,)))
    with (
        compaction_lock(triangle.home),
        pytest.raises(SnapshotError, match="graph: is being compacted by another process"),
    ):
        triangle.compact()
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(triangle.compact())
        except SnapshotError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, Compacted) for outcome in outcomes) == 1
    triangle.check()


def test_another_graph_is_not_given_this_ones_log(triangle: Written) -> None:
    write_home(triangle.home.folder, TRIANGLE.to_arrays(), replace=True)
    with pytest.raises(SnapshotError, match="graph: was replaced by another graph"):
        triangle.compact()


def test_a_log_that_ends_before_the_snapshot_is_refused(triangle: Written) -> None:
    triangle.apply(Change(nodes=(10, 11)))
    triangle.compact()
    triangle.log.close()
    for file in triangle.home.log_folder.glob("*.mdb"):
        file.unlink()
    log = LmdbLog.open(triangle.home.log_folder, triangle.home.graph_id)
    with pytest.raises(LogCorrupt, match="ends with mutation 0, but .*snapshot-2 has 2"):
        compact(triangle.home, log)
    log.close()


@pytest.mark.parametrize("num_writes", [0, 1, 3, 7, 12])
def test_a_full_disk_leaves_everything_as_it_was(
    triangle: Written, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    triangle.apply(Change((10,), ((3, 1.0),), (), (edge(3, 1),)))
    append, calls = NpyWriter.append, iter(range(1000))

    def fill(self: NpyWriter, values: NDArray[Any]) -> None:
        if next(calls) == num_writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, values)

    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "append", fill)
        with pytest.raises(SnapshotError, match="snapshot-3: cannot be written: No space left on device"):
            triangle.compact()
    assert triangle.files() == ["CURRENT", "compaction.lock", "graph.json", "log", "snapshot-0"]
    assert triangle.home.current_seq == 0
    assert triangle.log.first_seq() == 1
    triangle.check()
    assert triangle.compact() is not None
    triangle.check()


def test_a_snapshot_that_cannot_become_current_goes(
    triangle: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    triangle.apply(Change(nodes=(10,)))

    def fill(folder: Path, seq: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(home, "write_current", fill)
        with pytest.raises(SnapshotError, match="graph: cannot be written: No space left on device"):
            triangle.compact()
    assert triangle.files() == ["CURRENT", "compaction.lock", "graph.json", "log", "snapshot-0"]
    assert triangle.compact() is not None


def _step(triangle: Written, number: int) -> Change:
    """Change number `number` of a long row, each of another kind."""
    count = len(triangle.slow.ids)
    generator = random.Random(number)
    added = tuple(
        LiveEdge(generator.randrange(count), generator.randrange(count), 2.0, float(number), float(number))
        for _ in range(3)
    )
    removed = ((generator.randrange(count), generator.randrange(count), None),)
    nodes = (100 + number,) if number % 3 == 0 else ()
    return Change(nodes, ((generator.randrange(count), float(number)),), removed, added)


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_a_worker_moves_over_without_losing_a_mutation(
    monkeypatch: pytest.MonkeyPatch, duplicates: Any
) -> None:
    monkeypatch.setattr("handler.graph.follower._MOVE_CHECK_S", 0.01)
    with written(TRIANGLE, BuildPlan(rules=EdgeRules(duplicates=duplicates))) as graph:
        _append_compact_and_read(graph)


def _append_compact_and_read(graph: Written) -> None:
    follower: Follower[LiveGraph] = Follower(open_held(graph.home.folder), graph.log, None, lambda live: live)
    done, seen, problems = threading.Event(), set[str](), list[object]()

    def append() -> None:
        for number in range(300):
            graph.apply(_step(graph, number))
            time.sleep(0.002)
        done.set()

    def read() -> None:
        last_seq = 0
        while not done.is_set():
            wanted = graph.seq
            with follower.reading(wanted) as live:
                seen.add(live.folder.name)
                if live.seq < max(wanted, last_seq):
                    problems.append((live.seq, wanted, last_seq))
                last_seq = live.seq
                sampled(live, Sampling(), TWO_HOPS)

    threads = [threading.Thread(target=append), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    while not done.is_set():
        graph.compact()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    compacted = graph.compact()
    seq = graph.home.current_seq
    _wait_until(lambda: follower._held.snapshot.seq == seq)
    graph.apply(_step(graph, 301))
    with follower.reading(graph.seq) as live:
        assert live.seq == graph.seq
        found = sampled(live, Sampling(), EVERY_EDGE)
    assert found == sampled(graph.slow.to_snapshot(graph.plan), Sampling(), EVERY_EDGE)
    assert problems == []
    assert len(seen) > 2, compacted
    assert graph.compact() is not None
    _wait_until(lambda: follower._held.snapshot.seq == graph.seq)
    assert graph.compact() is None
    assert [name for name in graph.files() if "snapshot" in name] == [f"snapshot-{graph.seq}"]
    follower.close()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _command(triangle: Written) -> list[str]:
    return [sys.executable, "-m", "handler.graph.compaction", str(triangle.home.folder)]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(compaction.__file__).parents[2])}


def _check_after_kill(triangle: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home opens with every mutation, and the next compaction leaves nothing else in it."""
    verify(triangle.home.folder)
    triangle.check()
    with monkeypatch.context() as patch:
        patch.setattr(home, "_LEFTOVER_AGE_S", 0.0)
        triangle.apply(_step(triangle, triangle.seq))
        assert triangle.compact() is not None
    assert triangle.files() == [
        "CURRENT", "compaction.lock", "graph.json", "log", f"snapshot-{triangle.seq}"
    ]  # fmt: skip
    triangle.check()


def test_a_process_that_is_killed_at_any_moment_loses_nothing(
    triangle: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    triangle.apply(_step(triangle, 0))
    started = time.monotonic()
    whole = subprocess.run(_command(triangle), capture_output=True, text=True, check=True, env=_environment())
    wall_s = time.monotonic() - started
    assert json.loads(whole.stdout)["seq"] == triangle.seq
    generator = random.Random(0)
    num_killed = 0
    for number in range(1, 11):
        triangle.apply(_step(triangle, number))
        process = subprocess.Popen(_command(triangle), stdout=subprocess.DEVNULL, env=_environment())
        time.sleep(generator.uniform(0.3, 1.0) * wall_s)
        process.kill()
        num_killed += process.wait() == -signal.SIGKILL
        _check_after_kill(triangle, monkeypatch)
    assert num_killed


def test_a_process_that_is_killed_at_any_step_loses_nothing(
    triangle: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed wherever something is made to last, or moved to its place: before that, and after."""
    num_steps = 0
    while _is_killed_at(triangle, num_steps):
        _check_after_kill(triangle, monkeypatch)
        num_steps += 1
    assert num_steps > 20


def _is_killed_at(triangle: Written, step: int) -> bool:
    """Compact in a fork that is killed at a step; whether it came so far."""
    triangle.apply(_step(triangle, triangle.seq))
    triangle.log.close()
    child = os.fork()
    if child == 0:
        _count_down(step)
        main([str(triangle.home.folder)])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    triangle.log = LmdbLog.open(triangle.home.log_folder, triangle.home.graph_id)
    return os.WIFSIGNALED(status)


def _count_down(steps: int) -> None:
    left = iter(range(steps, -1, -1))

    def take_step() -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            take_step()
            result = function(*arguments, **options)
            take_step()
            return result

        return call

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))


def test_as_a_process_it_says_what_it_did(
    triangle: Written, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    triangle.apply(Change(nodes=(10,)))
    assert main([str(triangle.home.folder)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["seq"], said["num_nodes"], said["removed"], said["log_first_seq"]) == (1, 4, [0], 2)
    assert main([str(triangle.home.folder)]) == 0
    assert capsys.readouterr().out == "null\n"
    assert main([str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err == f"{tmp_path}/graph.json: missing, so this folder is no home of a graph\n"
    )
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
