"""Small random graphs for property tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import networkx as nx
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot

FEATURE_DIM = 3
_INT_ID = st.integers(-(2**63), 2**63 - 1)
_STR_ID = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@dataclass(frozen=True)
class SmallGraph:
    """Nodes by id, and edges between positions in `ids`."""

    ids: list[int] | list[str]
    edges: list[tuple[int, int]]

    def to_networkx(self) -> nx.DiGraph:
        graph = nx.DiGraph()
        graph.add_nodes_from(self.ids)
        graph.add_edges_from((self.ids[u], self.ids[v]) for u, v in self.edges)
        return graph

    def features(self) -> NDArray[np.float32]:
        rows = np.random.default_rng(len(self.ids)).standard_normal((len(self.ids), FEATURE_DIM))
        return rows.astype(np.float32)

    def to_arrays(self) -> GraphArrays:
        ids = self.ids if self.ids and isinstance(self.ids[0], str) else np.array(self.ids, dtype=np.int64)
        return GraphArrays(
            name="small",
            edges=EdgeArrays(np.array(self.edges, dtype=np.int64).reshape(-1, 2).T),
            num_nodes=len(self.ids),
            ids=ids,
            features=DenseFeatures(self.features()),
        )

    def to_snapshot(self, plan: BuildPlan | None = None) -> Snapshot:
        """A snapshot whose folder is gone, which mapped files survive."""
        with TemporaryDirectory() as folder:
            write_snapshot(Path(folder, "graph"), self.to_arrays(), plan)
            return Snapshot.open(Path(folder, "graph"))


@st.composite
def small_graphs(draw: st.DrawFn, min_nodes: int = 1) -> SmallGraph:
    """Up to 9 nodes with ids of any kind; self-loops, hubs, isolated nodes and repeated edges happen."""
    ids = draw(
        st.one_of(
            st.integers(min_nodes, 9).map(lambda count: list(range(count))),
            st.lists(_INT_ID, unique=True, min_size=min_nodes, max_size=9),
            st.lists(_STR_ID, unique=True, min_size=min_nodes, max_size=9),
        )
    )
    place = st.integers(0, len(ids) - 1)
    return SmallGraph(ids, draw(st.lists(st.tuples(place, place), max_size=40)))


@dataclass(frozen=True)
class EdgeData(SmallGraph):
    """A small graph whose edges have weights, times and a feature, and may repeat."""

    weight: list[float] = field(default_factory=list)
    time: list[float] = field(default_factory=list)

    def to_networkx(self) -> nx.MultiDiGraph:
        graph = nx.MultiDiGraph()
        graph.add_nodes_from(self.ids)
        for (u, v), weight, time in zip(self.edges, self.weight, self.time, strict=True):
            graph.add_edge(self.ids[u], self.ids[v], weight=weight, time=time)
        return graph

    def to_arrays(self) -> GraphArrays:
        edge_index = np.array(self.edges, dtype=np.int64).reshape(-1, 2).T
        attr = np.arange(len(self.edges), dtype=np.float32)[:, None]
        edges = EdgeArrays(edge_index, np.array(self.weight), np.array(self.time), attr)
        return replace(super().to_arrays(), edges=edges)


@st.composite
def graphs_with_edge_data(draw: st.DrawFn, min_nodes: int = 1) -> EdgeData:
    """Few distinct weights and times, so that ties happen; weights are powers of two, exact in float32."""
    graph = draw(small_graphs(min_nodes))
    count = len(graph.edges)
    weight = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0]), min_size=count, max_size=count))
    time = draw(st.lists(st.integers(-3, 3).map(float), min_size=count, max_size=count))
    return EdgeData(graph.ids, graph.edges, weight, time)


layer_fanouts = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
