"""Tables become graphs, whatever their ids are, and whatever is wrong in them is told."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from archive.tables import blocks
from archive.tables.edges import EdgeTable
from archive.tables.format import TableFormat
from archive.tables.graph import TableGraph, read_table_graph
from archive.tables.nodes import NodeTable
from handler.errors import GraphInputError

_STR = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='\r\n,"'), min_size=1, max_size=4)


class _Read(Protocol):
    def __call__(self, edges: str, nodes: str | None = None, **options: Any) -> TableGraph: ...


@pytest.fixture
def read(tmp_path: Path) -> Iterator[_Read]:
    """Make a graph of text; what tables take is given as `edge_*` and `node_*`."""
    opened: list[TableGraph] = []

    def read(edges: str, nodes: str | None = None, **options: Any) -> TableGraph:
        (tmp_path / "edges.csv").write_text(edges)
        (tmp_path / "nodes.csv").write_text(nodes or "")
        edge_table = EdgeTable(tmp_path / "edges.csv", **_part(options, "edge_"))
        node_table = None if nodes is None else NodeTable(tmp_path / "nodes.csv", **_part(options, "node_"))
        work = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        work.mkdir()
        opened.append(read_table_graph("g", edge_table, node_table, work=work, **options))
        return opened[-1]

    yield read
    for graph in opened:
        graph.close()


def test_an_edge_table_is_a_graph(read: _Read) -> None:
    graph = read("source,target,since\n30,10,1\n10,20,2\n30,10,3\n")
    assert (graph.name, graph.num_nodes, len(graph.edges)) == ("g", 3, 3)
    assert graph.ids.id_of(np.arange(3)) == [10, 20, 30]
    assert _edges(graph) == [(2, 0), (0, 1), (2, 0)]
    assert (graph.features, graph.label, graph.label_names, graph.split) == (None, None, None, None)
    assert [(report.num_rows, report.num_skipped) for report in graph.reports] == [(3, 0)]


def test_strings_ascend_by_code_point(read: _Read) -> None:
    graph = read("source,target\nz,é\nZ,ab\nab,a\n")
    assert graph.ids.id_of(np.arange(5)) == ["Z", "a", "ab", "z", "é"]
    assert _edges(graph) == [(3, 4), (0, 2), (2, 1)]


def test_ids_that_are_positions_are_kept_as_such(read: _Read) -> None:
    assert read("source,target\n2,0\n1,2\n").ids.kind == "range"
    assert read("source,target\n2,1\n", "id\n0\n1\n2\n").ids.kind == "range"
    assert read("source,target\n2,1\n", "id\n1\n0\n2\n").ids.kind == "int"


@given(st.lists(st.tuples(_STR, _STR), min_size=1), st.randoms(use_true_random=False))
def test_nodes_do_not_depend_on_the_order_of_rows(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[str, str]], random: Any
) -> None:
    edges = [edge for edge in edges if edge[0].strip() and edge[1].strip()] or [("a", "b")]
    shuffled = random.sample(edges, len(edges))
    seen = []
    for rows in (edges, shuffled):
        folder = tmp_path_factory.mktemp("g")
        (folder / "e.csv").write_text("source,target\n" + "".join(f"{s},{t}\n" for s, t in rows), "utf-8")
        graph = read_table_graph("g", EdgeTable(folder / "e.csv"), None, id_type="str", work=folder)
        ids = graph.ids.id_of(np.arange(graph.num_nodes))
        seen.append(ids)
        assert [(ids[source], ids[target]) for source, target in _edges(graph)] == rows
        graph.close()
    assert (
        seen[0]
        == seen[1]
        == sorted({end for edge in edges for end in edge}, key=lambda node_id: node_id.encode())
    )


def test_edges_are_the_same_in_small_blocks(read: _Read, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "source,target,w\n" + "".join(f"{i * 7 % 31},{i * 5 % 29},{i}\n" for i in range(200))
    whole = read(rows, edge_weight="w")
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 50)
    parts = read(rows, edge_weight="w")
    assert _edges(whole) == _edges(parts) == [(i * 7 % 31, i * 5 % 29) for i in range(200)]
    assert [w for block in parts.edges.blocks() for w in _list(block.weight)] == list(range(200))


def test_edges_have_weights_times_and_features(read: _Read) -> None:
    rows = "from,to,w,at,f1,f2\na,b,-1.5,1970-01-02,1,2\nb,a,2,1970-01-01,3,4\n"
    graph = read(rows, edge_weight="w", edge_time="at", edge_features=("f*",), feature_dtype="float16")
    (block,) = graph.edges.blocks()
    assert _list(block.weight) == [-1.5, 2]
    assert _list(block.time) == [86400, 0]
    assert _list(block.attr) == [[1, 2], [3, 4]]
    assert block.columns()["attr"].dtype == np.float16
    assert (graph.edges.fields.attr_dim, graph.edges.fields.attr_dtype) == (2, "float16")


def test_the_ends_are_columns_by_name_or_the_first_two(read: _Read) -> None:
    assert _edges(read("w,target,source\n9,1,0\n")) == [(0, 1)]
    assert _edges(read("0 1\n1 0\n", edge_format=TableFormat(" "))) == [(0, 1), (1, 0)]
    assert _edges(read("a,b,c\n9,1,0\n", edge_source="c", edge_target="b")) == [(0, 1)]
    assert _edges(read("a,target\n0,1\n", edge_source="a")) == [(0, 1)]
    with pytest.raises(GraphInputError, match="edges.csv: has no column 'target'; its columns are 'a', 'b'"):
        read("a,b\n0,1\n", edge_source="a")
    with pytest.raises(GraphInputError, match="edges.csv: source and target are both column 'a'"):
        read("a,b\n0,1\n", edge_source="a", edge_target="a")
    with pytest.raises(GraphInputError, match="an edge needs two columns, but there is only 'a;b'"):
        read("a;b\n0;1\n")


def test_a_node_table_gives_nodes_their_order_and_more(read: _Read) -> None:
    nodes = "split,f2,id,f1,kind\ntrain,1,b,2,x\n,3,a,4,\nval,5,c,6,y\ntest,7,d,8,x\n"
    options = {"node_features": ("f1", "f*"), "node_label": "kind", "node_split": "split"}
    graph = read("source,target\na,b\nd,a\n", nodes, **options)
    assert graph.ids.id_of(np.arange(4)) == ["b", "a", "c", "d"]
    assert _edges(graph) == [(1, 0), (3, 1)]
    assert graph.features is not None
    x = graph.features.arrays()["x"]
    assert x.tolist() == [[2, 1], [4, 3], [6, 5], [8, 7]]
    assert x.dtype == np.float32
    assert _list(graph.label) == [0, -1, 1, 0]
    assert graph.label_names == ("x", "y")
    assert _list(graph.split) == [1, 0, 2, 3]
    assert graph.split.dtype == np.uint8
    assert [report.num_rows for report in graph.reports] == [4, 2]


def test_classes_that_are_integers_are_sorted_as_such(read: _Read) -> None:
    graph = read("source,target\n0,1\n", "id,y\n0,10\n1, 9\n2,\n3,-1\n", node_label="y")
    assert graph.label_names == ("-1", "9", "10")
    assert _list(graph.label) == [2, 1, -1, 0]
    graph = read("source,target\n0,1\n", "id,y\n0,10\n1,9\n2,b\n", node_label="y")
    assert graph.label_names == ("10", "9", "b")
    graph = read("source,target\n0,1\n", "id,y\n0,\n1,\n", node_label="y")
    assert (graph.label_names, _list(graph.label)) == ((), [-1, -1])


def test_patterns_match_no_column_that_is_used_otherwise(read: _Read) -> None:
    nodes = "node_id,y,a[0],b\n0,1,2,3\n1,1,4,5\n"
    graph = read("0,1\n", nodes, node_features=("*",), node_label="y")
    assert _x(graph) == [[2, 3], [4, 5]]
    graph = read("0,1\n", nodes, node_features=("a[0]",))
    assert _x(graph) == [[2], [4]]
    with pytest.raises(
        GraphInputError, match="nodes.csv: has no column 'g\\*'; its columns are 'node_id', 'y'"
    ):
        read("0,1\n", nodes, node_features=("g*",))
    with pytest.raises(GraphInputError, match="nodes.csv: column 'y' is no feature: it is used otherwise"):
        read("0,1\n", nodes, node_features=("y",), node_label="y")


def test_the_node_id_is_a_column_by_name_or_the_first(read: _Read) -> None:
    for nodes in ("x,node_id,id\n5,0,7\n6,1,8\n", "x,id\n5,0\n6,1\n", "k,x\n0,5\n1,6\n", "0,5\n1,6\n"):
        assert read("0,1\n", nodes).ids.kind == "range"
    assert read("7,8\n", "node_id,id\n0,7\n1,8\n", node_node_id="id").ids.id_of(np.arange(2)) == [7, 8]


@pytest.mark.parametrize(
    ("edges", "nodes", "options", "problem"),
    [
        (
            "a,b\n1,2\n\nx,3\n",
            None,
            {"id_type": "int"},
            "edges.csv:4: column 'a': 'x' is not an integer {advice}",
        ),
        ("a,b\nx,\n", None, {}, "edges.csv:2: column 'b' is empty"),
        ("a,b\n1,2\n3\n", None, {}, "edges.csv:3: has 1 columns, not 2"),
        ("a,b,w\n1,2,inf\n", None, {"edge_weight": "w"}, "edges.csv:2: column 'w': 'inf' is not finite"),
        ("a,b,f\n1,2,\n", None, {"edge_features": ("f",)}, "edges.csv:2: column 'f' is empty"),
        (
            "a,b,f\n1,2,70000\n",
            None,
            {"edge_features": ("f",), "feature_dtype": "float16"},
            "edges.csv:2: column 'f': '70000' does not fit float16",
        ),
        ("a,b\n", None, {}, "edges.csv: {empty} the table has no rows"),
        ("a,b\n", "id\n", {}, "nodes.csv: {empty} the table has no rows"),
        (
            "a,b\n,x\n",
            None,
            {"skip_bad": True},
            "edges.csv: {empty} all of its 1 rows are bad: {edges}:2: column 'a' is empty",
        ),
        ("1,2\n", "id\n1\n2\n1\n", {}, "nodes.csv:4: node 1 is given twice"),
        (
            "x,y\n",
            "id\nx\ny\nx\n",
            {"edge_format": TableFormat(header=False)},
            "nodes.csv:4: node 'x' is given twice",
        ),
        ("1,2\n1,3\n", "id\n1\n2\n", {}, "edges.csv:2: edge names node 3, which is not in {nodes}"),
        ("a,b\nx,y\n", "id\nx\nz\n", {}, "edges.csv:2: edge names node 'y', which is not in {nodes}"),
        ("a,b\nx,1\n", "id\n1\n2\n", {}, "edges.csv:2: column 'a': 'x' is not an integer {advice}"),
        (
            "1,2\n",
            "id,s\n1,val\n2,valid\n",
            {"node_split": "s"},
            "nodes.csv:3: column 's': 'valid' is not train, val, test or empty",
        ),
        (
            "1,2\n",
            "id,f\n1,x\n2,1\n",
            {"node_features": ("f",)},
            "nodes.csv:2: column 'f': 'x' is not a number",
        ),
        ("1,2\n", "id,f\n1,1\n2,\n", {"node_features": ("f",)}, "nodes.csv: 1 node has {gaps} 2 (f)"),
        (
            "1,2\n",
            "id,f,g\n1,1,nan\n2,,\n3,inf,1\n4,1,1\n5,1e39,1\n",
            {"node_features": ("f", "g")},
            "nodes.csv: 4 nodes have {gaps} 1 (g), 2 (f), 3 (f), 5 (f)",
        ),
        (
            "1,2\n",
            "id,f\n" + "".join(f"{i},\n" for i in range(7)),
            {"node_features": ("f",)},
            "nodes.csv: 7 nodes have {gaps} 0 (f), 1 (f), 2 (f), 3 (f), 4 (f), ...",
        ),
        (
            "1,2\n",
            "id,f\n1,70000\n",
            {"node_features": ("f",), "feature_dtype": "float16"},
            "nodes.csv: 1 node has {gaps} 1 (f)",
        ),
        ("a,b\n1,2\n", None, {"edge_weight": "w"}, "edges.csv: has no column 'w'; its columns are 'a', 'b'"),
        ("1,2\n", "id\n1\n", {"node_label": "y"}, "nodes.csv: has no column 'y'; its columns are 'id'"),
    ],
)
def test_what_is_no_graph_is_refused(
    read: _Read, tmp_path: Path, edges: str, nodes: str | None, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(GraphInputError) as caught:
        read(edges, nodes, **options)
    filled = problem.format(
        edges=tmp_path / "edges.csv",
        nodes=tmp_path / "nodes.csv",
        advice="(for ids that are text, use --ids str)",
        gaps="missing or non-finite features:",
        empty="the graph is empty:",
    )
    assert str(caught.value) == f"{tmp_path}/{filled}"


def test_bad_rows_can_be_skipped_and_are_counted(read: _Read, tmp_path: Path) -> None:
    nodes = "id,f,y\na,1,u\nb,,v\nc,3,w\na,5,x\nd\ne,x,y\nf,6,u\n"
    edges = "source,target,w\na,c,1\na,b,1\nc,f,2\nf,a,x\nf,a,3,\n,a,1\nf,f,4\n"
    graph = read(edges, nodes, node_features=("f",), node_label="y", edge_weight="w", skip_bad=True)
    assert graph.ids.id_of(np.arange(3)) == ["a", "c", "f"]
    assert _x(graph) == [[1], [3], [6]]
    assert graph.label_names == ("u", "w")
    assert _edges(graph) == [(0, 1), (1, 2), (2, 2)]
    (block,) = graph.edges.blocks()
    assert _list(block.weight) == [1, 2, 4]
    of_nodes, of_edges = graph.reports
    assert (of_nodes.num_rows, of_nodes.num_skipped) == (7, 4)
    assert of_nodes.messages == (
        f"{tmp_path}/nodes.csv:3: node 'b' has a missing or non-finite feature (f)",
        f"{tmp_path}/nodes.csv:5: node 'a' is given twice",
        f"{tmp_path}/nodes.csv:6: has 1 columns, not 3",
        f"{tmp_path}/nodes.csv:7: column 'f': 'x' is not a number",
    )
    assert (of_edges.num_rows, of_edges.num_skipped) == (7, 4)
    assert of_edges.messages[0].endswith(f"edges.csv:3: edge names node 'b', which is not in {of_nodes.path}")


def test_a_skipped_row_makes_no_nodes(read: _Read) -> None:
    graph = read("a,b,w\n1,2,1\n3,4,x\n5,x,1\n", edge_weight="w", skip_bad=True, id_type="int")
    assert graph.ids.id_of(np.arange(graph.num_nodes)) == [1, 2]


def test_nodes_without_edges_are_a_graph(read: _Read) -> None:
    graph = read("source,target\n", "id,f\nx,1\ny,2\n", node_features=("f",))
    assert (graph.num_nodes, len(graph.edges), list(graph.edges.blocks())) == (2, 0, [])


def test_the_type_of_ids_is_that_of_the_first_chunk_or_the_users(
    read: _Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read("a,b\n1,2\n").ids.id_type is int
    assert read("a,b\n1,2\n", id_type="str").ids.id_type is str
    assert read("a,b\n1,02\n").ids.id_of(np.arange(2)) == ["02", "1"]
    assert read("a,b\n1,02\n", id_type="int").ids.id_of(np.arange(2)) == [1, 2]
    assert read("a,b\n1,2\n", "id\n1\n2\nx\n").ids.id_type is str
    assert read("a,b\n1,2\n").id_note is None
    assert "edges.csv:2: column 'b': '02' is not a plain integer" in str(read("a,b\n1,02\n3,4\n").id_note)
    assert "nodes.csv:4: column 'id': 'x'" in str(read("a,b\n1,2\n", "id\n1\n2\nx\n").id_note)
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 8)
    with pytest.raises(GraphInputError, match="edges.csv:4: column 'a': 'x' is not an integer .*--ids str"):
        read("a,b\n1,2\n1,2\nx,2\n")


def test_bad_nodes_in_several_blocks_are_found(read: _Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 8)
    rows = "id,f\n" + "".join(f"{i},{i if i % 3 else ''}\n" for i in range(10)) + "4,1\n"
    graph = read("1,2\n", rows, node_features=("f",), skip_bad=True)
    assert graph.ids.id_of(np.arange(graph.num_nodes)) == [1, 2, 4, 5, 7, 8]
    assert _x(graph) == [
        [1],
        [2],
        [4],
        [5],
        [7],
        [8],
    ]
    assert graph.reports[0].num_skipped == 5


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_parquet_is_a_graph_too(tmp_path: Path, as_dictionary: bool) -> None:
    ids = pa.array(["b", "a"])
    nodes = {"id": ids.dictionary_encode() if as_dictionary else ids, "f": [1.0, 2.0], "y": [3, None]}
    pa.parquet.write_table(pa.table(nodes), tmp_path / "n.parquet")
    (tmp_path / "e.tsv.gz").write_bytes(gzip.compress(b"a\tb\nb\tb\n"))
    edges = EdgeTable(tmp_path / "e.tsv.gz", TableFormat(header=False))
    table = NodeTable(tmp_path / "n.parquet", features=("f",), label="y")
    graph = read_table_graph("g", edges, table, work=tmp_path)
    assert graph.ids.id_of(np.arange(2)) == ["b", "a"]
    assert _edges(graph) == [(1, 0), (0, 0)]
    assert graph.label_names == ("3",)
    assert _list(graph.label) == [0, -1]
    graph.close()


def test_a_missing_feature_in_parquet_is_a_gap(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"id": [1, 2], "f": [1.0, None]}), tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("1,2\n")
    nodes = NodeTable(tmp_path / "n.parquet", features=("f",))
    with pytest.raises(
        GraphInputError, match=r"n.parquet: 1 node has missing or non-finite features: 2 \(f\)"
    ):
        read_table_graph("g", EdgeTable(tmp_path / "e.csv"), nodes, work=tmp_path)


def test_a_graph_that_is_refused_leaves_no_edges_behind(read: _Read, tmp_path: Path) -> None:
    with pytest.raises(GraphInputError):
        read("a,b\n1,2\nx,\n")
    assert list((tmp_path / "work-2").iterdir()) == []


def _list(values: NDArray[Any] | None) -> Any:
    return None if values is None else values.tolist()


def _x(graph: TableGraph) -> Any:
    return None if graph.features is None else graph.features.arrays()["x"].tolist()


def _part(options: dict[str, Any], prefix: str) -> dict[str, Any]:
    names = [name for name in options if name.startswith(prefix)]
    return {name.removeprefix(prefix): options.pop(name) for name in names}


def _edges(graph: TableGraph) -> list[tuple[int, int]]:
    blocks = list(graph.edges.blocks())
    return [
        pair for block in blocks for pair in zip(block.source.tolist(), block.target.tolist(), strict=True)
    ]
