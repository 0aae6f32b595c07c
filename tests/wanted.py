"""What the answers of a graph must be, the slow and obvious way, for a few kinds of models."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.export.plan import ExportPlan
from handler.graph.ordering import Ordering, Strategy
from handler.graph.sampling import Sampling
from handler.model.exported import Model
from tests import clustered, reference
from tests.graphs import FEATURE_DIM
from tests.live import NodeId, SlowGraph
from tests.models import random_model
from tests.served import close, exported, loaded

FANOUTS = (3, 2)


class Wanted:
    """What a graph is to be answered from: each node's neighbours in order, and its features.

    Args:
        ordering: of neighbours.
    """

    def __init__(self, graph: SlowGraph, ordering: Ordering) -> None:
        self.graph = graph.to_networkx()
        rows = np.array(graph.x, dtype=np.float32)
        self.x: dict[NodeId, NDArray[np.floating]] = dict(zip(graph.ids, rows, strict=True))
        self._ordering = ordering
        self._neighbors: dict[NodeId, list[reference.Edge]] = {}

    def neighbors(self, v: NodeId) -> list[reference.Edge]:
        """All neighbours of a node, of which a sample is a prefix."""
        if v not in self._neighbors:
            found = reference.ordered(self.graph, v, self._ordering.strategy, self._ordering.seed)
            self._neighbors[v] = found
        return self._neighbors[v]

    def levels(self, v: NodeId, hop_fanouts: Sequence[int]) -> list[list[NodeId]]:
        """The nodes of each hop of its tree, breadth first, as long as there are any."""
        levels, level = [], [v]
        for fanout in hop_fanouts:
            level = [u for node in level for u, _ in self.neighbors(node)[:fanout]]
            if not level:
                break
            levels.append(level)
        return levels


class Kind(Protocol):
    """A model that is served, and what it says by its definition."""

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Of its layers, the first one first."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """What it tells apart; none if it gives only embeddings."""
        ...

    @property
    def model(self) -> Model:
        """As it is served."""
        ...

    def output(
        self, wanted: Wanted, v: NodeId, fanouts: tuple[int, ...], num_hops: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Embedding and logits of a node."""
        ...


@dataclass(frozen=True)
class Sage:
    """A GraphSAGE.

    Args:
        edges: whether it takes the weights and the features of edges.
        strategy: by which it samples; none for the order in which neighbours lie.
    """

    fanouts: tuple[int, ...] = FANOUTS
    edges: bool = False
    labels: tuple[str, ...] = ("a", "b")
    strategy: Strategy | None = None

    @property
    def model(self) -> Model:
        model = copy.copy(loaded(self.built()[0]))
        # How it samples is not in the file, which takes long to make.
        model.signature = structs.replace(model.signature, sampling=Sampling(strategy=self.strategy))
        return model

    def output(
        self, wanted: Wanted, v: NodeId, fanouts: tuple[int, ...], num_hops: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        _, model = self.built()
        return reference.embed(
            model, wanted.graph, wanted.x, v, fanouts, neighbors=wanted.neighbors, num_hops=num_hops
        )

    def built(self) -> tuple[ModelConfig, GraphSAGE]:
        """Its settings, and the model that `reference` reads."""
        if not self.edges:
            return random_model(self.fanouts, self.labels)
        return random_model(self.fanouts, self.labels, edge_inputs=("edge_weight", "edge_attr"), edge_dim=1)


@dataclass(frozen=True)
class Gcn:
    """A model that normalises by degrees."""

    fanouts: tuple[int, ...] = FANOUTS
    labels: tuple[str, ...] = ()

    @property
    def model(self) -> Model:
        return _exported_gcn(self.fanouts)

    def output(
        self, wanted: Wanted, v: NodeId, fanouts: tuple[int, ...], num_hops: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        weights = {
            name: value.numpy().astype(np.float64) for name, value in clustered.Gcn().state_dict().items()
        }

        def h(layer: int, node: NodeId, hop: int) -> NDArray[np.float64]:
            if layer == 0:
                return wanted.x[node].astype(np.float64)
            fanout, name = fanouts[layer - 1], ("first", "second")[layer - 1]
            sample = [] if hop == num_hops else wanted.neighbors(node)[:fanout]

            def below(u: NodeId, hop: int) -> NDArray[np.float64]:
                """Of one source, by the root of its degree: its sample's size, and itself."""
                value = h(layer - 1, u, hop)
                degree = 1 + len(wanted.neighbors(u)[:fanout])
                return np.asarray((np.maximum(value, 0) if layer > 1 else value) / np.sqrt(degree))

            total = sum((below(u, hop + 1) for u, _ in sample), start=below(node, hop))
            degree = 1 + len(wanted.neighbors(node)[:fanout])
            product = weights[f"{name}.lin.weight"] @ (total / np.sqrt(degree))
            return np.asarray(product + weights[f"{name}.bias"])

        return h(len(fanouts), v, 0), np.zeros(0)


@functools.cache
def _exported_gcn(fanouts: tuple[int, ...]) -> Model:
    return exported(clustered.Gcn(), ExportPlan("embedding", fanouts, FEATURE_DIM))


def check_row(
    row: dict[str, Any],
    wanted: Wanted,
    kind: Kind,
    v: NodeId,
    num_neighbors: int | None = None,
    num_hops: int | None = None,
) -> None:
    """An answer with all that may be returned says what the definition says."""
    num_hops = num_hops or len(kind.fanouts)
    fanouts = tuple(min(fanout, num_neighbors or fanout) for fanout in kind.fanouts)
    hop_fanouts = [max(fanouts[: len(fanouts) - hop]) for hop in range(num_hops)]
    levels = wanted.levels(v, hop_fanouts)
    assert row["node_id"] == v
    assert row["neighbors"] == levels
    num_sampled = sum(map(len, levels))
    assert row["sampled"] == {"nodes": 1 + num_sampled, "edges": num_sampled, "truncated": False}
    embedding, logits = kind.output(wanted, v, fanouts, num_hops)
    assert close(row["embedding"], embedding)
    if kind.labels:
        powers = np.exp(logits - logits.max())
        assert np.allclose(
            [row["probabilities"][label] for label in kind.labels], powers / powers.sum(), atol=1e-5
        )
        assert row["label"] == max(kind.labels, key=row["probabilities"].__getitem__)
