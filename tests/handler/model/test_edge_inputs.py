"""What edges have reaches the model that is served, as the definition asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from handler.errors import ModelError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.graph.writer import BuildPlan
from handler.metrics import Counters
from handler.model.exported import ExportedModel
from handler.model.signature import EdgeInput
from handler.service import Service
from handler.settings import Settings
from tests import reference
from tests.models import export, random_model

NUM_NODES, EDGE_DIM, FANOUTS = 12, 2, (3, 4)
Edge = reference.Edge


@pytest.fixture
def slow() -> nx.DiGraph:
    """Nodes of many degrees, some without neighbours; weights, times and features on every edge."""
    generator = np.random.default_rng(0)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(NUM_NODES))
    for u, v in generator.integers(0, NUM_NODES, (60, 2)):
        graph.add_edge(
            int(u),
            int(v) % 9,
            weight=float(np.float32(generator.uniform(0.1, 5))),
            time=float(generator.uniform(0, 100)),
            attr=generator.standard_normal(EDGE_DIM).astype(np.float32),
        )
    return graph


@pytest.fixture
def x() -> dict[reference.NodeId, Any]:
    rows = np.random.default_rng(1).standard_normal((NUM_NODES, 3)).astype(np.float32)
    return dict(enumerate(rows))


@pytest.fixture
def snapshot(make_snapshot: Callable[..., Snapshot], slow: nx.DiGraph, x: dict[int, Any]) -> Snapshot:
    ends = list(slow.edges(data=True))
    edges = EdgeArrays(
        np.array([(u, v) for u, v, _ in ends]).T,
        *(np.array([data[name] for _, _, data in ends]) for name in ("weight", "time", "attr")),
    )
    features = DenseFeatures(np.stack(list(x.values())))
    orderings = tuple(map(Ordering, ("weighted", "top_weight", "recent")))
    return make_snapshot(
        GraphArrays("g", edges, NUM_NODES, features=features), BuildPlan(extra_orderings=orderings)
    )


def _serve(snapshot: Snapshot, config: ModelConfig, model: GraphSAGE, folder: Path) -> Service:
    export(config, model, folder)
    runtime = ExportedModel.load(folder, torch.device("cpu"))
    return Service(static_source(snapshot), runtime, Settings(graph=""), Counters(), "1.0")


def _embeddings(service: Service, **options: object) -> list[list[float]]:
    request = {"node_ids": list(range(NUM_NODES)), "return": ["embedding"], **options}
    (response,) = service.answer([json.dumps(request).encode()])
    return [row["embedding"] for row in json.loads(response.body)["predictions"]]


@pytest.mark.parametrize("strategy", ["seeded", "weighted", "top_weight", "recent"])
@pytest.mark.parametrize(
    "edge_inputs",
    [("edge_weight",), ("edge_attr",), ("edge_weight", "edge_attr"), ("edge_attr", "edge_weight")],
)
def test_answers_equal_the_definition(
    snapshot: Snapshot,
    slow: nx.DiGraph,
    x: dict[reference.NodeId, Any],
    tmp_path: Path,
    strategy: Any,
    edge_inputs: tuple[EdgeInput, ...],
) -> None:
    edge_dim = EDGE_DIM if "edge_attr" in edge_inputs else 0
    config, model = random_model(
        FANOUTS, sampling=Sampling(strategy=strategy), edge_inputs=edge_inputs, edge_dim=edge_dim
    )
    found = _embeddings(_serve(snapshot, config, model, tmp_path / "export"))
    for node in range(NUM_NODES):
        wanted, _ = reference.embed(
            model, slow, x, node, FANOUTS, neighbors=lambda v: reference.ordered(slow, v, strategy)
        )
        assert np.abs(np.array(found[node]) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_the_shares_of_walks_reach_the_model(
    snapshot: Snapshot, slow: nx.DiGraph, x: dict[reference.NodeId, Any], tmp_path: Path
) -> None:
    walk = Sampling(strategy="walk", seed=5, num_walks=9, walk_length=3)
    config, model = random_model(FANOUTS, sampling=walk, edge_inputs=("edge_weight",))
    found = _embeddings(_serve(snapshot, config, model, tmp_path / "export"))
    rows = {node: [u for u, _ in reference.ordered(slow, node)] for node in slow}

    def visited(v: reference.NodeId) -> list[Edge]:
        return [(u, {"weight": share}) for u, share in reference.walks(rows, v, 9, 3, seed=5)]

    for node in range(NUM_NODES):
        wanted, _ = reference.embed(model, slow, x, node, FANOUTS, neighbors=visited)
        assert np.abs(np.array(found[node]) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_the_past_is_served_with_its_edges(
    snapshot: Snapshot, slow: nx.DiGraph, x: dict[reference.NodeId, Any], tmp_path: Path
) -> None:
    config, model = random_model(
        FANOUTS, sampling=Sampling(strategy="recent"), edge_inputs=("edge_attr",), edge_dim=EDGE_DIM
    )
    found = _embeddings(_serve(snapshot, config, model, tmp_path / "export"), as_of=40)

    def past(v: reference.NodeId) -> list[Edge]:
        return [(u, data) for u, data in reference.ordered(slow, v, "recent") if data["time"] <= 40]

    for node in range(NUM_NODES):
        wanted, _ = reference.embed(model, slow, x, node, FANOUTS, neighbors=past)
        assert np.abs(np.array(found[node]) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_graph_without_what_the_model_takes_is_refused(
    make_snapshot: Callable[..., Snapshot], tmp_path: Path
) -> None:
    bare = make_snapshot(
        GraphArrays(
            "g", EdgeArrays(np.array([[0], [1]])), 2, features=DenseFeatures(np.zeros((2, 3), np.float32))
        )
    )
    weighted = random_model(edge_inputs=("edge_weight",))
    with pytest.raises(ModelError, match="has no edge weights, the model takes them"):
        _serve(bare, *weighted, tmp_path / "weighted")
    featured = random_model(edge_inputs=("edge_attr",), edge_dim=2)
    with pytest.raises(ModelError, match="has 0 features per edge, the model takes 2"):
        _serve(bare, *featured, tmp_path / "featured")
