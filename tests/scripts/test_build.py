"""`hopserve graph build`: what users bring becomes a snapshot, or one line that says why not."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner, Result
from torch_geometric.data import Data

from handler.errors import HopserveError
from handler.graph.fanout import FanoutPlan
from handler.graph.home import GraphHome, open_held
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot, verify
from scripts.cli.main import hopserve

_PLAN = FanoutPlan.of((2, 2))
EDGES = "source,target,weight,time,kind\na,b,1,10,0.5\nb,c,2,20,1.5\nc,a,-3,30,2.5\n"
NODES = "id,f1,f2,class,part\na,1,0,x,train\nb,2,0,y,val\nc,3,5,,\nd,4,0,x,test\n"


def _build(folder: Path, *arguments: object) -> Result:
    command = ["graph", "build", "--out", str(folder / "graph"), *map(str, arguments)]
    return CliRunner().invoke(hopserve, command, catch_exceptions=False, standalone_mode=False)


def _refuse(folder: Path, *arguments: object) -> str:
    """The error of a build that fails, and leaves nothing."""
    before = sorted(folder.iterdir())
    with pytest.raises(HopserveError) as caught:
        _build(folder, *arguments)
    assert sorted(folder.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    path = tmp_path / "edges.csv"
    path.write_text(EDGES)
    return path


def _links(snapshot: Snapshot) -> set[tuple[object, object]]:
    target = np.repeat(np.arange(snapshot.num_nodes), np.diff(snapshot.adjacency.indptr))
    ids = snapshot.ids.id_of
    return set(zip(ids(snapshot.adjacency.indices.astype(np.int64)), ids(target), strict=True))


def test_two_tables_with_everything(tmp_path: Path, edges: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    result = _build(
        tmp_path, "--edges", edges, "--nodes", tmp_path / "nodes.csv", "--weight", "weight", "--time", "time",
        "--edge-features", "kind", "--features", "f*", "--label", "class", "--split", "part",
        "--ordering", "recent", "--also-order", "top_weight", "--feature-dtype", "float16",
    )  # fmt: skip
    assert "4 nodes, 3 edges" in result.stdout
    snapshot = verify(tmp_path / "graph")
    assert _links(snapshot) == {("a", "b"), ("b", "c"), ("c", "a")}
    adjacency = snapshot.adjacency
    assert adjacency.edge_weight is not None
    assert adjacency.edge_weight.tolist() == [-3, 1, 2]
    assert adjacency.edge_time is not None
    assert adjacency.edge_time.tolist() == [30, 10, 20]
    assert adjacency.edge_attr is not None
    assert adjacency.edge_attr.tolist() == [[2.5], [0.5], [1.5]]
    assert snapshot.features is not None
    assert snapshot.features.dtype == np.float16
    assert snapshot.features.gather(np.arange(4)).tolist() == [[1, 0], [2, 0], [3, 5], [4, 0]]
    assert snapshot.label is not None
    assert snapshot.label.tolist() == [0, 1, -1, 0]
    assert snapshot.manifest.label_names == ("x", "y")
    assert snapshot.split is not None
    assert snapshot.split.tolist() == [1, 2, 0, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.csv", "graph", "nodes.csv"]


def test_a_build_makes_a_home_that_every_command_takes(tmp_path: Path, edges: Path) -> None:
    _build(tmp_path, "--edges", edges)
    folder = tmp_path / "graph"
    home = GraphHome.read(folder)
    assert home.current.name == "snapshot-0"

    def run(*arguments: str) -> str:
        command = ["graph", *arguments]
        return CliRunner().invoke(hopserve, command, catch_exceptions=False, standalone_mode=False).stdout

    assert "is now sampled by seeded, first" in run("add-ordering", str(folder), "--strategy", "first")
    info = json.loads(run("info", str(folder)))
    assert (info["graph_id"], info["folder"]) == (home.graph_id, str(home.current))
    assert info["extra_orderings"] == [{"strategy": "first", "seed": 0}]
    assert "intact: 3 nodes, 3 edges" in run("verify", str(folder))
    assert json.loads(run("sample", str(folder), "b"))["hops"][1] == ["a"]


def test_a_graph_that_is_served_is_not_replaced(tmp_path: Path, edges: Path) -> None:
    _build(tmp_path, "--edges", edges)
    assert "a snapshot is there already" in _refuse(tmp_path, "--edges", edges)
    with open_held(tmp_path / "graph"):
        message = _refuse(tmp_path, "--edges", edges, "--force")
    assert message.startswith(f"{tmp_path / 'graph'}: is being served")
    _build(tmp_path, "--edges", edges, "--force")


@pytest.mark.parametrize(
    ("age", "wanted"), [("15", 15), ("2.5e3", 2500), ("12h", 43_200), ("30d", 2_592_000)]
)
def test_edges_have_a_greatest_age(tmp_path: Path, edges: Path, age: str, wanted: float) -> None:
    _build(tmp_path, "--edges", edges, "--time", "time", "--max-edge-age", age, "--duplicates", "keep")
    rules = Snapshot.open(tmp_path / "graph").manifest.rules
    assert rules == EdgeRules(duplicates="keep", max_edge_age=wanted)


@pytest.mark.parametrize("age", ["0", "-3", "soon", "1.2.3", "12H", "inf", "nan", "1e999", ""])
def test_an_age_that_is_none_is_refused(tmp_path: Path, edges: Path, age: str) -> None:
    command = [
        "graph",
        "build",
        "--out",
        str(tmp_path / "graph"),
        "--edges",
        str(edges),
        "--max-edge-age",
        age,
    ]
    result = CliRunner().invoke(hopserve, command)
    assert result.exit_code == 2
    assert "is no age, such as 2592000, 12h or 30d" in result.stderr


def test_a_greatest_age_needs_times(tmp_path: Path, edges: Path) -> None:
    assert "a greatest age of edges needs edge times" in _refuse(
        tmp_path, "--edges", edges, "--max-edge-age", "1"
    )
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]))
    assert "a greatest age of edges needs edge times" in _refuse(
        tmp_path, "--npz", tmp_path / "g.npz", "--max-edge-age", "1"
    )


def test_the_same_edges_in_every_format_are_the_same_graph(tmp_path: Path) -> None:
    pairs = [(7, 3), (3, 12), (12, 7), (7, 12)]
    source, target = (np.array(ends) for ends in zip(*pairs, strict=True))
    place = {3: 0, 7: 1, 12: 2}
    index = np.array([[place[u], place[v]] for u, v in pairs]).T
    (tmp_path / "a.csv").write_text("source,target\n" + "".join(f"{u},{v}\n" for u, v in pairs))
    (tmp_path / "b.txt").write_text("# SNAP\n" + "".join(f"{u} {v}\n" for u, v in pairs))
    (tmp_path / "c.tsv").write_text("to\tfrom\n" + "".join(f"{v}\t{u}\n" for u, v in pairs))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress("".join(f"{u};{v}\r\n" for u, v in pairs).encode()))
    pq.write_table(pa.table({"source": source, "target": target}), tmp_path / "e.parquet")
    np.savez(tmp_path / "f.npz", edge_index=index, node_id=np.array([3, 7, 12]))
    torch.save(Data(edge_index=torch.from_numpy(index), node_id=torch.tensor([3, 7, 12])), tmp_path / "g.pt")
    network = nx.DiGraph(sorted(pairs))
    nx.write_graphml(network, tmp_path / "h.graphml")
    nx.write_gexf(network, tmp_path / "i.gexf")
    nx.write_edgelist(network, tmp_path / "j.edgelist.gz")
    asked: list[list[object]] = [
        ["--edges", "a.csv"], ["--edges", "b.txt"],
        ["--edges", "c.tsv", "--source", "from", "--target", "to"],
        ["--edges", "d.csv.gz", "--delimiter", ";", "--no-header"], ["--edges", "e.parquet"],
        ["--npz", "f.npz"], ["--pyg", "g.pt"], ["--network", "h.graphml"], ["--network", "i.gexf"],
        ["--network", "j.edgelist.gz"],
    ]  # fmt: skip
    samples = []
    for option, file, *more in asked:
        assert _build(tmp_path, option, tmp_path / str(file), *more, "--force", "--name", "g").exit_code == 0
        snapshot = verify(tmp_path / "graph")
        assert _links(snapshot) == set(pairs)
        rows = snapshot.sampler().trees(snapshot.ids.index_of([12, 7, 3]), _PLAN)
        samples.append(snapshot.ids.id_of(rows.node))
    assert all(sample == samples[0] for sample in samples)


def test_undirected_networks_count_both_ways(tmp_path: Path) -> None:
    nx.write_graphml(nx.path_graph(3), tmp_path / "path.graphml")
    assert "3 nodes, 4 edges" in _build(tmp_path, "--network", tmp_path / "path.graphml").stdout


def test_the_report_counts_what_did_not_stay(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("source,target\na,b\nb,a\na,a\na,b\nb\na,\n")
    message = _refuse(tmp_path, "--edges", path)
    assert message == f"{path}:6: has 1 columns, not 2"
    result = _build(tmp_path, "--edges", path, "--skip-bad", "--self-loops", "drop", "--undirected")
    assert "2 nodes, 2 edges (without 4 repeats, without 1 self-loops)" in result.stdout
    assert f"{path}: skipped 2 bad of 6 rows, such as" in result.stderr
    assert f"{path}:7: " in result.stderr


MALFORMED: list[tuple[bytes, list[str], str]] = [
    (
        b"source,target\na,b\n",
        ["--source", "from"],
        "has no column 'from'; its columns are 'source', 'target'",
    ),
    (b"source,target\na,b\nc,d,e\n", [], ":3: has 3 columns, not 2"),
    (b"source,target\na,b\n\xff\xfe,c\n", [], "edges.csv:3: column 'source': "),
    (b"1,2\n3,99999999999999999999\n", ["--ids", "int"], ":2: column '1': '99999999999999999999'"),
    (b"s,t,w\n1,2,0.5\n1,3,nan\n", ["--weight", "w"], ":3: column 'w': 'nan'"),
    (b"s,t,w\n1,2,0.5\n1,3,x\n", ["--weight", "w"], ":3: column 'w': 'x'"),
    (
        b"s,t,w\n1,2,0.5\n1,3,-1\n",
        ["--weight", "w", "--ordering", "weighted"],
        "needs positive weights, but one is -1",
    ),
    (b"s,t\n1,2\n", ["--ordering", "recent"], "`recent` needs edges with a time"),
    (b"s,t,when\n1,2,3\n2,1,soon\n", ["--time", "when"], ":3: column 'when': 'soon'"),
    (b"", [], "the file has neither rows nor a header"),
    (b"source,target\n", [], "the graph is empty"),
    (b"source\na\n", [], "column"),
]


@pytest.mark.parametrize(("content", "arguments", "problem"), MALFORMED)
def test_malformed_edges_are_refused_by_file_and_line(
    tmp_path: Path, content: bytes, arguments: list[str], problem: str
) -> None:
    path = tmp_path / "edges.csv"
    path.write_bytes(content)
    message = _refuse(tmp_path, "--edges", path, *arguments)
    assert problem in message
    assert str(path) in message or "ordering" in message


NODES_MALFORMED: list[tuple[str, list[str], str]] = [
    ("id\na\nb\n", [], "edges.csv:3: edge names node 'c', which is not in"),
    ("id,f1\na,1\nb,\nc,nan\nd,4\n", ["--features", "f1"], "2 nodes"),
    ("id,f1\na,1\nb,2\nc,3\nd,4\n", ["--features", "g*"], "'g*'"),
    ("id,f1\na,1\nb,2\nb,3\n", [], "nodes.csv:4: "),
    ("id,part\na,train\nb,maybe\nc,test\n", ["--split", "part"], "nodes.csv:3: column 'part': 'maybe'"),
]


@pytest.mark.parametrize(("content", "arguments", "problem"), NODES_MALFORMED)
def test_malformed_nodes_are_refused(
    tmp_path: Path, edges: Path, content: str, arguments: list[str], problem: str
) -> None:
    (tmp_path / "nodes.csv").write_text(content)
    message = _refuse(tmp_path, "--edges", edges, "--nodes", tmp_path / "nodes.csv", *arguments)
    assert problem in message


def test_missing_features_are_named_by_node(tmp_path: Path, edges: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,f1,f2\na,1,1\nb,,1\nc,1,inf\n")
    message = _refuse(tmp_path, "--edges", edges, "--nodes", tmp_path / "nodes.csv", "--features", "f*")
    assert "'b' (f1)" in message
    assert "'c' (f2)" in message
    np.savez(
        tmp_path / "x.npz",
        edge_index=np.array([[0], [1]]),
        x=np.array([[1.0], [np.nan]]),
        node_id=np.array(["u", "v"]),
    )
    assert "the features of 1 node ('v') hold NaN or infinity" in _refuse(
        tmp_path, "--npz", tmp_path / "x.npz"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--npz", "a.npz", "--edges", "b.csv"],
        ["--nodes", "a.csv", "--npz", "b.npz"],
        ["--npz", "a.npz", "--source", "x"],
        ["--edges", "a.csv", "--label", "x"],
        [],
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    command = ["graph", "build", "--out", str(tmp_path / "graph"), *arguments]
    result = CliRunner().invoke(hopserve, command)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


def _import_command(edges: Path, out: Path) -> list[str | Path]:
    hopserve_command = Path(sys.executable).parent / "hopserve"
    return [hopserve_command, "graph", "build", "--edges", edges, "--out", out]


@pytest.mark.parametrize("limit_bytes", [0, 50_000, 300_000])
def test_a_disk_that_fills_up_during_an_import_leaves_nothing(tmp_path: Path, limit_bytes: int) -> None:
    path = tmp_path / "edges.csv"
    pairs = np.random.default_rng(0).integers(0, 9999, (50_000, 2))
    path.write_text("source,target\n" + "".join(f"{u},{v}\n" for u, v in pairs))

    def fill_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    command = _import_command(path, tmp_path / "graph")
    _build(tmp_path, "--edges", path)  # kernels are compiled and kept: not even their files can grow below
    shutil.rmtree(tmp_path / "graph")
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=fill_disk,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert result.returncode == 1
    assert (
        result.stderr.splitlines()[-1] == f"hopserve: {tmp_path / 'graph'}: cannot be written: File too large"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["edges.csv"]


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("source,target\n" + "1,2\n3,4\n" * 5_000_000)
    command = _import_command(path, tmp_path / "graph")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "reading edges.csv\n"
        while process.poll() is None:  # libraries may swallow one; a person would try again, too
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
    assert process.returncode == 130
    assert [file.name for file in tmp_path.iterdir()] == ["edges.csv"]


def test_every_real_graph_has_the_counts_of_its_documentation(
    dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    counts = {
        "amazon_photo": (7650, 238162), "bitcoin_otc": (5881, 35592), "citeseer": (3327, 9104),
        "cora": (2708, 10556), "digg_reply": (30398, 87627), "mathoverflow": (24818, 506550),
        "musae_facebook": (22470, 341646), "musae_github": (37700, 578006), "pubmed_partial": (19717, 88648),
        "tolokers": (11758, 1038000), "twitch_de": (9498, 306276), "wikipedia_jodie": (9227, 157474),
    }  # fmt: skip
    for name, wanted in counts.items():
        result = _build(tmp_path, "--npz", dataset(name), "--duplicates", "keep", "--force")
        assert f"{wanted[0]} nodes, {wanted[1]} edges" in result.stdout
        verify(tmp_path / "graph")
    assert (
        "18657 nodes have only zeros as features"
        in _build(tmp_path, "--npz", dataset("pubmed_partial"), "--force").stdout
    )


def test_events_become_distinct_pairs(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    distinct = {"digg_reply": 86404, "mathoverflow": 239978, "wikipedia_jodie": 18257}
    for name, wanted in distinct.items():
        result = _build(tmp_path, "--npz", dataset(name), "--duplicates", "sum", "--force")
        assert f" {wanted} edges" in result.stdout
    loops = _build(
        tmp_path, "--npz", dataset("digg_reply"), "--duplicates", "keep", "--self-loops", "drop", "--force"
    )
    assert "without 1424 self-loops" in loops.stdout


def test_signed_ratings_and_times_of_a_real_graph(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    path = dataset("bitcoin_otc")
    assert "needs positive weights" in _refuse(
        tmp_path, "--npz", path, "--weight", "rating", "--ordering", "weighted"
    )
    _build(
        tmp_path, "--npz", path, "--weight", "rating", "--ordering", "recent", "--also-order", "top_weight"
    )
    snapshot = verify(tmp_path / "graph")
    assert snapshot.adjacency.edge_weight is not None
    assert (snapshot.adjacency.edge_weight < 0).sum() == 3563


def test_triples_of_a_knowledge_graph(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    """The relation becomes an edge feature; the node table brings entities that no training triple names."""
    with np.load(dataset("fb15k_237")) as arrays:
        names, triples = arrays["entities"], arrays["train"]
        head, relation, tail = (pa.array(column) for column in triples.T)
    decoded = pa.array([name.decode() for name in names.tolist()])
    pq.write_table(pa.table({"entity": decoded}), tmp_path / "entities.parquet")
    triples_table = pa.table({"head": decoded.take(head), "relation": relation, "tail": decoded.take(tail)})
    pq.write_table(triples_table, tmp_path / "train.parquet")
    result = _build(
        tmp_path, "--edges", tmp_path / "train.parquet", "--nodes", tmp_path / "entities.parquet",
        "--source", "head", "--target", "tail", "--edge-features", "relation", "--duplicates", "keep",
    )  # fmt: skip
    assert "14541 nodes, 272115 edges" in result.stdout
    snapshot = verify(tmp_path / "graph")
    assert snapshot.adjacency.edge_attr is not None
    assert set(np.unique(snapshot.adjacency.edge_attr)) == set(range(237))
    assert json.dumps(snapshot.ids.id_of(np.array([0]))) == f'["{names[0].decode()}"]'
