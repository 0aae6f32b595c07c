"""A graph that changes, the slow and obvious way: lists and dicts, and a new snapshot for every look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays, EdgeBlock
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import Mutations
from handler.graph.rules import EdgeRules
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot
from tests.graphs import FEATURE_DIM, EdgeData

NodeId = int | str


@dataclass(frozen=True)
class LiveEdge:
    """An edge between positions, with all that may be known of it."""

    u: int
    v: int
    weight: float
    time: float
    attr: float


@dataclass(frozen=True)
class Change:
    """One request: new nodes, features by position, edges that go (with a time or all), edges that come."""

    nodes: tuple[NodeId, ...] = ()
    features: tuple[tuple[int, float], ...] = ()
    removed: tuple[tuple[int, int, float | None], ...] = ()
    added: tuple[LiveEdge, ...] = ()

    def to_mutations(self, num_nodes: int) -> Mutations:
        """As the graph takes them."""
        time = [np.nan if time is None else time for _, _, time in self.removed]
        features = np.array([[value] * FEATURE_DIM for _, value in self.features], dtype=np.float32)
        return Mutations(
            created=1000.0,
            first_node=num_nodes,
            node_ids=list(self.nodes),  # type: ignore[arg-type]
            featured=np.array([node for node, _ in self.features], dtype=np.int64),
            features=features.reshape(-1, FEATURE_DIM),
            removed=EdgeBlock(
                np.array([u for u, _, _ in self.removed], dtype=np.int64),
                np.array([v for _, v, _ in self.removed], dtype=np.int64),
                None,
                np.array(time),
            ),
            added=EdgeBlock(
                np.array([edge.u for edge in self.added], dtype=np.int64),
                np.array([edge.v for edge in self.added], dtype=np.int64),
                np.array([edge.weight for edge in self.added], dtype=np.float32),
                np.array([edge.time for edge in self.added]),
                np.array([[edge.attr] for edge in self.added], dtype=np.float32).reshape(-1, 1),
            ),
        )

    def to_request(self, ids: Sequence[NodeId]) -> dict[str, Any]:
        """The JSON that asks a graph of these nodes for it."""
        ids = [*ids, *self.nodes]
        return {
            "add_nodes": [{"node_id": node_id} for node_id in self.nodes],
            "set_features": [
                {"node_id": ids[node], "x": [value] * FEATURE_DIM} for node, value in self.features
            ],
            "remove_edges": [
                {"source": ids[u], "target": ids[v]} | ({} if time is None else {"time": time})
                for u, v, time in self.removed
            ],
            "add_edges": [
                {
                    "source": ids[edge.u],
                    "target": ids[edge.v],
                    "weight": edge.weight,
                    "time": edge.time,
                    "attr": [edge.attr],
                }
                for edge in self.added
            ],
        }


@dataclass
class SlowGraph:
    """Nodes, features and edges after any number of changes."""

    rules: EdgeRules
    ids: list[Any]
    x: list[list[float]]
    edges: list[LiveEdge] = field(default_factory=list)

    @classmethod
    def of(cls, graph: EdgeData, rules: EdgeRules) -> SlowGraph:
        slow = cls(rules, list(graph.ids), graph.features().tolist())
        for number, ((u, v), weight, time) in enumerate(
            zip(graph.edges, graph.weight, graph.time, strict=True)
        ):
            slow._add(LiveEdge(u, v, weight, time, float(number)))
        return slow

    def apply(self, change: Change) -> None:
        self.ids += change.nodes
        self.x += [[0.0] * FEATURE_DIM for _ in change.nodes]
        for node, value in change.features:
            self.x[node] = [value] * FEATURE_DIM
        for u, v, time in change.removed:
            ends = {(u, v), (v, u)} if self.rules.undirected else {(u, v)}
            self.edges = [
                edge
                for edge in self.edges
                if (edge.u, edge.v) not in ends or (time is not None and edge.time != time)
            ]
        for edge in change.added:
            self._add(edge)

    def _add(self, edge: LiveEdge) -> None:
        if edge.u == edge.v and not self.rules.self_loops:
            return
        self._add_one_way(edge)
        if self.rules.undirected and edge.u != edge.v:
            self._add_one_way(LiveEdge(edge.v, edge.u, edge.weight, edge.time, edge.attr))

    def _add_one_way(self, edge: LiveEdge) -> None:
        if self.rules.duplicates == "keep":
            self.edges.append(edge)
            return
        same = [old for old in self.edges if (old.u, old.v) == (edge.u, edge.v)]
        if not same:
            self.edges.append(edge)
            return
        (old,) = same
        latest = edge if edge.time >= old.time else old
        weight = edge.weight + old.weight if self.rules.duplicates == "sum" else latest.weight
        self.edges.remove(old)
        self.edges.append(LiveEdge(edge.u, edge.v, weight, latest.time, latest.attr))

    def to_networkx(self) -> nx.DiGraph:
        """By id, with what is known of each edge."""
        graph = nx.MultiDiGraph() if self.rules.multigraph else nx.DiGraph()
        graph.add_nodes_from(self.ids)
        for edge in self.edges:
            data = {"weight": edge.weight, "time": edge.time, "attr": [edge.attr]}
            graph.add_edge(self.ids[edge.u], self.ids[edge.v], **data)
        return graph

    def to_snapshot(self, plan: BuildPlan) -> Snapshot:
        """Built from scratch, by a plan whose rules were already kept here."""
        rules = EdgeRules(
            duplicates="keep" if self.rules.multigraph else "drop", max_edge_age=self.rules.max_edge_age
        )
        edges = self.edges
        arrays = GraphArrays(
            name="small",
            edges=EdgeArrays(
                np.array([(edge.u, edge.v) for edge in edges], dtype=np.int64).reshape(-1, 2).T,
                np.array([edge.weight for edge in edges]),
                np.array([edge.time for edge in edges]),
                np.array([[edge.attr] for edge in edges], dtype=np.float32).reshape(-1, 1),
            ),
            num_nodes=len(self.ids),
            ids=self.ids if isinstance(self.ids[0], str) else np.array(self.ids, dtype=np.int64),
            features=DenseFeatures(np.array(self.x, dtype=np.float32)),
        )
        with TemporaryDirectory() as folder:
            write_snapshot(
                Path(folder, "graph"), arrays, BuildPlan(plan.ordering, plan.extra_orderings, rules)
            )
            return Snapshot.open(Path(folder, "graph"))


def sampled(
    graph: LiveGraph | Snapshot,
    sampling: Sampling,
    plan: FanoutPlan,
    as_of: float | None = None,
    *,
    with_attr: bool = True,
) -> list[Any]:
    """All that a model could be given of the trees of all nodes."""
    sampler = graph.sampler(sampling)
    everyone = np.arange(graph.num_nodes)
    trees = sampler.trees(everyone, plan, None if as_of is None else np.full(len(everyone), as_of))
    attr, weight = sampler.edge_attr(trees), sampler.edge_weight(trees)
    assert weight is not None
    assert graph.features is not None
    found: list[Any] = [
        graph.ids.id_of(trees.node),
        trees.hop.tolist(),
        trees.edge_index.tolist(),
        trees.edge_rank.tolist(),
        weight.tolist(),
        graph.features.gather(trees.node).tolist(),
    ]
    if attr is not None and with_attr:
        found.append(attr.tolist())
    return found


_INT_ID = st.integers(-(2**63), 2**63 - 1)
_STR_ID = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def changes(draw: st.DrawFn, ids: Sequence[NodeId]) -> Change:
    """A change that is possible for a graph of these nodes: ends and weights repeat often."""
    new_id = st.one_of(_STR_ID) if isinstance(ids[0], str) else st.one_of(st.integers(0, 15), _INT_ID)
    drawn = draw(st.lists(new_id, unique=True, max_size=3))
    nodes = tuple(node_id for node_id in drawn if node_id not in set(ids))
    place = st.integers(0, len(ids) + len(nodes) - 1)
    time = st.integers(-3, 3).map(float)
    edge = st.builds(
        LiveEdge,
        place,
        place,
        st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0]),
        time,
        st.integers(100, 999).map(float),
    )
    return Change(
        nodes,
        tuple(draw(st.lists(st.tuples(place, st.integers(-5, 5).map(float)), max_size=3))),
        tuple(draw(st.lists(st.tuples(place, place, st.none() | time), max_size=6))),
        tuple(draw(st.lists(edge, max_size=12))),
    )
