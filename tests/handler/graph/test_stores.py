"""The laws of answers, for every store that a graph may lie in: they are those of the definition.

Each is held to what NetworkX and float64 say, never to another store.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from archive.export.plan import ExportPlan
from handler.graph.ordering import STRATEGIES, Ordering
from handler.graph.rules import EdgeRules
from handler.graph.writer import BuildPlan
from handler.model.exported import Model
from tests.graphs import FEATURE_DIM, EdgeData, graphs_with_edge_data, layer_fanouts
from tests.live import Change, LiveEdge, NodeId, SlowGraph, changes
from tests.served import close, exported
from tests.stores import ClusterStore, FolderStore, Store, Stored
from tests.wanted import FANOUTS, Gcn, Kind, Sage, Wanted, check_row

EVERYTHING = ["embedding", "probabilities", "label", "neighbors"]
#: Node 0 has more neighbours than a sample, and node 5 has none.
HUB = EdgeData(
    list(range(7)),
    [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (0, 1), (2, 1), (3, 2), (0, 3), (6, 6), (6, 4)],
    [1.0, 2.0, 4.0, 0.5, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    [5.0, 3.0, 1.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
)
SAGE = Sage()

orderings = st.builds(Ordering, st.sampled_from(STRATEGIES), st.integers(0, 2**63 - 1))
rules = st.builds(EdgeRules, st.booleans(), st.sampled_from(["drop", "sum", "keep"]), st.booleans())
kinds: st.SearchStrategy[Kind] = st.sampled_from([SAGE, Sage((2,)), Sage((1, 3, 2)), Sage(edges=True), Gcn()])


@pytest.fixture(scope="module", params=["folder", "cluster"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "folder":
        return FolderStore()
    return ClusterStore(request.getfixturevalue("cluster"), request.getfixturevalue("shards"))


def _everything(kind: Kind) -> list[str]:
    return EVERYTHING if kind.labels else ["embedding", "neighbors"]


def _unknown(ids: list[Any]) -> NodeId:
    """An id of the right type that nobody has."""
    return "nobody" if isinstance(ids[0], str) else 2**62 + 54321


def _check(stored: Stored, slow: SlowGraph, wanted: Wanted, kind: Kind, data: st.DataObject) -> None:
    """A batch of requests, of any form, is answered as it must be."""
    common = {"min_seq": stored.seq, "return": _everything(kind)}
    limits = {"num_hops": len(kind.fanouts), "num_neighbors": max(kind.fanouts)}
    options = st.fixed_dictionaries(
        {}, optional={name: st.integers(1, limit) for name, limit in limits.items()}
    )
    row = st.tuples(st.sampled_from([*slow.ids, _unknown(slow.ids)]), options)
    request = st.tuples(st.booleans(), st.lists(row, min_size=1, max_size=4))
    batch = data.draw(st.lists(request, min_size=1, max_size=3))
    requests: list[Any] = []
    for is_list, rows in batch:
        each = [{"node_id": node_id} | said | common for node_id, said in rows]
        alike = {"node_ids": [node_id for node_id, _ in rows]} | rows[0][1] | common
        requests.append(each[0] if len(each) == 1 else alike if is_list else {"instances": each})
    for (is_list, rows), (status, answer) in zip(batch, stored.ask(*requests), strict=True):
        found = [answer] if len(rows) == 1 else answer["predictions"]
        for (node_id, own), got in zip(rows, found, strict=True):
            if node_id == _unknown(slow.ids):
                assert got["error"]["code"] == "unknown_node"
                assert status == (404 if len(rows) == 1 else 200)
                continue
            assert got["graph"]["seq"] == stored.seq
            check_row(got, wanted, kind, node_id, **(rows[0][1] if is_list else own))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), orderings, rules, layer_fanouts.map(Sage) | kinds, st.data())
def test_answers_equal_the_definition_whatever_changes(
    store: Store, graph: EdgeData, ordering: Ordering, rules: EdgeRules, kind: Kind, data: st.DataObject
) -> None:
    """Samples are prefixes of the order, and embeddings those of float64, also after live changes."""
    slow = SlowGraph.of(graph, rules)
    plan, layout = BuildPlan(ordering, rules=rules), data.draw(store.layouts())
    with store.holding(graph.to_arrays(), kind.model, plan, layout) as stored:
        wanted = Wanted(slow, ordering)
        for row in stored.rows(slow.ids, **{"return": _everything(kind)}):
            check_row(row, wanted, kind, row["node_id"])
        _check(stored, slow, wanted, kind, data)
        for _ in range(data.draw(st.integers(0, 3))):
            change = data.draw(changes(slow.ids))
            if change == Change():
                continue
            before = stored.seq
            assert stored.change(**change.to_request(slow.ids))["first_seq"] == before + 1
            slow.apply(change)
            _check(stored, slow, Wanted(slow, ordering), kind, data)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), kinds, st.data())
def test_an_answer_does_not_depend_on_its_company(
    store: Store, graph: EdgeData, kind: Kind, data: st.DataObject
) -> None:
    company = data.draw(st.lists(st.sampled_from(graph.ids), min_size=1, max_size=20))
    junk = [b"{", {"node_id": _unknown(graph.ids)}, {"node_ids": [None]}, {"node_ids": []}, b""]
    requests = [*({"node_id": node_id} for node_id in company), *junk]
    order = data.draw(st.permutations(range(len(requests))))
    with store.holding(graph.to_arrays(), kind.model, layout=data.draw(store.layouts())) as stored:
        answers = stored.ask(*(requests[place] for place in order))
        for place, (status, answer) in zip(order, answers, strict=True):
            if place < len(company):
                assert status == 200
                alone = stored.answer(node_id=company[place])
                assert close(answer["embedding"], alone["embedding"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), orderings, rules, kinds, st.data())
def test_a_described_node_is_answered_as_if_it_were_there_and_leaves_no_trace(
    store: Store, graph: EdgeData, ordering: Ordering, rules: EdgeRules, kind: Kind, data: st.DataObject
) -> None:
    slow, asked = SlowGraph.of(graph, rules), {"node_ids": graph.ids, "return": _everything(kind)}
    name = "unheard" if isinstance(graph.ids[0], str) else 2**62 + 12345
    sources = data.draw(st.lists(st.integers(0, len(graph.ids) - 1), max_size=6))
    edges = [{"node_id": graph.ids[u], "weight": 1.0, "time": 2.0, "attr": [3.0]} for u in sources]
    node = {"node": {"node_id": name, "x": [0.5, -1.0, 2.0], "neighbors": edges}, "return": _everything(kind)}
    nameless = {"node": {"x": [1.0, 1.0, 1.0], "neighbors": edges}, "return": _everything(kind)}
    company = data.draw(st.sampled_from([[], [nameless, {"node_id": graph.ids[0]}, node]]))
    plan, layout = BuildPlan(ordering, rules=rules), data.draw(store.layouts())
    with store.holding(graph.to_arrays(), kind.model, plan, layout) as stored:
        before = stored.ask(asked)
        answers = stored.ask(node, *company)
        assert [status for status, _ in answers] == [200] * len(answers)
        there = Change((name,), (), (), _edges_to(len(slow.ids), sources))
        slow.apply(there)
        slow.x[-1] = [0.5, -1.0, 2.0]
        wanted = Wanted(slow, ordering)
        for _, answer in answers[::3]:
            check_row(answer, wanted, kind, name)
        if company:
            ((_, alone),) = stored.ask(nameless)
            assert answers[1][1]["node_id"] is None
            assert answers[1][1]["neighbors"] == alone["neighbors"]
            assert close(answers[1][1]["embedding"], alone["embedding"])
        assert stored.ask(asked) == before
        assert stored.ask({"node_id": name})[0][0] == 404
        if store.takes_described:
            check_row(stored.answer(**node, store=True), wanted, kind, name)
        else:
            assert stored.ask(node | {"store": True})[0][0] == 400
            featured = {"set_features": [{"node_id": name, "x": slow.x[-1]}]}
            stored.change(**there.to_request(graph.ids) | featured)
        check_row(stored.answer(node_id=name, **{"return": _everything(kind)}), wanted, kind, name)


def _edges_to(target: int, sources: list[int]) -> tuple[LiveEdge, ...]:
    return tuple(LiveEdge(u, target, 1.0, 2.0, 3.0) for u in sources)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), orderings, orderings, rules, st.data())
def test_a_model_may_sample_by_another_order_that_the_graph_stores(
    store: Store, graph: EdgeData, own: Ordering, extra: Ordering, rules: EdgeRules, data: st.DataObject
) -> None:
    assume(own.strategy != extra.strategy)
    slow, kind = SlowGraph.of(graph, rules), Sage(strategy=extra.strategy)
    plan, layout = BuildPlan(own, (extra,), rules), data.draw(store.layouts())
    with store.holding(graph.to_arrays(), kind.model, plan, layout) as stored:
        for _ in range(2):
            wanted = Wanted(slow, extra)
            for row in stored.rows(slow.ids, **{"return": EVERYTHING}):
                check_row(row, wanted, kind, row["node_id"])
            change = data.draw(changes(slow.ids))
            assume(change != Change())
            stored.change(**change.to_request(slow.ids))
            slow.apply(change)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(graphs_with_edge_data(), orderings, rules, st.data())
def test_one_edge_more_or_less_changes_a_sample_by_at_most_one(
    store: Store, graph: EdgeData, ordering: Ordering, rules: EdgeRules, data: st.DataObject
) -> None:
    place = st.integers(0, len(graph.ids) - 1)
    u, v = data.draw(st.tuples(place, place))
    edge = {"source": graph.ids[u], "target": graph.ids[v]}
    ends = {graph.ids[v], graph.ids[u]} if rules.undirected else {graph.ids[v]}

    def samples(stored: Stored) -> list[Counter[NodeId]]:
        rows = stored.rows(graph.ids, num_hops=1, **{"return": ["neighbors"]})
        return [Counter(row["neighbors"][0] if row["neighbors"] else []) for row in rows]

    plan = BuildPlan(ordering, rules=rules)
    with store.holding(graph.to_arrays(), SAGE.model, plan, data.draw(store.layouts())) as stored:
        stored.change(remove_edges=[edge])
        found = [samples(stored)]
        stored.change(add_edges=[edge | {"weight": 2.0, "time": 1.5, "attr": [7.0]}])
        found.append(samples(stored))
        stored.change(remove_edges=[edge | {"time": 1.5}])
        found.append(samples(stored))
    assert found[0] == found[2]
    for node_id, old, new in zip(graph.ids, *found[:2], strict=True):
        allowed = 1 if node_id in ends else 0
        assert (old - new).total() <= allowed
        assert (new - old).total() <= allowed


@pytest.mark.parametrize("ids", [[*range(7)], [40, -3, 7, 2**62, 0, 11, 5], [*"gcafb\u00fc\u20ac"]])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_question_has_the_same_answer(store: Store, strategy: Any, ids: list[Any]) -> None:
    """Whoever answers, and however often; for indices, other integers and strings as ids."""
    graph = EdgeData(ids, HUB.edges, HUB.weight, HUB.time)
    ordering = Ordering(strategy, 3)
    wanted = Wanted(SlowGraph.of(graph, EdgeRules()), ordering)
    with store.holding(graph.to_arrays(), SAGE.model, BuildPlan(ordering)) as stored:
        asked = {"node_ids": ids, "return": EVERYTHING}
        first = stored.ask(asked)
        for node_id, row in zip(ids, first[0][1]["predictions"], strict=True):
            check_row(row, wanted, SAGE, node_id)
        assert all(stored.ask(asked, worker=worker) == first for worker in (0, 1, 0, 1))


def test_nodes_may_be_alone_and_stand_in_a_list_twice(store: Store) -> None:
    with store.holding(HUB.to_arrays(), SAGE.model, BuildPlan(Ordering("first"))) as stored:
        rows = stored.rows([5, 0, 5, 0, 0], **{"return": EVERYTHING})
        assert [row["neighbors"] for row in rows[:2]] == [[], [[1, 2, 3], [0, 2, 3, 0]]]
        assert rows[0] == rows[2]
        assert rows[1] == rows[3] == rows[4]
        stored.change(add_nodes=[{"node_id": 70, "x": [1, 2, 3]}, {"node_id": 71}])
        stored.change(add_edges=[{"source": 5, "target": 71, "weight": 1, "time": 1, "attr": [1]}])
        rows = stored.rows([70, 71], **{"return": ["neighbors"]})
        assert [row["neighbors"] for row in rows] == [[], [[5]]]


def test_a_sample_may_be_smaller_than_the_models(store: Store) -> None:
    wanted = Wanted(SlowGraph.of(HUB, EdgeRules()), Ordering("recent"))
    with store.holding(HUB.to_arrays(), SAGE.model, BuildPlan(Ordering("recent"))) as stored:
        for num_neighbors in (1, 2, 3):
            for num_hops in (1, 2):
                options = {"num_neighbors": num_neighbors, "num_hops": num_hops}
                for row in stored.rows(list(HUB.ids), **options, **{"return": EVERYTHING}):
                    check_row(row, wanted, SAGE, row["node_id"], **options)
        for options in ({"num_neighbors": 4}, {"num_hops": 3}, {"num_neighbors": 0}):
            ((status, answer),) = stored.ask({"node_id": 0} | options)
            assert (status, answer["error"]["code"]) == (400, "malformed")


@pytest.mark.parametrize("ids", [[*range(7)], [*"gcafb\u00fc\u20ac"]])
def test_what_cannot_be_answered_errs_alone(store: Store, ids: list[Any]) -> None:
    graph = EdgeData(ids, HUB.edges, HUB.weight, HUB.time)
    other: NodeId = 1 if isinstance(ids[0], str) else "1"
    with store.holding(graph.to_arrays(), SAGE.model) as stored:
        good, empty, unknown, wrong, pairs, after = stored.ask(
            {"node_id": ids[1]},
            {"node_ids": []},
            {"node_id": _unknown(ids)},
            {"node_id": other},
            {"pairs": [[ids[1], ids[2]]]},
            {"node_id": ids[1]},
        )
        assert (good[0], after[0]) == (200, 200)
        assert good[1] == after[1]
        assert (empty[0], empty[1]["error"]["code"]) == (400, "malformed")
        assert "`node_ids` is empty" in empty[1]["error"]["message"]
        assert (unknown[0], unknown[1]["error"]["code"]) == (404, "unknown_node")
        assert f"the graph has no node {_unknown(ids)!r}" in unknown[1]["error"]["message"]
        assert (wrong[0], wrong[1]["error"]["code"]) == (400, "malformed")
        kind = "strings" if isinstance(ids[0], str) else "integers"
        assert f"this graph's node ids are {kind}" in wrong[1]["error"]["message"]
        assert (pairs[0], pairs[1]["error"]["code"]) == (400, "malformed")
        rows = stored.rows([ids[1], _unknown(ids), other, 2.5, None, ids[2]])
        codes = [row.get("error", {}).get("code") for row in rows]
        assert codes == [None, "unknown_node", *["malformed"] * 3, None]
        assert [row["node_id"] for row in rows] == [ids[1], _unknown(ids), other, None, None, ids[2]]


def test_edges_may_count_both_ways(store: Store) -> None:
    plan = BuildPlan(Ordering("first"), rules=EdgeRules(undirected=True, self_loops=False))
    said = {"weight": 1, "time": 9, "attr": [1]}
    with store.holding(HUB.to_arrays(), SAGE.model, plan) as stored:

        def neighbors() -> list[Any]:
            rows = stored.rows([1, 4, 5, 6], num_hops=1, **{"return": ["neighbors"]})
            return [row["neighbors"] for row in rows]

        assert neighbors() == [[[0, 2]], [[0, 6]], [[0]], [[4]]]
        stored.change(add_edges=[{"source": 5, "target": 1} | said, {"source": 6, "target": 6} | said])
        assert neighbors() == [[[0, 2, 5]], [[0, 6]], [[0, 1]], [[4]]]
        stored.change(remove_edges=[{"source": 4, "target": 6}, {"source": 1, "target": 5}])
        assert neighbors() == [[[0, 2]], [[0]], [[0]], []]


@pytest.fixture(scope="module")
def link_model() -> Model:
    class Embedding(nn.Module):
        """The model of `SAGE`, whose embeddings are compared."""

        def __init__(self) -> None:
            super().__init__()
            self.sage = SAGE.built()[1]

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.sage(x, edge_index)[0]

    return exported(Embedding().eval(), ExportPlan("link", FANOUTS, FEATURE_DIM, link_score="dot"))


def test_links_are_scored(store: Store, link_model: Model) -> None:
    slow, ordering = SlowGraph.of(HUB, EdgeRules()), Ordering("weighted")
    pairs = [(0, 1), (1, 0), (5, 0), (3, 3), (6, 70)]
    with store.holding(HUB.to_arrays(), link_model, BuildPlan(ordering)) as stored:
        for change in (Change((70,), ((7, 2.0),)), Change(added=_edges_to(7, [0, 1, 2, 3]))):
            stored.change(**change.to_request(slow.ids))
            slow.apply(change)
        wanted = Wanted(slow, ordering)
        embedding = {v: SAGE.output(wanted, v, FANOUTS, 2)[0] for pair in pairs for v in pair}
        answer = stored.answer(pairs=[*pairs, (0, 99), (0,)], **{"return": ["score", "probability"]})
        *rows, unknown, odd = answer["predictions"]
        for (u, v), row in zip(pairs, rows, strict=True):
            score = float(embedding[u] @ embedding[v])
            assert row["pair"] == [u, v]
            scale = float(np.linalg.norm(embedding[u]) * np.linalg.norm(embedding[v]))
            assert abs(row["score"] - score) <= 1e-5 * scale
            assert row["probability"] == pytest.approx(1 / (1 + np.exp(-score)), abs=1e-5 * max(1, scale))
        assert [row["error"]["code"] for row in (unknown, odd)] == ["unknown_node", "malformed"]


EDGE = {"source": 2, "target": 5, "weight": 1, "time": 1, "attr": [1]}


def test_a_change_says_which_mutations_it_is_and_answers_which_they_count(store: Store) -> None:
    with store.holding(HUB.to_arrays(), SAGE.model) as stored:
        assert stored.answer(node_id=5)["graph"]["seq"] == 0
        two = stored.change(add_edges=[EDGE, EDGE | {"source": 3}])
        assert two == {"first_seq": 1, "last_seq": 2, "repeated": False}
        one = stored.change(remove_edges=[{"source": 2, "target": 5}])
        assert (one["first_seq"], one["last_seq"]) == (3, 3)
        answer = stored.answer(node_id=5, **{"return": ["neighbors"]})
        assert (answer["graph"]["seq"], answer["neighbors"][0]) == (3, [3])
        ((status, refused),) = stored.append({"add_edges": [EDGE | {"target": 99}]})
        assert (status, refused["error"]["code"]) == (404, "unknown_node")
        late = stored.ask({"node_id": 5, "min_seq": 3, "return": ["neighbors"]}, worker=1)[0][1]
        assert late == answer


def test_a_mutation_counts_once_however_often_it_is_asked_for(store: Store) -> None:
    plan = BuildPlan(rules=EdgeRules(duplicates="keep"))
    with store.holding(HUB.to_arrays(), SAGE.model, plan) as stored:
        request = {"add_edges": [EDGE], "request_id": "once"}
        answers = stored.append(request, request)
        stored.bring_over()
        answers += stored.append(request)
        stored.bring_over()
        assert [answer["last_seq"] for _, answer in answers] == [1, 1, 1]
        assert stored.answer(node_id=5, **{"return": ["neighbors"]})["neighbors"][0] == [2]
        stored.change(add_edges=[EDGE])
        assert stored.answer(node_id=5, **{"return": ["neighbors"]})["neighbors"][0] == [2, 2]


def test_an_answer_is_as_fresh_as_asked_or_refused(store: Store) -> None:
    with store.holding(HUB.to_arrays(), SAGE.model, max_wait_s=0.2) as stored:
        stored.change(add_edges=[EDGE])
        (late, other) = stored.ask({"node_id": 5, "min_seq": 2}, {"node_id": 5})
        assert (late[0], late[1]["error"]["code"], other[0]) == (503, "not_fresh", 200)
        ((status, answer),) = stored.ask({"node_ids": [5, 0], "min_seq": 2})
        assert status == 200
        assert [row["error"]["code"] for row in answer["predictions"]] == ["not_fresh"] * 2
        assert stored.answer(node_id=5)["graph"]["seq"] == 1


def test_an_answer_waits_for_a_mutation_that_was_acknowledged(store: Store) -> None:
    with store.holding(HUB.to_arrays(), SAGE.model) as stored, ThreadPoolExecutor(1) as pool:
        before = stored.answer(node_id=5)
        stored.append({"add_edges": [EDGE]}, {"set_features": [{"node_id": 2, "x": [9, 9, 9]}]})
        waiting = pool.submit(stored.answer, node_id=5)
        time.sleep(0.02)
        stored.bring_over()
        answer = waiting.result()
        assert answer["graph"]["seq"] == stored.seq == 2
        assert not close(answer["embedding"], before["embedding"])


def test_changes_count_without_being_asked_for(store: Store) -> None:
    with store.holding(HUB.to_arrays(), SAGE.model) as stored:
        assert stored.answer(node_id=5)["graph"]["seq"] == 0
        stored.change(add_edges=[EDGE])
        deadline = time.monotonic() + 10
        while stored.ask({"node_id": 5})[0][1]["graph"]["seq"] < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
