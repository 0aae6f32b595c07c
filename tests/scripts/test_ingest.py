"""`hopserve ingest`: every mutation of a file arrives once and in order, whatever happens meanwhile."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from archive.ingest import journal
from gateway.errors import UpstreamError
from gateway.upstream import mutations
from handler.errors import GraphInputError, HopserveError
from scripts.cli.main import hopserve
from tests.fake_graph import FakeGraph, fake_graph

HOPSERVE = Path(sys.executable).parent / "hopserve"
Edges = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mutations, "_FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(mutations, "_LONGEST_PAUSE_S", 0.01)


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[FakeGraph]:
    with fake_graph(tmp_path) as graph:
        yield graph


def _ingest(graph: FakeGraph, *arguments: object) -> Result:
    command = ["ingest", "--ts-config", str(graph.config), *map(str, arguments)]
    return CliRunner().invoke(hopserve, command, catch_exceptions=False, standalone_mode=False)


def _edges(count: int, first: int = 0) -> Edges:
    return [(first + number, number) for number in range(count)]


def _table(path: Path, edges: Edges, *, header: bool = True) -> Path:
    rows = "".join(f"{source},{target}\n" for source, target in edges)
    path.write_text(("source,target\n" if header else "") + rows)
    return path


def _shapes(graph: FakeGraph) -> list[dict[str, int]]:
    """How many mutations of each kind the requests had."""
    return [
        {kind: len(rows) for kind, rows in request.items() if isinstance(rows, list)}
        for request in graph.requests
    ]


def _text(path: Path, edges: Edges) -> Path:
    return _table(path.with_suffix(".csv"), edges)


def _zipped(path: Path, edges: Edges) -> Path:
    zipped = path.with_suffix(".tsv.gz")
    zipped.write_bytes(gzip.compress(_table(path, edges).read_bytes().replace(b",", b"\t")))
    return zipped


def _json(path: Path, edges: Edges) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in edges))
    return path


def _parquet(path: Path, edges: Edges) -> Path:
    path = path.with_suffix(".parquet")
    source, target = zip(*edges, strict=True)
    pyarrow.parquet.write_table(pa.table({"source": source, "target": target}), path)
    return path


@pytest.mark.parametrize("write", [_text, _zipped, _json, _parquet])
def test_a_file_of_any_format_arrives_in_order(
    graph: FakeGraph, tmp_path: Path, write: Callable[[Path, Edges], Path]
) -> None:
    edges = _edges(250)
    file = write(tmp_path / "e", edges)
    result = _ingest(graph, file, "--batch-size", 100)
    assert graph.edges() == edges
    assert _shapes(graph) == [{"add_edges": 100}, {"add_edges": 100}, {"add_edges": 50}]
    told = rf"{file}: 250 mutations in \d+\.\d s \([\d,]+/s\), last seq 250\n"
    assert re.fullmatch(told, result.stdout), result.stdout


def test_every_kind_with_all_that_a_graph_knows(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,f1,f2\na,1,2\nb,3,4\n")
    (tmp_path / "edges.csv").write_text("source;target;weight;when;k\na;b;0.5;10;7\n")
    with fake_graph(tmp_path, id_type="str", feature_dim=2, weight=True, time=True, attr_dim=1) as graph:
        of_nodes = (tmp_path / "nodes.csv", "--features", "f*")
        _ingest(graph, *of_nodes, "--kind", "nodes")
        _ingest(graph, *of_nodes, "--kind", "features")
        edges = (tmp_path / "edges.csv", "--time", "when", "--delimiter", ";")
        _ingest(graph, *edges, "--edge-features", "k", "--create-missing")
        _ingest(graph, *edges, "--kind", "removals")
    nodes = [{"node_id": "a", "x": [1.0, 2.0]}, {"node_id": "b", "x": [3.0, 4.0]}]
    edge = {"source": "a", "target": "b", "time": 10.0}
    assert graph.applied == [
        *(("add_nodes", node) for node in nodes),
        *(("set_features", node) for node in nodes),
        ("add_edges", edge | {"weight": 0.5, "attr": [7.0]}),
        ("remove_edges", edge),
    ]
    assert [request.get("create_missing") for request in graph.requests] == [None, None, True, None]


def test_lines_that_are_requests_keep_their_order(graph: FakeGraph, tmp_path: Path) -> None:
    one, two = {"source": 1, "target": 2}, {"source": 2, "target": 1}
    lines = [{"add_edges": [one, two], "add_nodes": [{"node_id": 1}]}, {"remove_edges": [one]}, one]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _ingest(graph, file, "--batch-size", 2)
    assert graph.applied == [
        ("add_nodes", {"node_id": 1}),
        ("add_edges", one),
        ("add_edges", two),
        ("remove_edges", one),
        ("add_edges", one),
    ]
    assert _shapes(graph) == [
        {"add_nodes": 1, "add_edges": 1},
        {"add_edges": 1},
        {"remove_edges": 1, "add_edges": 1},
    ]


def test_bodies_stay_below_the_servers_limit(tmp_path: Path) -> None:
    edges = _edges(200)
    with fake_graph(tmp_path, max_request_size=1000) as graph:  # which it checks
        _ingest(graph, _table(tmp_path / "e.csv", edges))
    assert graph.edges() == edges
    assert len(graph.requests) < 50


# What fails before anything is sent.


def test_a_file_that_does_not_fit_the_graph_changes_nothing(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(3))
    for options, problem in (
        (("--ids", "str"), "--ids str: the graph's node ids are int"),
        (("--weight", "target"), "e.csv: --weight target: the graph's edges have no weight"),
        (("--edge-features", "t*"), "the graph has 0 features|has no column 't"),
        (("--kind", "features"), "--features: is not given, but a node of the graph has 0 features"),
    ):
        with pytest.raises(HopserveError, match=problem):
            _ingest(graph, file, *options)
    graph.info["edge"]["time"] = True
    with pytest.raises(GraphInputError, match="e.csv: the graph's edges have a time, so name its column"):
        _ingest(graph, file)
    assert graph.bodies == []
    assert not (tmp_path / "cache" / "hopserve" / "ingest").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--features", "f*"), "--features does not go with --kind edges"),
        (("--kind", "nodes", "--weight", "w"), "--weight does not go with --kind nodes"),
        (("--format", "jsonl", "--source", "s"), "--source does not go with JSON lines"),
        (("--format", "parquet", "--delimiter", ","), "--delimiter and --header go with tables of text"),
    ],
)
def test_options_that_do_not_go_together(
    graph: FakeGraph, tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    command = [str(HOPSERVE), "ingest", str(_table(tmp_path / "e.csv", [])), "--ts-config", str(graph.config)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert problem in result.stderr


def test_no_such_file(graph: FakeGraph, tmp_path: Path) -> None:
    with pytest.raises(GraphInputError, match="missing.csv: no such file"):
        _ingest(graph, tmp_path / "missing.csv")


# What is refused on the way.


def test_the_row_to_blame_is_named(tmp_path: Path) -> None:
    file = tmp_path / "e.csv"
    file.write_text("source,target,weight\n" + "1,2,1\n" * 13 + "1,2,3e38\n" + "1,2,1\n")
    with fake_graph(tmp_path, weight=True) as graph:
        with pytest.raises(UpstreamError, match=r"e.csv:15: .* 400: add_edges\[3\]: weight is too large"):
            _ingest(graph, file, "--batch-size", 10)
        assert len(graph.applied) == 10
        graph.known = {1, 2}
        file.write_text("source,target,weight\n1,2,1\n1,77,1\n")
        with pytest.raises(UpstreamError, match=r"e.csv:3: .* 404: the graph has no node 77"):
            _ingest(graph, file)
        assert len(graph.applied) == 10
        _ingest(graph, file, "--create-missing")
        assert len(graph.applied) == 12
        graph.faults.append(400)
        with pytest.raises(UpstreamError, match=r"e.csv:2-3: .* 400: made up"):
            _ingest(graph, file, "--restart")


def test_bad_rows_end_it_or_are_skipped_later(
    graph: FakeGraph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _table(tmp_path / "e.csv", _edges(100_000))
    with file.open("a") as more:
        more.write("x,1\n" + "5,6\n" * 3)
    with pytest.raises(GraphInputError, match="e.csv:100002: .*'x' is not an integer"):
        _ingest(graph, file, "--batch-size", 1000)
    assert 0 < len(graph.applied) < 100_000
    result = _ingest(graph, file, "--skip-bad")
    assert "skipped 1 bad of 100004 rows" in result.stderr
    assert graph.edges() == [*_edges(100_000), *[(5, 6)] * 3]


# What is done again.


def test_the_same_file_is_sent_once_and_what_is_appended_too(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(25))
    _ingest(graph, file, "--batch-size", 10)
    result = _ingest(graph, file)
    assert "e.csv: nothing to send after line 26" in result.stdout
    with file.open("a") as more:
        more.write("7,8\n9,10\n")
    result = _ingest(graph, file)
    assert "going on after line 26, with 25 mutations acknowledged" in result.stderr
    assert "2 mutations in" in result.stdout
    assert graph.edges() == [*_edges(25), (7, 8), (9, 10)]


def test_a_file_of_more_than_a_mebibyte_grows_as_well(graph: FakeGraph, tmp_path: Path) -> None:
    edges = _edges(100_000)
    file = _table(tmp_path / "e.csv", edges[:90_000])
    assert file.stat().st_size > 1 << 20
    _ingest(graph, file)
    _ingest(graph, _table(file, edges))
    assert graph.edges() == edges


def test_a_restart_sends_all_again(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(5))
    _ingest(graph, file)
    _ingest(graph, file, "--restart")
    _ingest(graph, file)
    assert graph.edges() == _edges(5) * 2


def test_a_file_without_its_state_is_recognised_by_the_server(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(5))
    _ingest(graph, file, "--state", tmp_path / "state.json")
    (tmp_path / "state.json").unlink()
    result = _ingest(graph, file, "--state", tmp_path / "state.json")
    assert "5 mutations (5 of them the server had already) in" in result.stdout
    assert graph.edges() == _edges(5)


def test_another_file_in_its_place_begins_anew(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(5))
    _ingest(graph, file)
    result = _ingest(graph, _table(file, _edges(5, first=100)))
    assert "is another file than was sent from there before" in result.stderr
    assert graph.edges() == _edges(5) + _edges(5, first=100)


def test_a_file_that_changed_where_it_was_sent_is_told(graph: FakeGraph, tmp_path: Path) -> None:
    edges = _edges(100_000)
    file = _table(tmp_path / "e.csv", edges)
    _ingest(graph, file)
    _table(file, [*edges[:-1], (0, 0), (1, 1)])
    with pytest.raises(GraphInputError, match="begins as it did, but is another from line 90002 on"):
        _ingest(graph, file)
    assert graph.edges() == edges


def test_another_graph_at_the_same_place_is_told(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(5))
    _ingest(graph, file)
    graph.applied.clear()
    graph.info["log"] = {"first_seq": 0, "last_seq": 5, "lag": 5}  # the worker is behind, no more
    _ingest(graph, file)
    graph.info["log"] = {"error": "away"}
    with pytest.raises(GraphInputError, match="was sent up to seq 5, but http.* is at seq 0"):
        _ingest(graph, file)


def test_a_server_that_stays_away_ends_it_and_says_how_far_it_came(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(30))
    graph.faults += [None, None, *[503] * 1000]
    command = [str(HOPSERVE), "ingest", str(file), "--ts-config", str(graph.config), "--retry-for-s", "0.3"]
    result = subprocess.run([*command, "--batch-size", "10"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    *_, told, error = result.stderr.splitlines()
    how_far = "20 mutations were acknowledged, up to line 21, the last as seq 20"
    assert told == f"{file}: {how_far}; run the same again to go on"
    assert "answered 503" in error
    assert "tried for 0.3 s" in error
    graph.faults.clear()
    _ingest(graph, file)
    assert graph.edges() == _edges(30)


class _Crash(BaseException):
    """The process ends."""


_FAULTS = st.lists(st.sampled_from([None, None, 503, 500, 507, "drop", "lose"]), max_size=12)


@settings(max_examples=25)
@given(
    st.integers(1, 60),
    _FAULTS,
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4),
    st.lists(st.integers(1, 20), min_size=5, max_size=5),
    st.sampled_from([_text, _json, _parquet]),
    st.integers(0, 20),
)
def test_whatever_fails_everything_arrives_once_and_in_order(
    num_edges: int,
    faults: list[Any],
    crashes: list[tuple[int, bool]],
    batch_sizes: list[int],
    write: Callable[[Path, Edges], Path],
    num_appended: int,
) -> None:
    """Runs end at any note, before or after it is written, and go on with other batches or a longer file."""
    edges = _edges(num_edges)
    with tempfile.TemporaryDirectory() as folder, fake_graph(Path(folder)) as graph:
        file = write(Path(folder) / "e", edges)
        graph.faults += faults
        for size, crash in itertools.zip_longest(batch_sizes, crashes):
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("XDG_CACHE_HOME", folder)
                patched.setattr(journal, "replace_file", _failing(*crash) if crash else journal.replace_file)
                try:
                    _ingest(graph, file, "--batch-size", size)
                except _Crash:
                    pass
                else:
                    assert graph.edges() == edges
            if write is not _parquet:
                edges = edges + _edges(num_appended, first=len(edges))
                write(Path(folder) / "e", edges)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("XDG_CACHE_HOME", folder)
            _ingest(graph, file)
        assert graph.edges() == edges


def _failing(num_notes: int, is_written: bool) -> Callable[[Path, bytes], None]:
    """Ends the process at one of the notes."""
    write, left = journal.replace_file, [num_notes]

    def replace_file(path: Path, content: bytes) -> None:
        left[0] -= 1
        if left[0] >= 0:
            write(path, content)
            return
        if is_written:
            write(path, content)
        raise _Crash

    return replace_file


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([None, None, 400, 503, "drop", "lose"]), max_size=12),
    st.integers(2, 4),
    st.integers(0, 12),
    st.lists(st.integers(5, 9), min_size=15, max_size=15),
)
def test_with_several_connections_everything_arrives_once(
    faults: list[Any], num_connections: int, crash: int, batch_sizes: list[int]
) -> None:
    """Even if a request is refused when later ones have arrived."""
    edges = _edges(60)
    with (
        tempfile.TemporaryDirectory() as folder,
        fake_graph(Path(folder)) as graph,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("XDG_CACHE_HOME", folder)
        file = _table(Path(folder) / "e.csv", edges)
        graph.faults += faults
        for run, size in enumerate(batch_sizes):
            with pytest.MonkeyPatch.context() as crashing:
                if run == 0:
                    crashing.setattr(journal, "replace_file", _failing(crash, is_written=False))
                try:
                    _ingest(graph, file, "--batch-size", size, "--connections", num_connections)
                except (_Crash, UpstreamError):
                    continue
                break
        assert sorted(graph.edges()) == edges


# Pipes and interrupts, which take a process.


def _start(graph: FakeGraph, *arguments: object) -> subprocess.Popen[bytes]:
    command = [str(HOPSERVE), "ingest", "--ts-config", str(graph.config), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ((), [b"source,target\n1,2\n", b"3,4\n"]),
        (
            ("--format", "jsonl"),
            [b'{"source": 1, "target": 2}\n', b'{"add_edges": [{"source": 3, "target": 4}]}\n'],
        ),
    ],
)
def test_a_pipe_is_sent_as_it_comes(
    graph: FakeGraph, options: tuple[str, ...], lines: list[bytes], tmp_path: Path
) -> None:
    graph.faults.append("lose")
    with _start(graph, "-", *options) as process:
        assert process.stdin is not None
        for number, line in enumerate(lines, start=1):
            process.stdin.write(line)
            process.stdin.flush()
            _until(lambda number=number: len(graph.applied) == number)  # type: ignore[misc]
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert output.startswith(b"stdin: 2 mutations (1 of them the server had already) in")
    assert graph.edges() == [(1, 2), (3, 4)]
    assert not (tmp_path / "cache" / "hopserve" / "ingest").exists()


def test_a_pipe_whose_row_is_refused_ends_at_once(graph: FakeGraph) -> None:
    graph.known = {1, 2}
    with _start(graph, "-") as process:
        assert process.stdin is not None
        process.stdin.write(b"1,2\n1,3\n")
        process.stdin.flush()
        assert process.wait(30) == 1  # though the pipe is open
        assert process.stderr is not None
        assert b"stdin:2: TorchServe answered 404: the graph has no node 3" in process.stderr.read()


def test_a_table_of_parquet_through_a_pipe(graph: FakeGraph, tmp_path: Path) -> None:
    content = _parquet(tmp_path / "e", _edges(5)).read_bytes()
    with _start(graph, "-", "--format", "parquet") as process:
        process.communicate(content)
    assert graph.edges() == _edges(5)


def test_a_named_pipe(graph: FakeGraph, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with _start(graph, tmp_path / "pipe") as process:
        with (tmp_path / "pipe").open("wb") as writing:
            writing.write(b"1,2\n")
        assert process.wait(30) == 0
    assert graph.edges() == [(1, 2)]


def test_an_interrupt_says_how_far_it_came_and_can_be_gone_on_with(graph: FakeGraph, tmp_path: Path) -> None:
    file = _table(tmp_path / "e.csv", _edges(30))
    graph.faults += [None, *[503] * 1000]
    with _start(graph, file, "--batch-size", 10) as process:
        _until(lambda: len(graph.bodies) > 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"10 mutations were acknowledged, up to line 11, the last as seq 10" in errors
    graph.faults.clear()
    _ingest(graph, file, "--batch-size", 4)
    assert graph.edges() == _edges(30)
