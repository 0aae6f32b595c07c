"""Similar nodes are those whose live embeddings are nearest, whatever the table knows of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handler import metrics
from handler.cache.similar import METRICS, Metric
from handler.graph.rules import EdgeRules
from handler.graph.writer import BuildPlan
from tests.graphs import EdgeData, graphs_with_edge_data
from tests.keeping import Keeping
from tests.live import Change, LiveEdge, changes
from tests.served import close

TOP_K = 3


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Keeping]:
    kept = Keeping(tmp_path)
    kept.precompute()
    kept.index()
    yield kept
    kept.service.close()


def _scores(kept: Keeping, metric: Metric, embedding: list[float] | None = None) -> Any:
    """float64 [num_nodes, num_nodes] of all live embeddings, or [num_nodes] with one."""
    ids = kept.graph.ids.id_of(np.arange(kept.graph.num_nodes))
    rows = kept.ask(node_ids=ids, max_staleness_ms=0)["predictions"]
    live = np.array([row["embedding"] for row in rows])
    vectors = live if embedding is None else np.array(embedding)
    if metric == "cosine":
        live /= np.linalg.norm(live, axis=1, keepdims=True)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors @ live.T


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), st.booleans(), st.sampled_from(METRICS), st.data())
def test_after_any_changes_they_are_the_nearest_by_live_embeddings(
    graph: EdgeData, undirected: bool, metric: Metric, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        kept = Keeping(Path(folder), graph, BuildPlan(rules=EdgeRules(undirected=undirected)))
        kept.precompute()
        kept.index()
        ids = kept.graph.ids.id_of(np.arange(kept.graph.num_nodes))
        for _ in range(data.draw(st.integers(0, 3))):
            change = data.draw(changes(ids))
            kept.apply(change)
            ids = kept.graph.ids.id_of(np.arange(kept.graph.num_nodes))
        wanted = _scores(kept, metric)
        np.fill_diagonal(wanted, -np.inf)
        rows = kept.ask(node_ids=ids, top_k=TOP_K, metric=metric)["predictions"]
        for node, row in enumerate(rows):
            found = [ids.index(each["node_id"]) for each in row["similar"]]
            assert len(set(found) - {node}) == len(found) == min(TOP_K, len(ids) - 1)
            assert np.allclose([each["score"] for each in row["similar"]], wanted[node, found], atol=1e-5)
            assert np.allclose(np.sort(wanted[node])[::-1][: len(found)], wanted[node, found], atol=1e-5)


def test_the_answer_is_what_is_asked_for(ring: Keeping) -> None:
    row = ring.ask(node_id=0, top_k=2)
    assert list(row) == ["node_id", "source", "model_version", "graph", "age_ms", "sampled", "similar"]
    assert [list(each) for each in row["similar"]] == [["node_id", "score"]] * 2
    assert row["source"] == "precomputed"
    more = ring.ask(node_id=0, top_k=2, **{"return": ["embedding", "label"]})
    assert set(more) - set(row) == {"embedding", "label"}
    assert more["similar"] == row["similar"]
    assert "similar" not in ring.ask(node_id=0)
    assert ring.counted(metrics.SIMILAR) == {("cosine",): 2}


def test_it_does_not_depend_on_the_company(ring: Keeping) -> None:
    alone = [ring.ask(node_id=node, top_k=1 + node % 2)["similar"] for node in range(6)]
    instances = [{"node_id": node, "top_k": 1 + node % 2} for node in range(6)]
    together = ring.ask(instances=[*instances, {"node_id": 2}])["predictions"]
    assert [row.get("similar") for row in together] == [*alone, None]


def test_the_length_of_vectors_counts_for_dot_alone(ring: Keeping) -> None:
    for metric in METRICS:
        best = ring.ask(node_id=0, top_k=5, metric=metric)["similar"]
        scores = _scores(ring, metric)[0]
        assert [each["node_id"] for each in best] == [
            node for node in np.argsort(-scores).tolist() if node != 0
        ]


def test_new_and_changed_nodes_are_found(ring: Keeping) -> None:
    # 6 is another 0, and so is 3 from now on.
    twin = tuple(LiveEdge(node, 6, 1.0, 0.0, 0.0) for node in (5,))
    ring.apply(Change(nodes=(6,), added=twin))
    ring.apply(
        Change(
            features=((6, 1.0), (3, 1.0), (0, 1.0)),
            removed=((2, 3, None),),
            added=(LiveEdge(5, 3, 1.0, 0.0, 0.0),),
        )
    )
    row = ring.ask(node_id=0, top_k=2)
    assert {each["node_id"] for each in row["similar"]} == {3, 6}
    assert close([each["score"] for each in row["similar"]], [1.0, 1.0])


def test_only_so_many_recent_nodes_are_looked_at(tmp_path: Path) -> None:
    kept = Keeping(tmp_path, similar_recent=2)
    kept.precompute()
    kept.index()
    kept.apply(Change(nodes=(6, 7, 8, 9)))
    found = {each["node_id"] for each in kept.ask(node_id=0, top_k=20)["similar"]}
    assert found == {1, 2, 3, 4, 5, 8, 9}
    kept.apply(Change(features=((7, 1.0),)))  # the last two that were touched, and the last two that are new
    found = {each["node_id"] for each in kept.ask(node_id=0, top_k=20)["similar"]}
    assert found == {1, 2, 3, 4, 5, 7, 8, 9}


def test_a_described_node_is_compared_and_leaves_nothing(ring: Keeping) -> None:
    node = {"x": [1.0, 2.0, 3.0], "neighbors": [1, 2]}
    row = ring.ask(node=node, top_k=TOP_K, **{"return": ["embedding"]})
    wanted = np.sort(_scores(ring, "cosine", row["embedding"]))[::-1]
    assert close([each["score"] for each in row["similar"]], wanted[:TOP_K])
    assert ring.graph.recent.last(10).tolist() == []


def test_live_answers_are_compared_if_they_are_asked_for(ring: Keeping) -> None:
    ring.counters.drain()
    forced = ring.ask(node_id=0, top_k=TOP_K, max_staleness_ms=0)
    assert ring.counted(metrics.NODES) == {("live",): 7}  # itself, and all as candidates
    stored = ring.ask(node_id=0, top_k=TOP_K)
    assert [each["node_id"] for each in forced["similar"]] == [each["node_id"] for each in stored["similar"]]
    assert close([each["score"] for each in forced["similar"]], [each["score"] for each in stored["similar"]])


def test_without_an_index_only_those_who_ask_for_it_are_refused(tmp_path: Path) -> None:
    kept = Keeping(tmp_path)
    kept.precompute()
    instances = [{"node_id": 0, "top_k": 2, "metric": "dot"}, {"node_id": 0}, {"node_id": 99, "top_k": 1}]
    refused, fine, unknown = kept.ask(instances=instances)["predictions"]
    assert refused["error"]["code"] == "no_index"
    assert "hopserve precompute --index dot" in refused["error"]["message"]
    assert "embedding" in fine
    assert unknown["error"]["code"] == "unknown_node"
    kept.index()
    assert len(kept.ask(node_id=0, top_k=2, metric="dot")["similar"]) == 2


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ({"node_id": 0, "top_k": 0}, 400, "Expected `int` >= 1"),
        ({"node_id": 0, "top_k": 1001}, 400, "Expected `int` <= 1000"),
        ({"node_id": 0, "top_k": "3"}, 400, "Expected `int | null`"),
        ({"node_id": 0, "top_k": 1.5}, 400, "Expected `int | null`"),
        ({"node_id": 0, "metric": "dot"}, 400, "`metric` goes with `top_k`"),
        ({"node_id": 0, "top_k": 3, "metric": "euclidean"}, 400, "Invalid enum value 'euclidean'"),
        ({"node_id": 0, "top_k": 3, "num_hops": 1}, 400, "does not go with `num_hops`"),
        ({"node_id": 0, "top_k": 3, "as_of": 1.0}, 400, "does not go with `num_hops`"),
        ({"pairs": [[0, 1]], "top_k": 3}, 400, "unknown field `top_k`"),
        (
            {"node_ids": [0] * 300, "top_k": 6},
            413,
            "2100 nodes asked for, at most 2048",
        ),
    ],
)
def test_what_cannot_be_asked_is_said(ring: Keeping, request_: Any, status: int, said: str) -> None:
    (answer,) = ring.service.answer([json.dumps(request_).encode()])
    assert answer.status == status
    assert said in json.loads(answer.body)["error"]["message"]
