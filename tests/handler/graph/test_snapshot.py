"""What was written is read; what was damaged is refused, by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from handler.errors import GraphInputError, SnapshotError
from handler.graph import snapshot as snapshot_module
from handler.graph.arrays import GraphArrays, Split
from handler.graph.edges import EdgeArrays
from handler.graph.features import CsrFeatures, DenseFeatures
from handler.graph.manifest import (
    MANIFEST_NAME,
    Manifest,
    describe_file,
    read_manifest,
    spot_checksum,
    write_manifest,
)
from handler.graph.ordering import Ordering
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot, verify
from handler.graph.writer import BuildPlan, write_snapshot
from tests.graphs import SmallGraph, small_graphs

STRINGS = GraphArrays(
    name="strings",
    edges=EdgeArrays(np.array([[0, 1, 2, 0], [1, 2, 2, 1]])),
    num_nodes=4,
    ids=["a", "bé", "c", ""],
    features=CsrFeatures(
        np.array([0, 1, 1, 3, 3]), np.array([1, 0, 2], dtype=np.int32), np.ones(3, dtype=np.float16), 3
    ),
    label=np.array([0, 1, -1, 1]),
    label_names=("no", "yes"),
    split=np.array([Split.TRAIN, Split.VAL, Split.NONE, Split.TEST], dtype=np.uint8),
)


@given(small_graphs())
def test_a_snapshot_holds_the_distinct_edges(graph: SmallGraph) -> None:
    snapshot = graph.to_snapshot()
    indptr, indices = snapshot.adjacency.indptr, snapshot.adjacency.indices
    target = np.repeat(np.arange(len(graph.ids)), np.diff(indptr))
    found = list(zip(indices.tolist(), target.tolist(), strict=True))
    assert sorted(found) == sorted(set(graph.edges))
    assert snapshot.num_edges == len(found)
    assert snapshot.ids.id_of(np.arange(snapshot.num_nodes)) == graph.ids
    assert snapshot.features is not None
    assert np.array_equal(snapshot.features.gather(np.arange(snapshot.num_nodes)), graph.features())


def test_everything_is_read_back(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(STRINGS)
    assert snapshot.ids.index_of(["bé", "", "zz"]).tolist() == [1, 3, -1]
    assert snapshot.features is not None
    assert snapshot.features.gather(np.arange(4)).tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]]
    assert snapshot.label is not None
    assert snapshot.label.tolist() == [0, 1, -1, 1]
    assert snapshot.manifest.label_names == ("no", "yes")
    assert snapshot.split is not None
    assert snapshot.split.tolist() == [1, 2, 0, 3]


def test_rules_are_kept_for_edges_that_come_later(make_snapshot: Callable[..., Snapshot]) -> None:
    rules = EdgeRules(undirected=True, duplicates="sum", self_loops=False)
    assert make_snapshot(STRINGS, BuildPlan(rules=rules)).manifest.rules == rules


def test_a_greatest_age_needs_times(make_snapshot: Callable[..., Snapshot]) -> None:
    aging = BuildPlan(rules=EdgeRules(max_edge_age=3.5))
    with pytest.raises(GraphInputError, match="a greatest age of edges needs edge times"):
        make_snapshot(STRINGS, aging)
    timed = GraphArrays("g", EdgeArrays(np.array([[0], [1]]), time=np.array([9])), 2)
    assert make_snapshot(timed, aging).manifest.rules.max_edge_age == 3.5


def test_a_snapshot_may_say_when_nodes_were_added(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(STRINGS)
    assert snapshot.node_created is None
    for created, problem in ((np.array([0, 0, 0, 1.7e9]), None), (np.zeros(3), r"shape \[3\]")):
        path = snapshot.folder / "node_created.npy"
        np.save(path, created)
        snapshot.manifest.arrays["node_created"] = describe_file(path, created.dtype, created.shape)
        write_manifest(snapshot.folder, snapshot.manifest)
        if problem is None:
            opened = Snapshot.open(snapshot.folder).node_created
            assert opened is not None
            assert opened.tolist() == created.tolist()
        else:
            with pytest.raises(SnapshotError, match=problem):
                Snapshot.open(snapshot.folder)


def test_a_graph_without_edges_or_features(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(GraphArrays("bare", EdgeArrays(np.zeros((2, 0), dtype=np.int64)), 2))
    assert (snapshot.num_nodes, snapshot.num_edges, snapshot.features) == (2, 0, None)


def test_arrays_are_mapped_and_read_only(make_snapshot: Callable[..., Snapshot]) -> None:
    indices = make_snapshot(STRINGS).adjacency.indices
    assert isinstance(indices.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        indices[0] = 1


def test_equal_graphs_have_equal_names_and_others_do_not(make_snapshot: Callable[..., Snapshot]) -> None:
    first, second, other = (
        make_snapshot(STRINGS, BuildPlan(Ordering("seeded", seed))).manifest.snapshot_id for seed in (0, 0, 1)
    )
    assert first == second != other


@pytest.mark.parametrize("name", ["indptr", "indices", "id_bytes", "id_slots", "x_data", "label"])
def test_a_truncated_file_is_refused(make_snapshot: Callable[..., Snapshot], name: str) -> None:
    path = make_snapshot(STRINGS).folder / f"{name}.npy"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SnapshotError, match=f"{name}.npy: truncated"):
        Snapshot.open(path.parent)


@pytest.mark.parametrize("name", ["indptr", "indices", "id_bytes", "id_slots", "x_data", "label"])
def test_one_wrong_bit_is_refused(make_snapshot: Callable[..., Snapshot], name: str) -> None:
    path = make_snapshot(STRINGS).folder / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=f"{name}.npy: corrupt: its checksum is"):
        Snapshot.open(path.parent)


def _spot_of(manifest: Manifest) -> Callable[[Path], str]:
    """Spots that happen to miss what is wrong."""
    return lambda path: manifest.arrays[path.stem].spot_checksum


def test_a_large_snapshot_is_hashed_only_when_asked(
    make_snapshot: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_snapshot(STRINGS).folder
    content = bytearray((folder / "x_data.npy").read_bytes())
    content[-1] ^= 1
    (folder / "x_data.npy").write_bytes(content)
    monkeypatch.setattr(snapshot_module, "_ALWAYS_HASHED_BYTES", 0)
    monkeypatch.setattr(snapshot_module, "spot_checksum", _spot_of(read_manifest(folder)))
    Snapshot.open(folder)
    with pytest.raises(SnapshotError, match="x_data"):
        verify(folder)


def test_a_large_file_of_another_snapshot_is_refused(
    make_snapshot: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal in size, dtype and shape, and too large to be hashed on opening."""
    edge_index = np.random.default_rng(0).integers(0, 999, (2, 200_000))
    graphs = [GraphArrays("g", EdgeArrays(edge_index), 999) for edge_index in (edge_index, edge_index[::-1])]
    ours, theirs = (make_snapshot(graph, BuildPlan(rules=EdgeRules(duplicates="keep"))) for graph in graphs)
    shutil.copy(theirs.folder / "indices.npy", ours.folder / "indices.npy")
    monkeypatch.setattr(snapshot_module, "_ALWAYS_HASHED_BYTES", 0)
    with pytest.raises(SnapshotError, match="indices.npy: corrupt"):
        Snapshot.open(ours.folder)


def test_spots_lie_all_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytearray(10_000_000)
    path.write_bytes(content)
    whole = spot_checksum(path)
    for change in (0, 5_000_000 - 5_000_000 % 4096, len(content) - 1):
        # A change as long as the gap between two spots is seen wherever it begins.
        altered = content.copy()
        end = min(len(content), change + 10_000_000 // 63)
        altered[change:end] = bytes([1]) * (end - change)
        path.write_bytes(altered)
        assert spot_checksum(path) != whole


def test_a_missing_file_is_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    folder = make_snapshot(STRINGS).folder
    (folder / "indices.npy").unlink()
    with pytest.raises(SnapshotError, match=r"indices.npy: missing, but named in the manifest"):
        Snapshot.open(folder)


def test_a_file_of_another_snapshot_is_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    folder = make_snapshot(STRINGS).folder
    np.save(folder / "label.npy", np.zeros(5, dtype=np.int64))
    with pytest.raises(SnapshotError, match=r"label.npy: holds int64 \[5\], the manifest says int64 \[4\]"):
        Snapshot.open(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 99}, "format_version is 99, this Hopserve reads 3"),
        ({"num_nodes": 3}, "the manifest's counts ask for"),
        ({"num_edges": 7}, "the manifest's counts ask for"),
        ({"num_nodes": "4"}, "not a valid manifest: Expected `int`, got `str` - at `\\$.num_nodes`"),
        ({"surprise": 1}, "not a valid manifest: Object contains unknown field `surprise`"),
        ({"id_kind": "int"}, "ids.npy: missing"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    make_snapshot: Callable[..., Snapshot], change: dict[str, object], problem: str
) -> None:
    path = make_snapshot(STRINGS).folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SnapshotError, match=problem):
        Snapshot.open(path.parent)


def test_a_folder_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"manifest.json: missing, so this folder is no graph snapshot"):
        Snapshot.open(tmp_path)


def test_a_manifest_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(b"\xff\xfe{")
    with pytest.raises(SnapshotError, match="not a valid manifest"):
        Snapshot.open(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (
            GraphArrays("g", EdgeArrays(np.array([[0], [2]])), 2),
            "edge_index names node 2, but the nodes are 0 to 1",
        ),
        (GraphArrays("g", EdgeArrays(np.array([[-1], [0]])), 2), "edge_index names node -1"),
        (GraphArrays("g", EdgeArrays(np.zeros((2, 0), dtype=np.int64)), 0), "the graph has no nodes"),
        (
            GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2, ids=np.array([1, 2, 3])),
            "ids has 3 entries for 2 nodes",
        ),
        (GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2, ids=["a", "a"]), "node id 'a' is given twice"),
        (
            GraphArrays(
                "g", EdgeArrays(np.array([[0], [1]])), 2, features=DenseFeatures(np.zeros((3, 1), np.float32))
            ),
            "the features have 3 rows for 2 nodes",
        ),
        (
            GraphArrays(
                "g",
                EdgeArrays(np.array([[0], [1]])),
                2,
                features=DenseFeatures(np.array([[0], [np.nan]], np.float32)),
            ),
            r"the features of 1 node \(1\) hold NaN or infinity",
        ),
        (
            GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2, features=DenseFeatures(np.zeros((2, 1)))),
            "features must be float32 or float16, but are float64",
        ),
        (
            GraphArrays(
                "g", EdgeArrays(np.array([[0], [1]])), 2, label=np.array([0, 2]), label_names=("a", "b")
            ),
            "classes run to 2, but there are 2 class names",
        ),
        (
            GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2, label=np.array([0, -2])),
            "classes must be 0 or more",
        ),
    ],
)
def test_arrays_that_are_no_graph_are_refused(tmp_path: Path, arrays: GraphArrays, problem: str) -> None:
    with pytest.raises(GraphInputError, match=problem):
        write_snapshot(tmp_path / "graph", arrays)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit_bytes", [0, 100, 1000, 30_000, 200_000])
def test_a_disk_that_fills_up_leaves_the_old_snapshot_and_nothing_else(
    tmp_path: Path, limit_bytes: int
) -> None:
    """In each phase of a build: the spool, the edges, the nodes' arrays, an extra ordering."""
    write_snapshot(tmp_path / "graph", STRINGS)
    before = read_manifest(tmp_path / "graph")
    script = f"""
import resource, signal
from pathlib import Path
import numpy as np
from handler.errors import HopserveError
from handler.graph import rows
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.writer import BuildPlan, write_snapshot
rows.PART_EDGES = 4000
edges = EdgeArrays(np.random.default_rng(0).integers(0, 999, (2, 20_000)))
graph = GraphArrays("large", edges, 999, features=DenseFeatures(np.ones((999, 99), np.float32)))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))
try:
    plan = BuildPlan(extra_orderings=(Ordering("first"),))
    write_snapshot(Path({str(tmp_path / "graph")!r}), graph, plan, replace=True)
except HopserveError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == f"{tmp_path / 'graph'}: cannot be written: File too large\n"
    assert read_manifest(tmp_path / "graph") == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_snapshot_is_replaced_only_when_asked_and_its_readers_go_on(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "graph", STRINGS)
    old = Snapshot.open(tmp_path / "graph")
    with pytest.raises(SnapshotError, match="a snapshot is there already"):
        write_snapshot(tmp_path / "graph", STRINGS)
    smaller = GraphArrays("smaller", EdgeArrays(np.array([[0], [1]])), 2)
    write_snapshot(tmp_path / "graph", smaller, replace=True)
    assert Snapshot.open(tmp_path / "graph").num_nodes == 2
    assert old.ids.index_of(["c"]).tolist() == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(SnapshotError, match="exists and is no graph snapshot"):
        write_snapshot(tmp_path, STRINGS, replace=True)
    assert (tmp_path / "precious.txt").read_text() == "mine"
