"""What the command line shows of a snapshot, and does with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from handler.errors import GraphInputError, HopserveError, OverBudget, SnapshotError, UnknownNode
from handler.graph.arrays import GraphArrays, Split
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.sampler import TreeLimits
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from scripts.cli import look
from scripts.cli.look import add_ordering_command, info_command, sample_command, verify_command
from scripts.cli.options import Bars

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def folder(make_snapshot: Callable[..., Snapshot]) -> Path:
    """Edges c -> a at 1, d -> a at 2, b -> a at 3, d -> b at 5; weights 0.1 to 0.4; ids are strings."""
    edges = EdgeArrays(
        np.array([[2, 3, 1, 3], [0, 0, 0, 1]]),
        weight=np.array([0.1, 0.2, 0.3, 0.4]),
        time=np.array([1.0, 2.0, 3.0, 5.0]),
    )
    graph = GraphArrays(
        "letters",
        edges,
        4,
        ids=["a", "b", "c", "d"],
        features=DenseFeatures(np.ones((4, 2), dtype=np.float32)),
        label=np.array([0, 1, 1, -1]),
        label_names=("no", "yes"),
        split=np.array([Split.TRAIN, Split.TEST, 0, 0], dtype=np.uint8),
    )
    return make_snapshot(graph, BuildPlan(Ordering("seeded", 3), (Ordering("recent"),))).folder


@pytest.fixture
def numbered(make_snapshot: Callable[..., Snapshot]) -> Path:
    """Edges 9 -> -7 -> 5."""
    edges = EdgeArrays(np.array([[0, 2], [1, 0]]))
    return make_snapshot(GraphArrays("numbers", edges, 3, ids=np.array([-7, 5, 9]))).folder


def _run(command: click.Command, *arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def _json(command: click.Command, *arguments: object) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(_run(command, *arguments).stdout)
    return shown


def _refused(error: type[HopserveError], command: click.Command, *arguments: object) -> str:
    """The one line of the error that `main` would show."""
    with pytest.raises(error) as refused:
        _run(command, *arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_info_shows_all_that_a_snapshot_holds(folder: Path) -> None:
    info = _json(info_command, folder)
    assert info.pop("snapshot") == Snapshot.open(folder).manifest.snapshot_id
    assert info.pop("size_bytes") == sum(file.stat().st_size for file in folder.iterdir())
    assert info == {
        "name": "letters",
        "graph_id": None,
        "log": None,
        "folder": str(folder),
        "seq": 0,
        "num_nodes": 4,
        "num_edges": 4,
        "ids": {"kind": "str", "first": ["a", "b", "c"]},
        "in_degree": {"max": 3, "p99": 3, "median": 0, "isolated": 2},
        "ordering": {"strategy": "seeded", "seed": 3},
        "extra_orderings": [{"strategy": "recent", "seed": 0}],
        "rules": {"undirected": False, "duplicates": "drop", "self_loops": True, "max_edge_age": None},
        "edges": {"weight": {"min": 0.1, "max": 0.4}, "time": {"min": 1, "max": 5}, "features": None},
        "features": {"kind": "dense", "dimension": 2},
        "classes": {"no": 1, "yes": 2},
        "split": {"none": 2, "train": 1, "val": 0, "test": 1},
    }


def test_info_shows_what_a_bare_graph_has_not(make_snapshot: Callable[..., Snapshot]) -> None:
    nothing = np.empty((2, 0), dtype=np.int64)
    bare = make_snapshot(GraphArrays("bare", EdgeArrays(nothing, np.empty(0)), 1))
    info = _json(info_command, bare.folder)
    assert info["edges"] == {"weight": None, "time": None, "features": None}
    assert (info["features"], info["classes"], info["num_edges"]) == (None, None, 0)


def test_ranges_are_read_block_by_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_BLOCK_EDGES", 1)
    assert _json(info_command, folder)["edges"]["weight"] == {"min": 0.1, "max": 0.4}


def test_info_draws_degrees(folder: Path, tmp_path: Path) -> None:
    assert _json(info_command, folder, "--plot", tmp_path / "degrees.png")["num_nodes"] == 4
    assert (tmp_path / "degrees.png").read_bytes().startswith(PNG)
    assert "end in .png or .html" in _refused(
        GraphInputError, info_command, folder, "--plot", tmp_path / "d.pdf"
    )


def test_verify_answers_in_one_line(folder: Path) -> None:
    assert _run(verify_command, folder).stdout == f"{folder}: intact: 4 nodes, 4 edges\n"
    content = (folder / "indices.npy").read_bytes()
    (folder / "indices.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "indices.npy: corrupt" in _refused(SnapshotError, verify_command, folder)


def test_an_ordering_is_added_to_a_snapshot(folder: Path) -> None:
    result = _run(add_ordering_command, folder, "--strategy", "top_weight", "--seed", 5)
    assert result.stdout == f"{folder}: is now sampled by seeded, recent, top_weight\n"
    assert "ordering neighbors by `top_weight`" in result.stderr
    assert _json(info_command, folder)["extra_orderings"][1] == {"strategy": "top_weight", "seed": 5}
    shown = _json(sample_command, folder, "a", "--num-neighbors", "2", "--sampling", "top_weight")
    assert shown["hops"] == [["a"], ["b", "d"]]
    message = _refused(GraphInputError, add_ordering_command, folder, "--strategy", "top_weight")
    assert "has an ordering `top_weight` already" in message


def test_a_sample_is_shown_hop_by_hop(folder: Path) -> None:
    shown = _json(sample_command, folder, "a", "--sampling", "recent", "--num-neighbors", "2,2")
    assert shown == {
        "node": "a",
        "sampling": "recent",
        "num_neighbors": [2, 2],
        "num_nodes": 4,
        "num_edges": 3,
        "hops": [["a"], ["b", "d"], ["d"]],
        "edges": [
            {"source": "b", "target": "a", "weight": 0.3, "time": 3},
            {"source": "d", "target": "a", "weight": 0.2, "time": 2},
            {"source": "d", "target": "b", "weight": 0.4, "time": 5},
        ],
    }
    assert _json(sample_command, folder, "a")["sampling"] == "seeded"


def test_a_sample_as_of_a_time_uses_nothing_later(folder: Path) -> None:
    shown = _json(sample_command, folder, "a", "--sampling", "recent", "--as-of", 2)
    assert shown["hops"] == [["a"], ["d", "c"], []]
    result = CliRunner().invoke(sample_command, [str(folder), "a", "--as-of", "2"])
    assert result.exit_code == 2
    assert "--as-of needs a time, and neighbors that come by time: --sampling recent" in result.output
    assert CliRunner().invoke(sample_command, [str(folder), "a", "--as-of", "nan"]).exit_code == 2


def test_a_walk_has_shares_for_weights(folder: Path) -> None:
    shown = _json(sample_command, folder, "b", "--sampling", "walk", "--num-walks", 4, "--walk-length", 2)
    assert shown["edges"] == [{"source": "d", "target": "b", "weight": 1}]


def test_a_sample_is_drawn(folder: Path, tmp_path: Path) -> None:
    _json(sample_command, folder, "a", "--plot", tmp_path / "sample.html")
    assert "node a of letters by seeded" in (tmp_path / "sample.html").read_text()
    message = _refused(GraphInputError, sample_command, folder, "a", "--plot", tmp_path / "sample.pdf")
    assert "end in .png or .html" in message


def test_a_node_is_named_by_its_id(folder: Path, numbered: Path) -> None:
    assert _json(sample_command, numbered, "5")["hops"] == [[5], [-7], [9]]
    assert _json(sample_command, numbered, "--", "-7")["hops"] == [[-7], [9], []]
    assert _refused(UnknownNode, sample_command, numbered, "6") == "the graph has no node 6"
    assert _refused(UnknownNode, sample_command, numbered, 2**63) == f"the graph has no node {2**63}"
    message = _refused(GraphInputError, sample_command, numbered, "five")
    assert message.endswith("its node ids are integers, not 'five'")
    assert _refused(UnknownNode, sample_command, folder, "7") == "the graph has no node '7'"


def test_a_strategy_that_is_not_stored_is_refused(folder: Path) -> None:
    message = _refused(GraphInputError, sample_command, folder, "a", "--sampling", "first")
    assert "stores no ordering `first`, only `seeded`, `recent`" in message


def test_a_sample_larger_than_anyone_reads_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _json(sample_command, folder, "a", "--num-neighbors", f"{10**30},{10**30}")["num_nodes"] == 5
    monkeypatch.setattr(look, "_LIMITS", TreeLimits(2, 2))
    assert "ask for fewer hops" in _refused(OverBudget, sample_command, folder, "a")


def test_bars_are_words_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    bars = Bars()
    bars.say("one")
    with bars.bar("two", 10, "edge") as advance:
        advance(10)
    assert capsys.readouterr().err == "one\ntwo\n"
