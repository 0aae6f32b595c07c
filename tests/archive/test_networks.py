"""NetworkX's graphs come in with their attributes, from Python and from files, or with a reason why not."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from archive.networks import Network, from_networkx, load_network
from handler.errors import GraphInputError
from handler.graph.arrays import Split
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan

BOMB = """<?xml version="1.0"?>
<!DOCTYPE graphml [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="&b;"/></graph></graphml>"""
DEFAULTS = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="node" attr.name="age" attr.type="double"><default>1.5</default></key>
<key id="d1" for="edge" attr.name="w" attr.type="int"><default>7</default></key>
<graph edgedefault="directed"><node id="a"/><node id="b"><data key="d0">2</data></node>
<edge source="a" target="b"/><edge source="b" target="a"><data key="d1">8</data></edge></graph></graphml>"""


def _people() -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_node("bob", age=3, place=[0.5, 1], kind="x", part="train")
    graph.add_node("ann", age=4.5, place=[2, 3], part="test")
    graph.add_node("cat", age=True, place=(4, 5), kind="a", part="")
    graph.add_edge("ann", "bob", w=2, since=10.5, f1=1, f2=2)
    graph.add_edge("cat", "ann", w=0.5, since=9, f1=3, f2=4)
    return graph


def _edges(network: Network) -> list[tuple[int, int]]:
    return [
        edge
        for block in network.graph.edges.blocks()
        for edge in zip(block.source.tolist(), block.target.tolist(), strict=True)
    ]


def test_attributes_become_what_they_are_named_for() -> None:
    network = from_networkx(
        _people(),
        name="people",
        weight="w",
        time="since",
        edge_features=["f*"],
        features=["place", "age"],
        label="kind",
        split="part",
    )
    graph = network.graph
    assert not network.undirected
    assert (graph.name, graph.num_nodes, graph.ids) == ("people", 3, ["bob", "ann", "cat"])
    assert _edges(network) == [(1, 0), (2, 1)]
    (block,) = graph.edges.blocks()
    columns = {name: values.tolist() for name, values in block.columns().items()}
    assert columns["weight"] == [2, 0.5]
    assert columns["time"] == [10.5, 9]
    assert columns["attr"] == [[1, 2], [3, 4]]
    assert graph.features is not None
    assert graph.features.gather(np.arange(3)).tolist() == [[0.5, 1, 3], [2, 3, 4.5], [4, 5, 1]]
    assert (np.asarray(graph.label).tolist(), graph.label_names) == ([1, -1, 0], ("a", "x"))
    assert np.asarray(graph.split).tolist() == [Split.TRAIN, Split.TEST, Split.NONE]


def test_an_undirected_graph_counts_both_ways(make_snapshot: Callable[..., Snapshot]) -> None:
    network = from_networkx(nx.path_graph(3), name="path")
    assert network.undirected
    assert _edges(network) == [(0, 1), (1, 2)]
    snapshot = make_snapshot(network.graph, BuildPlan(rules=EdgeRules(undirected=network.undirected)))
    assert np.diff(snapshot.adjacency.indptr).tolist() == [1, 2, 1]
    assert snapshot.ids.kind == "range"


def test_repeated_edges_all_come() -> None:
    graph = nx.MultiDiGraph([(7, 8), (7, 8), (8, 8)])
    network = from_networkx(graph, name="multi")
    assert _edges(network) == [(0, 1), (0, 1), (1, 1)]
    assert np.array_equal(np.asarray(network.graph.ids), [7, 8])


def test_integer_classes_are_sorted_as_such() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from([(0, {"y": 10}), (1, {"y": 9}), (2, {"y": float("nan")}), (3, {})])
    read = from_networkx(graph, name="g", label="y").graph
    assert (np.asarray(read.label).tolist(), read.label_names) == ([1, 0, -1, -1], ("9", "10"))


def test_a_graph_without_edges_or_nodes_is_read() -> None:
    graph = nx.DiGraph()
    assert len(from_networkx(graph, name="g", weight="w").graph.edges) == 0
    graph.add_node(1)
    assert from_networkx(graph, name="g").graph.num_nodes == 1


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([1, "a"], "must be all integers or all strings, but there are int, str"),
        ([(0, 1)], "but there are tuple"),
        ([True], "but there are bool"),
        ([1.5], "but there are float"),
        ([2**63], "node id 9223372036854775808 does not fit"),
    ],
)
def test_ids_are_of_one_type(nodes: list[Any], problem: str) -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from(nodes)
    with pytest.raises(GraphInputError, match=problem):
        from_networkx(graph, name="g")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"age": None}, r"node attribute 'age' is missing: 1 node \('ann'\)"),
        ({"age": float("nan")}, r"node attribute 'age' is NaN or infinite: 1 node \('ann'\)"),
        ({"age": "old"}, r"node attribute 'age' is neither a number nor a list of numbers: 1 node \('ann'\)"),
        ({"age": [1, 2]}, r"node attribute 'age' is not as long as the first one: 1 node \('ann'\)"),
        ({"age": [[1]]}, "neither a number nor a list of numbers"),
        ({"age": 1e300}, r"node attribute 'age' does not fit float32: 1 node \('ann'\)"),
        ({"part": "training"}, r"node attribute 'part' is not train, val, test or empty: 1 node \('ann'\)"),
        ({"part": ["train"]}, "node attribute 'part' is not train, val, test or empty"),
    ],
)
def test_a_bad_node_attribute_is_told_with_its_nodes(changed: dict[str, Any], problem: str) -> None:
    graph = _people()
    graph.nodes["ann"].update(changed)
    with pytest.raises(GraphInputError, match=problem):
        from_networkx(graph, name="g", features=["age"], split="part")


def test_of_many_bad_ones_five_are_shown() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from([(0, {"f": 1}), *range(1, 9)])
    with pytest.raises(GraphInputError, match=r"is missing: 8 nodes \(1, 2, 3, 4, 5, \.\.\.\)"):
        from_networkx(graph, name="g", features=["f"])


def test_a_bad_edge_attribute_is_told_with_its_edge() -> None:
    graph = _people()
    del graph.edges["cat", "ann"]["w"]
    with pytest.raises(GraphInputError, match=r"edge attribute 'w' is missing: 1 edge \('cat' -> 'ann'\)"):
        from_networkx(graph, name="g", weight="w")
    graph.edges["cat", "ann"]["w"] = [1, 2]
    graph.edges["ann", "bob"]["w"] = [3, 4]
    with pytest.raises(GraphInputError, match="edge attribute 'w' is a list of numbers, not a number"):
        from_networkx(graph, name="g", weight="w")


def test_a_misspelt_attribute_is_answered_with_those_there_are() -> None:
    with pytest.raises(GraphInputError, match="no node has an attribute 'klass': they have 'age', 'place'"):
        from_networkx(_people(), name="g", label="klass")
    with pytest.raises(GraphInputError, match=r"no node has an attribute 'z\*': they have"):
        from_networkx(_people(), name="g", features=["age", "z*"])
    with pytest.raises(GraphInputError, match="no edge has an attribute 'w': they have none"):
        from_networkx(nx.path_graph(2), name="g", weight="w")
    with pytest.raises(GraphInputError, match="'kind' is no feature: it is used otherwise"):
        from_networkx(_people(), name="g", features=["kind"], label="kind")


@pytest.mark.parametrize("ending", ["graphml", "gexf", "graphml.gz", "gexf.gz"])
@pytest.mark.parametrize("kind", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_a_file_holds_what_was_written(tmp_path: Path, ending: str, kind: type[nx.Graph]) -> None:
    graph = kind()
    graph.add_nodes_from([("b", {"f": 1.5, "y": "q"}), ("a", {"f": 2.5, "y": "p"})])
    graph.add_edge("b", "a", w=3.5)
    if graph.is_multigraph():
        graph.add_edge("b", "a", w=4.5)
    write = nx.write_graphml if ending.startswith("graphml") else nx.write_gexf
    write(graph, tmp_path / f"two.{ending}")
    network = load_network(tmp_path / f"two.{ending}", weight="w", features=["f"], label="y")
    read = network.graph
    assert network.undirected != graph.is_directed()
    assert (read.name, read.ids, read.label_names) == ("two", ["b", "a"], ("p", "q"))
    assert _edges(network) == [(0, 1)] * graph.number_of_edges()
    (block,) = read.edges.blocks()
    assert block.columns()["weight"].tolist() == [3.5, 4.5][: graph.number_of_edges()]


def test_an_edge_list_has_comments_and_data(tmp_path: Path) -> None:
    path = tmp_path / "list.edgelist.gz"
    path.write_bytes(
        gzip.compress(b"# made by hand\n10 -2 {'w': 1.5}\n-2 10 {'w': 2} # back\n10 -2 {'w': 3}\n")
    )
    network = load_network(path, weight="w")
    assert not network.undirected
    assert np.array_equal(np.asarray(network.graph.ids), [10, -2])
    assert sorted(_edges(network)) == [(0, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("text", "first"), [("1 2", 1), ("01 2", "01"), ("1 a", "1"), (f"{2**63} 2", str(2**63))]
)
def test_ids_are_integers_only_if_all_are_written_so(tmp_path: Path, text: str, first: int | str) -> None:
    (tmp_path / "g.txt").write_text(text)
    ids = load_network(tmp_path / "g.txt", "edgelist").graph.ids
    assert np.asarray(ids).tolist()[0] == first


def test_what_graphml_says_by_default_stands_in(tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_text(DEFAULTS)
    read = load_network(tmp_path / "g.graphml", features=["age"], weight="w").graph
    assert read.features is not None
    assert read.features.gather(np.arange(2)).tolist() == [[1.5], [2]]
    (block,) = read.edges.blocks()
    assert block.columns()["weight"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("g.graphml", BOMB, "a document type declaration is not allowed"),
        ("g.gexf", BOMB, "a document type declaration is not allowed"),
        ("g.graphml", "", "not a graph as graphml: ExpatError: no element found"),
        ("g.graphml", "<graphml><gra", "not a graph as graphml: ParseError"),
        ("g.graphml", "<html/>", "not a graph as graphml: NetworkXError"),
        ("g.gexf", "<html/>", "not a graph as gexf: NetworkXError: No <graph> element"),
        ("g.edgelist", "1 2 3.5", "not a graph as edgelist: TypeError: Failed to convert edge data"),
        ("g.edgelist", "1 2 {'w': open('x')}", "not a graph as edgelist: TypeError"),
        ("g.edgelist.gz", "1 2", "cannot be read: Not a gzipped file"),
        ("g.xml", "<graphml/>", "its name ends in none of .graphml, .gexf, .edgelist"),
        ("g.graphml", DEFAULTS, "no node has an attribute 'y': they have 'age'"),
    ],
)
def test_a_file_that_is_no_graph_is_refused_by_name(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(GraphInputError, match=problem) as refused:
        load_network(tmp_path / name, label="y")
    assert str(refused.value).startswith(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(GraphInputError, match=r"no.gexf: no such file"):
        load_network(tmp_path / "no.gexf")
    (tmp_path / "folder.gexf").mkdir()
    with pytest.raises(GraphInputError, match=r"folder.gexf: cannot be read: Is a directory"):
        load_network(tmp_path / "folder.gexf")
