"""Makes a graph of NetworkX's: of an object in Python, or of a file that NetworkX reads."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Literal, cast, get_args
from xml.parsers import expat

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from archive.network_attributes import Attributes, classes_of, column_of, matrix_of, splits_of
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures

NetworkFormat = Literal["graphml", "gexf", "edgelist"]
FORMATS: tuple[NetworkFormat, ...] = get_args(NetworkFormat)

_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Network:
    """A graph as NetworkX has it.

    Args:
        graph: each edge once.
        undirected: whether each edge is meant both ways, as `EdgeRules(undirected=True)` lets it count.
    """

    graph: GraphArrays
    undirected: bool


def load_network(
    path: Path,
    format: NetworkFormat | None = None,  # noqa: A002 - what NetworkX calls it
    *,
    weight: str | None = None,
    time: str | None = None,
    edge_features: Sequence[str] = (),
    features: Sequence[str] = (),
    label: str | None = None,
    split: str | None = None,
) -> Network:
    """A graph from a file of GraphML, GEXF or lines `source target {data}`, as a whole in memory.

    Node ids are integers if all of them are written as such, else strings. GraphML and GEXF say whether
    their edges have a direction; an edge list does not, and is read as directed.

    Args:
        path: may end in `.gz`.
        format: without it, the file's name decides.
        weight, time, edge_features, features, label, split: as in `from_networkx`.

    Raises:
        GraphInputError: the file holds no such graph; names the file.
    """
    stem = path.with_suffix("") if path.suffix == ".gz" else path
    if format is None:
        format = _format_of(path, stem.suffix)  # noqa: A001
    graph = _read(path, format)
    try:
        network = from_networkx(
            graph,
            name=stem.stem,
            weight=weight,
            time=time,
            edge_features=edge_features,
            features=features,
            label=label,
            split=split,
        )
    except GraphInputError as error:
        raise GraphInputError(f"{path}: {error}") from None
    return replace(network, graph=replace(network.graph, ids=_as_integers(list(graph))))


def from_networkx(
    graph: nx.Graph,
    *,
    name: str,
    weight: str | None = None,
    time: str | None = None,
    edge_features: Sequence[str] = (),
    features: Sequence[str] = (),
    label: str | None = None,
    split: str | None = None,
) -> Network:
    """A graph from one of NetworkX's, directed or not, with or without repeated edges.

    Nodes are numbered as the graph has them. Where a node or edge lacks an attribute, the graph's
    `node_default` or `edge_default` stands in, which is where NetworkX puts what a file says of it.

    Args:
        graph: its node ids are all integers of 64 bits or all strings.
        name: what people call it.
        weight, time: edge attributes, numbers.
        edge_features, features: attributes of edges and of nodes, or patterns such as `f*`, which match
            no attribute that is used otherwise. An attribute is a number, or a list of numbers that is
            equally long everywhere.
        label: node attribute of classes; a node that lacks it has no class. Classes are sorted, as
            integers if all are, else as text.
        split: node attribute that is `train`, `val`, `test`, empty or missing.

    Raises:
        GraphInputError: ids are of other types, or an attribute is missing or no finite number.
    """
    nodes, edges = Attributes.of_nodes(graph), Attributes.of_edges(graph)
    x = matrix_of(nodes, nodes.matching(features, [label, split]))
    attr = matrix_of(edges, edges.matching(edge_features, [weight, time]))
    ids = _ids_of(graph)
    classes, names = (None, None) if label is None else classes_of(nodes.values(label))
    arrays = GraphArrays(
        name=name,
        edges=EdgeArrays(
            _edge_index(graph),
            None if weight is None else column_of(edges, weight),
            None if time is None else column_of(edges, time),
            attr,
        ),
        num_nodes=len(graph),
        ids=ids,
        features=None if x is None else DenseFeatures(x),
        label=classes,
        label_names=names,
        split=None if split is None else splits_of(nodes, split),
    )
    return Network(arrays, undirected=not graph.is_directed())


def _ids_of(graph: nx.Graph) -> NDArray[np.int64] | list[str]:
    kinds = {type(node) for node in graph}
    if all(issubclass(kind, str) for kind in kinds):
        return [str(node) for node in graph]
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        for node in graph:
            if not _INT64.min <= node <= _INT64.max:
                raise GraphInputError(f"node id {node} does not fit a 64-bit integer")
        return np.fromiter(graph, dtype=np.int64, count=len(graph))
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise GraphInputError(f"node ids must be all integers or all strings, but there are {found}")


def _edge_index(graph: nx.Graph) -> NDArray[np.int64]:
    place = dict(zip(graph, range(len(graph)), strict=True))
    ends = map(place.__getitem__, chain.from_iterable(graph.edges()))
    return np.fromiter(ends, dtype=np.int64, count=2 * graph.number_of_edges()).reshape(-1, 2).T


def _format_of(path: Path, suffix: str) -> NetworkFormat:
    for known in FORMATS:
        if suffix.lower() == f".{known}":
            return known
    endings = ", ".join(f".{known}" for known in FORMATS)
    raise GraphInputError(f"{path}: its name ends in none of {endings} and these with .gz: say its format")


def _read(path: Path, network_format: NetworkFormat) -> nx.Graph:
    try:
        with _opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts of GraphML that a graph for us does not need
            if network_format == "edgelist":
                return nx.read_edgelist(file, create_using=nx.MultiDiGraph)
            _refuse_dtd(file)
            file.seek(0)
            return nx.read_graphml(file) if network_format == "graphml" else nx.read_gexf(file)
    except FileNotFoundError:
        raise GraphInputError(f"{path}: no such file") from None
    except OSError as error:
        raise GraphInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - whatever Python says of text that it does not expect
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise GraphInputError(f"{path}: not a graph as {network_format}: {said}") from None


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


class _RootReached(Exception):
    """A document type can only be declared before the root element."""


def _refuse_dtd(file: IO[bytes]) -> None:
    """Entities, which can make much of little, need a document type; no graph does."""
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ValueError("a document type declaration is not allowed")

    def stop(*_: object) -> None:
        raise _RootReached

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = stop
    try:
        while data := file.read(1 << 16):
            parser.Parse(data)
        parser.Parse(b"", True)
    except _RootReached:
        return


def _as_integers(ids: list[str]) -> NDArray[np.int64] | list[str]:
    """The ids as integers, if all of them are written plainly as such."""
    return np.array(ids, dtype=np.int64) if ids and all(map(_is_plain_integer, ids)) else ids


def _is_plain_integer(text: str) -> bool:
    if len(text) > 20 or not text.removeprefix("-").isdecimal():
        return False
    return str(int(text)) == text and _INT64.min <= int(text) <= _INT64.max
