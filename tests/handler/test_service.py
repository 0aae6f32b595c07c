"""The laws of answers: right, the same every time, whatever the company."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handler import metrics
from handler.errors import ModelError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests import reference
from tests.graphs import EdgeData, SmallGraph, graphs_with_edge_data, layer_fanouts, small_graphs
from tests.models import embed_all, random_model
from tests.served import RING, Served, close


def _serve(graph: SmallGraph, fanouts: tuple[int, ...]) -> Served:
    return Served(graph.to_snapshot(), *random_model(fanouts))


@pytest.fixture(scope="module")
def ring() -> Served:
    return Served(RING.to_snapshot(), *random_model((3, 2)))


@settings(max_examples=40)
@given(small_graphs(), layer_fanouts)
def test_offline_equals_online(graph: SmallGraph, fanouts: tuple[int, ...]) -> None:
    """Layer by layer over all nodes gives what serving each node gives."""
    served = _serve(graph, fanouts)
    offline = embed_all(served.model, served.snapshot, fanouts)
    for node_id, wanted in zip(graph.ids, offline.numpy(), strict=True):
        assert close(served.embedding({"node_id": node_id}), wanted)


def test_the_same_question_has_the_same_answer_a_thousand_times(ring: Served) -> None:
    (first,) = ring.ask({"node_id": 1})
    assert all(ring.ask({"node_id": 1}) == [first] for _ in range(1000))
    others = [{"node_id": node % 6} for node in range(63)]
    for place in (0, 31, 63):
        crowd = [*others[:place], {"node_id": 1}, *others[place:]]
        assert close(ring.ask(*crowd)[place][1]["embedding"], first[1]["embedding"])


def test_one_answer_says_where_it_is_from(ring: Served) -> None:
    ((status, answer),) = ring.ask({"node_id": 1})
    assert status == 200
    assert list(answer) == [
        "node_id", "embedding", "label", "source", "model_version", "graph", "age_ms", "sampled"
    ]  # fmt: skip
    assert (answer["node_id"], answer["source"], answer["model_version"]) == (1, "live", "1.0")
    assert answer["graph"] == {"snapshot": ring.snapshot.manifest.snapshot_id, "seq": 0}
    tree = reference.sample_tree(RING.to_networkx(), 1, (3, 3)).by_hop()
    nodes = sum(map(len, tree))
    assert answer["sampled"] == {"nodes": nodes, "edges": nodes - 1, "truncated": False}


def test_it_returns_what_is_asked(ring: Served) -> None:
    ((_, answer),) = ring.ask({"node_id": 1, "return": ["neighbors"]})
    assert "embedding" not in answer
    assert "label" not in answer
    assert [[1], *answer["neighbors"]] == reference.sample_tree(RING.to_networkx(), 1, (3, 3)).by_hop()
    ((_, answer),) = ring.ask({"node_id": 1, "return": ["probabilities"]})
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_a_staleness_is_always_satisfied_by_a_live_answer(ring: Served) -> None:
    assert ring.ask({"node_id": 1, "max_staleness_ms": 0}) == ring.ask({"node_id": 1})


@pytest.mark.parametrize(
    ("request_", "status", "code", "message"),
    [
        ({"node_id": 77}, 404, "unknown_node", "the graph has no node 77"),
        ({"node_id": "1"}, 400, "malformed", "'1': this graph's node ids are integers"),
        ({"node_id": 1, "num_hops": 3}, 400, "malformed", "this model has 2 layers"),
        ({"node_id": 1, "num_neighbors": 4}, 400, "malformed", "this model samples at most 3"),
        ({"node_id": 1, "as_of": 5}, 400, "malformed", "as_of needs a model that samples the most recent"),
        ({"node_ids": list(range(3000))}, 413, "too_many_nodes", "at most 2048"),
        (b"\x00", 400, "malformed", "cannot be read"),
    ],
)
def test_errors_have_their_status(
    ring: Served, request_: object, status: int, code: str, message: str
) -> None:
    good = {"node_id": 1}
    (before, (found, answer), after) = ring.ask(good, request_, good)
    assert before[0] == after[0] == 200
    assert found == status
    assert answer["error"]["code"] == code
    assert message in answer["error"]["message"]


def test_a_model_without_classes_gives_embeddings(ring: Served) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2), labels=()))
    (answer, refused) = served.ask({"node_id": 1}, {"node_id": 1, "return": ["label"]})
    assert "label" not in answer[1]
    assert close(answer[1]["embedding"], ring.embedding({"node_id": 1}))
    assert refused[0] == 400
    assert "gives no label, only embedding" in refused[1]["error"]["message"]


@pytest.mark.parametrize(
    ("limit", "num_forwards"),
    [
        ({"max_nodes_per_forward": 10}, 3),
        ({"max_edges_per_forward": 8}, 2),
        ({"max_edges_per_forward": 7}, 4),
        ({"max_bytes_per_forward": 10 * (45 + 4 * 3)}, 3),
    ],
)
def test_more_seeds_than_one_forward_may_have_are_answered_in_several(
    ring: Served, limit: dict[str, int], num_forwards: int
) -> None:
    # The trees have 3, 7, 5, 3 and 3 nodes.
    served = Served(RING.to_snapshot(), *random_model((3, 2)), **limit)
    ((_, answer),) = served.ask({"node_ids": [0, 1, 2, 3, 4]})
    for row in answer["predictions"]:
        assert close(row["embedding"], ring.embedding({"node_id": row["node_id"]}))
        assert not row["sampled"]["truncated"]
    assert served.counters.drain()[metrics.FORWARDS, ()] == num_forwards


def _star(num_leaves: int) -> SmallGraph:
    return SmallGraph(list(range(num_leaves + 1)), [(leaf, 0) for leaf in range(1, num_leaves + 1)])


def test_a_node_over_budget_is_answered_from_the_longest_prefix_that_fits() -> None:
    served = Served(_star(9).to_snapshot(), *random_model((8,)), max_nodes_per_forward=6)
    whole = Served(_star(9).to_snapshot(), *random_model((8,)))
    ((_, alone),) = served.ask({"node_id": 0})
    assert alone["sampled"] == {"nodes": 6, "edges": 5, "truncated": True}
    assert close(alone["embedding"], whole.embedding({"node_id": 0, "num_neighbors": 5}))
    assert served.counters.drain()[metrics.TRUNCATED, ()] == 1
    ((_, asked_for_less),) = served.ask({"node_id": 0, "num_neighbors": 5})
    assert asked_for_less["sampled"] == {"nodes": 6, "edges": 5, "truncated": False}
    ((_, answer),) = served.ask({"node_ids": [1, 0, 2, 0]})
    for row in answer["predictions"]:
        assert row["sampled"]["truncated"] == (row["node_id"] == 0)
        if row["node_id"] == 0:
            assert close(row["embedding"], alone["embedding"])


def test_a_budget_of_one_node_still_answers_with_the_node_itself() -> None:
    served = Served(_star(3).to_snapshot(), *random_model((3, 2)), max_nodes_per_forward=1)
    ((status, answer),) = served.ask({"node_id": 0})
    assert status == 200
    assert answer["sampled"] == {"nodes": 1, "edges": 0, "truncated": True}


def test_a_node_over_budget_is_refused_where_the_settings_say_so() -> None:
    refusing: Any = {"over_budget": "refuse", "max_nodes_per_forward": 6}
    served = Served(_star(9).to_snapshot(), *random_model((8,)), **refusing)
    ((status, answer),) = served.ask({"node_id": 0})
    assert (status, answer["error"]["code"]) == (429, "over_budget")
    assert "more than the 6 nodes" in answer["error"]["message"]
    ((status, answer),) = served.ask({"node_ids": [1, 0, 2]})
    assert status == 200
    assert ["error" in row for row in answer["predictions"]] == [False, True, False]


@given(graphs_with_edge_data(), st.integers(1, 12), st.data())
def test_a_budget_changes_no_answer_but_that_of_trees_over_it(
    graph: EdgeData, budget: int, data: st.DataObject
) -> None:
    """Whatever the company, an answer is that of the node alone."""
    served = Served(graph.to_snapshot(), *random_model((3, 2)), max_nodes_per_forward=budget)
    free = Served(graph.to_snapshot(), *random_model((3, 2)))
    asked = data.draw(st.lists(st.sampled_from(graph.ids), min_size=1, max_size=8))
    ((_, answer),) = served.ask({"node_ids": asked})
    for row in answer["predictions"]:
        ((_, alone),) = served.ask({"node_id": row["node_id"]})
        assert row["sampled"] == alone["sampled"]
        assert row["sampled"]["nodes"] <= budget
        assert close(row["embedding"], alone["embedding"])
        ((_, whole),) = free.ask({"node_id": row["node_id"]})
        assert row["sampled"]["truncated"] == (whole["sampled"]["nodes"] > budget)
        if not row["sampled"]["truncated"]:
            assert close(row["embedding"], whole["embedding"])


def _recent() -> Served:
    """Node 0 has neighbours 1, 2 and 3 since times 10, 20 and 30."""
    graph = EdgeData([0, 1, 2, 3], [(1, 0), (2, 0), (3, 0)], [1.0, 1.0, 1.0], [10.0, 20.0, 30.0])
    return Served(graph.to_snapshot(BuildPlan(Ordering("recent"))), *random_model((2,)))


def test_as_of_hides_what_came_later() -> None:
    served = _recent()
    times: list[dict[str, float]] = [{}, {"as_of": 30}, {"as_of": 29.5}, {"as_of": 10}, {"as_of": 9}]
    rows = [{"node_id": 0, "return": ["neighbors"]} | time for time in times]
    ((_, answer),) = served.ask({"instances": rows})
    found = [row["neighbors"] for row in answer["predictions"]]
    assert found == [[[3, 2]], [[3, 2]], [[2, 1]], [[1]], []]


def test_an_answer_that_is_too_large_to_send_harms_no_other(ring: Served) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)), max_response_bytes=600)
    (large, small) = served.ask({"node_ids": [0, 1, 2, 3]}, {"node_id": 1})
    assert (large[0], large[1]["error"]["code"]) == (413, "response_too_large")
    assert small[0] == 200


def test_warm_up_counts_nothing(ring: Served) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    served.service.warm_up(5)
    assert served.counters.drain() == {}


def test_a_graph_without_the_models_features_is_refused(make_snapshot: Callable[..., Snapshot]) -> None:
    edges = EdgeArrays(np.array([[0], [1]]))
    wide = make_snapshot(GraphArrays("g", edges, 2, features=DenseFeatures(np.zeros((2, 9), np.float32))))
    with pytest.raises(ModelError, match="has 9 features per node, the model takes 3"):
        Served(wide, *random_model((2,)))
    bare = make_snapshot(GraphArrays("g", edges, 2))
    with pytest.raises(ModelError, match="has no node features, the model takes 3"):
        Served(bare, *random_model((2,)))


def test_errors_leave_no_garbage(ring: Served) -> None:
    """Cycles would be freed only by a full collection, which comes too rarely to keep memory flat."""
    bad = [
        {"node_id": 77},
        {"node_id": "x"},
        {"node_id": 1, "num_hops": 3},
        {"node_ids": [None, 77]},
        {"instances": [{"node_id": None}, 5]},
        b"{",
        b"",
    ]
    ring.ask(*bad)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            ring.ask(*bad)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_what_happens_is_counted(ring: Served) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    served.ask({"node_id": 1}, {"node_ids": [0, 77]}, {"node_id": 77}, b"")
    counts = served.counters.drain()
    assert counts[metrics.BATCHES, ()] == 1
    assert counts[metrics.REQUESTS, ("200",)] == 2
    assert counts[metrics.REQUESTS, ("404",)] == 1
    assert counts[metrics.REQUESTS, ("400",)] == 1
    assert counts[metrics.ERRORS, ("unknown_node",)] == 2
    assert counts[metrics.ERRORS, ("malformed",)] == 1
    assert counts[metrics.NODES, ("live",)] == 2
    slow = RING.to_networkx()
    trees = [reference.sample_tree(slow, node, (3, 3)).by_hop() for node in (0, 1)]
    for hop in (1, 2):
        assert counts[metrics.NEIGHBORS.sum, (str(hop),)] == sum(len(tree[hop]) for tree in trees)
        assert counts[metrics.NEIGHBORS.count, (str(hop),)] == 2
    edges = [sum(len(level) for level in tree[1:]) for tree in trees]
    assert counts[metrics.EDGES.sum, ()] == sum(edges)
    for bound in metrics.EDGES.bounds:
        assert counts[metrics.EDGES.buckets, (f"{bound:g}",)] == sum(edge <= bound for edge in edges)
    assert counts[metrics.BATCH_REQUESTS.sum, ()] == 4
    assert counts[metrics.FORWARD_SEEDS.sum, ()] == 2
    stages = {labels[0] for metric, labels in counts if metric is metrics.STAGE_TIME.sum}
    assert stages == {"parse", "look_up", "sample", "gather", "batch", "forward", "compose", "encode"}
