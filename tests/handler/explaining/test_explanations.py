"""Explanations are those of the model: they add up, and say what leaving things out would do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

from archive.export.plan import ExportPlan
from handler.graph.snapshot import Snapshot
from handler.model.exported import ExportedModel
from tests.graphs import FEATURE_DIM, SmallGraph, small_graphs
from tests.models import random_model
from tests.served import RING, Answering, Served, exported, loaded

_WIDE = (50, 50)  # more than any node has: leaving an edge out is then what the graph would be without it


def _explain(served: Answering, *requests: object) -> list[tuple[int, Any]]:
    bodies = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in requests]
    return [(r.status.value, json.loads(r.body)) for r in served.service.explain(bodies)]


def _explained(served: Answering, **request: object) -> dict[str, Any]:
    ((status, answer),) = _explain(served, {"top": 10_000, **request})
    assert status == 200, answer
    return dict(answer)


def _simple(graph: SmallGraph) -> SmallGraph:
    """Without self-loops and repeated edges."""
    return dataclasses.replace(graph, edges=sorted({(u, v) for u, v in graph.edges if u != v}))


def _without(graph: SmallGraph, *edges: tuple[object, object]) -> SmallGraph:
    """The same nodes, without the edges between these ids."""
    ids: list[Any] = list(graph.ids)
    gone = {(ids.index(source), ids.index(target)) for source, target in edges}
    return dataclasses.replace(graph, edges=[edge for edge in graph.edges if edge not in gone])


def _log_odds(served: Answering, node_id: object, label: str) -> float:
    ((_, answer),) = served.ask({"node_id": node_id, "return": ["probabilities"]})
    probability = answer["probabilities"][label]
    return float(np.log(probability) - np.log1p(-probability))


@settings(max_examples=25)
@given(small_graphs(), st.data())
def test_gradients_add_up_to_the_score(graph: SmallGraph, data: st.DataObject) -> None:
    served = Served(graph.to_snapshot(), *random_model((3, 2)))
    node_id = data.draw(st.sampled_from(graph.ids))
    answer = _explained(served, node_id=node_id)
    assert answer["method"] == "integrated_gradients"
    label = answer["explained"]["label"]
    assert answer["score"] == pytest.approx(_log_odds(served, node_id, label), rel=1e-3, abs=1e-4)
    moved = answer["score"] - answer["baseline"]
    if answer["complete"]:
        for part in ("nodes", "features"):
            total = sum(row["importance"] for row in answer[part])
            assert total == pytest.approx(moved, rel=0.011, abs=0.011 * abs(answer["score"]) + 1e-5)
    assert _explained(served, node_id=node_id)["nodes"] == answer["nodes"], "the same every time"


@settings(max_examples=25)
@given(small_graphs(), st.data())
def test_occlusion_says_what_the_graph_without_an_edge_would(graph: SmallGraph, data: st.DataObject) -> None:
    graph = _simple(graph)
    config, model = random_model(_WIDE)
    served = Served(graph.to_snapshot(), config, model)
    node_id = data.draw(st.sampled_from(graph.ids))
    answer = _explained(served, node_id=node_id, method="occlusion")
    assert answer["complete"]
    label = answer["explained"]["label"]
    for edge in answer["edges"]:
        other = Served(_without(graph, (edge["source"], edge["target"])).to_snapshot(), config, model)
        fall = answer["score"] - _log_odds(other, node_id, label)
        assert edge["importance"] == pytest.approx(fall, abs=2e-4)


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion"])
def test_fidelity_is_what_leaving_out_edges_does(method: str) -> None:
    config, model = random_model(_WIDE)
    served = Served(RING.to_snapshot(), config, model)
    answer = _explained(served, node_id=1, method=method)
    best = [(edge["source"], edge["target"]) for edge in answer["edges"][:5]]
    assert answer["fidelity"]["edges"] == len(best) == 5
    label = answer["explained"]["label"]
    other = Served(_without(RING, *best).to_snapshot(), config, model)
    assert answer["fidelity"]["without"] == pytest.approx(_log_odds(other, 1, label), abs=1e-4)


def test_what_a_linear_model_says_is_split_exactly() -> None:
    """Of a linear model both methods give each node and feature just what it adds."""

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = SAGEConv(FEATURE_DIM, 4), SAGEConv(4, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index), edge_index)

    served = Answering(
        RING.to_snapshot(), exported(Linear().eval(), ExportPlan("embedding", (3, 2), FEATURE_DIM))
    )
    by_gradients = _explained(served, node_id=1)
    by_occlusion = _explained(served, node_id=1, method="occlusion")
    assert by_gradients["explained"] == {"embedding": True}
    for part, key in (("nodes", "node_id"), ("features", "feature")):
        found, wanted = (
            {row[key]: row["importance"] for row in a[part]} for a in (by_gradients, by_occlusion)
        )
        assert found == pytest.approx(wanted, abs=1e-4)


def test_an_edge_carries_all_that_lies_below_it() -> None:
    answer = _explained(Served(RING.to_snapshot(), *random_model((3, 2))), node_id=1)
    below = sum(row["importance"] for row in answer["nodes"] if row["hop"])
    direct = sum(edge["importance"] for edge in answer["edges"] if edge["hop"] == 1)
    assert direct == pytest.approx(below, rel=1e-6)


class _Plain(nn.Module):
    """As users write it, called over a whole batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = SAGEConv(FEATURE_DIM, 5), SAGEConv(5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class _Degrees(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(FEATURE_DIM, 5), GCNConv(5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


_CLASSES: dict[str, Any] = {"labels": ("a", "b")}


@pytest.mark.parametrize("model", [_Plain(), _Degrees()], ids=["sage", "gcn"])
@pytest.mark.parametrize("contract", ["layered", "plain"])
def test_every_contract_is_explained_alike(model: nn.Module, contract: str) -> None:
    if contract == "plain" and isinstance(model, _Degrees):
        pytest.skip("a plain model takes no degrees")
    plan = ExportPlan("classification", (3, 2), FEATURE_DIM, **_CLASSES)
    plan = dataclasses.replace(plan, contract=contract)
    served = Answering(RING.to_snapshot(), exported(model.eval(), plan))
    by_gradients, by_occlusion = (_explained(served, node_id=1, method=m) for m in _METHODS)
    assert by_gradients["score"] == pytest.approx(by_occlusion["score"], abs=1e-5)
    total = sum(row["importance"] for row in by_gradients["nodes"])
    assert total == pytest.approx(by_gradients["score"] - by_gradients["baseline"], rel=0.02, abs=1e-3)
    assert {edge["hop"] for edge in by_occlusion["edges"]} == {1, 2}


_METHODS = ("integrated_gradients", "occlusion")


def test_a_format_without_gradients_is_explained_by_occlusion() -> None:
    pytest.importorskip("onnxruntime")
    plan = ExportPlan("classification", (3, 2), FEATURE_DIM, file_format="onnx", **_CLASSES)
    served = Answering(RING.to_snapshot(), exported(_Plain().eval(), plan))
    assert _explained(served, node_id=1)["method"] == "occlusion"
    ((status, answer),) = _explain(served, {"node_id": 1, "method": "integrated_gradients"})
    assert (status, answer["error"]["code"]) == (400, "malformed")
    assert "`occlusion`" in answer["error"]["message"]


@pytest.mark.parametrize("link_score", ["dot", "cosine", "head"])
@pytest.mark.parametrize("method", _METHODS)
def test_a_link_is_explained_by_the_samples_of_both_ends(link_score: str, method: str) -> None:
    head = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)) if link_score == "head" else None
    plan = ExportPlan("link", (3, 2), FEATURE_DIM, link_score=link_score, head=head)  # type: ignore[arg-type]
    served = Answering(RING.to_snapshot(), exported(_Plain().eval(), plan))
    answer = _explained(served, pair=[1, 4], method=method)
    assert (answer["pair"], answer["explained"]) == ([1, 4], {"link": True})
    ((_, scored),) = served.ask({"pairs": [[1, 4]]})
    assert answer["score"] == pytest.approx(scored["predictions"][0]["score"], rel=1e-4)
    assert {row["node_id"] for row in answer["nodes"] if row["hop"] == 0} == {1, 4}


def test_a_label_or_a_target_may_be_chosen() -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    a, b = (_explained(served, node_id=1, label=label)["score"] for label in ("a", "b"))
    assert a == pytest.approx(-b, rel=1e-4)
    plan = ExportPlan("regression", (3, 2), FEATURE_DIM, targets=("price", "risk"))
    numbers = Answering(RING.to_snapshot(), exported(_Plain().eval(), plan))
    answer = _explained(numbers, node_id=1, target="risk")
    ((_, predicted),) = numbers.ask({"node_id": 1})
    assert answer["explained"] == {"target": "risk"}
    assert answer["score"] == pytest.approx(predicted["values"]["risk"], rel=1e-4)
    several = ExportPlan("classification", (3, 2), FEATURE_DIM, multi_label=True, **_CLASSES)
    multi = Answering(RING.to_snapshot(), exported(_Plain().eval(), several))
    answer = _explained(multi, node_id=1, label="b")
    assert answer["score"] == pytest.approx(_log_odds(multi, 1, "b"), rel=1e-3)


def test_a_described_node_is_explained_as_if_it_were_there() -> None:
    config, model = random_model(_WIDE)
    served = Served(RING.to_snapshot(), config, model)
    x = RING.features()[0].tolist()
    smaller = _without(RING, *[(u, v) for u in range(6) for v in range(6) if 0 in (u, v)])
    among = Served(smaller.to_snapshot(), config, model)
    described = _explained(among, node={"x": x, "neighbors": [5]})
    same = _explained(Served(_without(RING, (0, 1)).to_snapshot(), config, model), node_id=0)
    assert described["node_id"] is None
    assert described["score"] == pytest.approx(same["score"], rel=1e-4)
    assert [edge["importance"] for edge in described["edges"]] == pytest.approx(
        [edge["importance"] for edge in same["edges"]], abs=1e-4
    )
    ((status, _),) = among.ask({"node_id": 0})
    assert status == 200
    assert served.ask({"node_id": 0})[0][0] == 200


def test_many_are_explained_and_one_bad_row_harms_no_other() -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    rows = [{"node_id": 1}, {"node_id": 77}, {"pair": [1, 2]}, {"node_id": 1, "label": "c"}, {"x": 1}]
    instances, listed, malformed = _explain(served, {"instances": rows}, {"node_ids": [2, 1, None]}, b"{")
    assert instances[0] == listed[0] == 200
    assert malformed[0] == 400
    first, unknown, pair, label, nothing = instances[1]["explanations"]
    assert first["nodes"][0]["importance"]
    assert unknown == {
        "node_id": 77, "error": {"code": "unknown_node", "message": "the graph has no node 77"}
    }  # fmt: skip
    for row, words in ((pair, "scores no pairs"), (label, "is no label"), (nothing, "expected exactly one")):
        assert row["error"]["code"] == "malformed"
        assert words in row["error"]["message"]
    second, again, wrong = listed[1]["explanations"]
    assert (wrong["node_id"], wrong["error"]["code"]) == (None, "malformed")
    assert second["node_id"] == 2
    assert again["nodes"] == first["nodes"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (b"", "no body"),
        ({}, "expected exactly one"),
        ({"node_ids": []}, "is empty"),
        ({"instances": []}, "is empty"),
        ({"node_id": 1, "top": 0}, "top"),
        ({"node_id": 1, "method": "guess"}, "guess"),
        ({"node_id": 1, "return": ["label"]}, "return"),
        ({"pair": [1]}, "length 2"),
        ({"node_id": "x"}, "ids are integers"),
        ({"node_id": 1, "num_hops": 3}, "num_hops"),
        ({"node_id": 1, "as_of": 5}, "as_of"),
        ({"node_id": 1, "target": "x"}, "no target"),
        ({"node": {"x": [1.0]}}, "numbers"),
    ],
)
def test_what_cannot_be_explained_is_said(request_: object, words: str) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    ((status, answer),) = _explain(served, request_)
    assert (status, answer["error"]["code"]) == (400, "malformed")
    assert words in answer["error"]["message"]


def test_explanations_that_come_together_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)))
    clock = iter(range(100))
    monkeypatch.setattr("handler.service.time.monotonic", lambda: float(next(clock)))
    answers = _explain(served, {"node_id": 1}, {"node_id": 2})
    assert [status for status, _ in answers] == [429, 429]
    assert answers[0][1]["error"]["code"] == "over_time"


def test_too_many_nodes_are_refused() -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)), max_nodes_per_request=2)
    ((status, answer),) = _explain(served, {"node_ids": [1, 2, 3]})
    assert (status, answer["error"]["code"]) == (413, "too_many_nodes")


def test_a_sample_that_is_cut_is_explained_as_it_is_answered() -> None:
    served = Served(RING.to_snapshot(), *random_model((3, 2)), max_nodes_per_forward=4)
    answer = _explained(served, node_id=1)
    ((_, predicted),) = served.ask({"node_id": 1})
    assert answer["sampled"] == predicted["sampled"]
    assert answer["sampled"]["truncated"]


def test_gradients_that_fail_leave_occlusion(snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    config, _ = random_model((3, 2))
    model = loaded(config)

    class Broken(ExportedModel):
        def differentiable(self, given: Any) -> tuple[Tensor, Tensor]:
            raise RuntimeError("derivative for hopserve::op is not implemented")

    broken = Broken(model.signature, model._runtime, model.device)
    answer = _explained(Answering(snapshot, broken), node_id=1)
    assert (answer["method"], answer["complete"]) == ("occlusion", True)
    assert "cannot be differentiated" in caplog.text


@pytest.fixture
def snapshot() -> Snapshot:
    return RING.to_snapshot()


def test_a_node_without_neighbors_and_features_is_explained() -> None:
    class Nothing(SmallGraph):
        def features(self) -> NDArray[np.float32]:
            return np.zeros((len(self.ids), FEATURE_DIM), dtype=np.float32)

    served = Served(Nothing(["lonely"], []).to_snapshot(), *random_model((3, 2)))
    for method in _METHODS:
        answer = _explained(served, node_id="lonely", method=method)
        assert answer["edges"] == answer["features"] == []
        assert answer["nodes"] == [{"node_id": "lonely", "hop": 0, "importance": 0.0}]
        assert answer["fidelity"]["without"] == answer["score"] == answer["baseline"]
