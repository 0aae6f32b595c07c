"""Each task answers in its own words: labels by thresholds, numbers by name, scores of pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from archive.export.plan import ExportPlan
from tests.graphs import FEATURE_DIM
from tests.served import RING, Answering, close, exported

LABELS = ("good", "bad", "ugly")


class Net(nn.Module):
    """One layer, a prediction of it, and a head for links."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = SAGEConv(FEATURE_DIM, 4)
        self.lin = nn.Linear(4, num_outputs) if num_outputs else None
        self.head = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        h = self.conv(x, edge_index)
        return h if self.lin is None else (h, 3 * self.lin(h))


def _serve(num_outputs: int, **plan: Any) -> tuple[Net, Answering]:
    model = Net(num_outputs).eval()
    if plan.get("link_score") == "head":
        plan["head"] = model.head
    served = exported(model, ExportPlan(layer_fanouts=(4,), feature_dim=FEATURE_DIM, **plan))
    return model, Answering(RING.to_snapshot(), served)


def _classes(**plan: Any) -> Answering:
    return _serve(3, task="classification", labels=LABELS, **plan)[1]


def _probabilities(served: Answering) -> list[dict[str, float]]:
    ((_, answer),) = served.ask({"node_ids": list(range(6)), "return": ["probabilities"]})
    return [row["probabilities"] for row in answer["predictions"]]


def _labels(served: Answering, **options: object) -> list[Any]:
    ((status, answer),) = served.ask({"node_ids": list(range(6)), **options})
    assert status == 200
    return [row.get("labels", row.get("label")) for row in answer["predictions"]]


def _most_probable(row: dict[str, float], least: dict[str, float]) -> str | None:
    reached = {label: p for label, p in row.items() if p >= least.get(label, 0)}
    return max(reached, key=reached.__getitem__) if reached else None


def test_a_label_is_given_only_where_it_reaches_its_threshold() -> None:
    rows = _probabilities(_classes())
    middle = sorted(row["bad"] for row in rows)[3]
    least = {"bad": middle, "good": 0.99}
    served = _classes(thresholds=least)
    assert _probabilities(served) == rows
    found = _labels(served)
    assert found == [_most_probable(row, least) for row in rows]
    assert found != [_most_probable(row, {}) for row in rows]


def test_a_request_may_bring_its_own_threshold() -> None:
    served = _classes(thresholds={"bad": 1.0, "good": 1.0, "ugly": 1.0})
    rows = _probabilities(served)
    assert _labels(served) == [None] * 6
    assert _labels(served, threshold=0) == [_most_probable(row, {}) for row in rows]
    high = sorted(max(row.values()) for row in rows)[3]
    wanted = [_most_probable(row, dict.fromkeys(LABELS, high)) for row in rows]
    assert None in wanted
    assert _labels(served, threshold=high) == wanted


def test_nodes_of_one_request_may_have_different_thresholds() -> None:
    rows = [{"node_id": 1, "threshold": 1.0}, {"node_id": 1}, {"node_id": 1, "threshold": 0.0}]
    ((_, answer),) = _classes().ask({"instances": rows})
    assert [row["label"] is None for row in answer["predictions"]] == [True, False, False]


def test_with_several_labels_each_has_a_probability_of_its_own() -> None:
    model, served = _serve(3, task="classification", labels=LABELS, multi_label=True, thresholds={"bad": 0.3})
    rows = _probabilities(served)
    snapshot = served.snapshot
    with torch.no_grad():
        edges = torch.tensor(RING.edges).T
        logits = model(torch.from_numpy(RING.features()), edges)[1].numpy()
    assert close([list(row.values()) for row in rows], 1 / (1 + np.exp(-logits.astype(np.float64))))
    least = {"good": 0.5, "bad": 0.3, "ugly": 0.5}
    assert _labels(served) == [[label for label, p in row.items() if p >= least[label]] for row in rows]
    assert _labels(served, threshold=0.0) == [list(LABELS)] * 6
    assert snapshot.num_nodes == 6


def test_a_single_logit_is_one_label_or_none() -> None:
    _, served = _serve(1, task="classification", labels=("fraud",), multi_label=True)
    assert _labels(served) == [["fraud"] if row["fraud"] >= 0.5 else [] for row in _probabilities(served)]


def test_a_regression_gives_numbers_by_name() -> None:
    model, served = _serve(2, task="regression", targets=("price", "risk"))
    ((_, answer),) = served.ask({"node_id": 2})
    assert list(answer)[:3] == ["node_id", "embedding", "values"]
    with torch.no_grad():
        wanted = model(torch.from_numpy(RING.features()), torch.tensor(RING.edges).T)[1][2]
    assert close(list(answer["values"].values()), wanted)
    assert list(answer["values"]) == ["price", "risk"]
    ((_, answer),) = served.ask({"node_id": 2, "return": ["values"]})
    assert "embedding" not in answer
    ((status, answer),) = served.ask({"node_id": 2, "return": ["label"]})
    assert status == 400
    assert "this model gives no label, only embedding, values" in answer["error"]["message"]
    ((status, answer),) = served.ask({"node_id": 2, "threshold": 0.5})
    assert (status, "gives no labels" in answer["error"]["message"]) == (400, True)


class Logits(Net):
    """A model that gives a prediction alone."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return super().forward(x, edge_index)[1]


def test_a_model_may_give_a_prediction_alone() -> None:
    plan = ExportPlan(task="classification", layer_fanouts=(4,), feature_dim=FEATURE_DIM, labels=LABELS)
    served = Answering(RING.to_snapshot(), exported(Logits(3), plan))
    ((_, answer),) = served.ask({"node_id": 1})
    assert list(answer)[:2] == ["node_id", "label"]
    ((status, answer),) = served.ask({"node_id": 1, "return": ["embedding"]})
    assert status == 400
    assert "gives no embedding, only label, probabilities" in answer["error"]["message"]


PAIRS = [[0, 1], [1, 0], [3, 3], [5, 2], [0, 1]]


@pytest.mark.parametrize("link_score", ["dot", "cosine", "head"])
def test_pairs_are_scored_by_their_embeddings(link_score: str) -> None:
    model, served = _serve(0, task="link", link_score=link_score)
    z = np.stack([served.embedding({"node_id": node}) for node in range(6)])
    u, v = z[[pair[0] for pair in PAIRS]], z[[pair[1] for pair in PAIRS]]
    if link_score == "head":
        with torch.no_grad():
            wanted = model.head(torch.from_numpy(np.concatenate([u, v], axis=1)).float())[:, 0].numpy()
    else:
        wanted = (u * v).sum(axis=1)
        if link_score == "cosine":
            wanted = wanted / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    ((status, answer),) = served.ask({"pairs": PAIRS})
    assert status == 200
    rows = answer["predictions"]
    assert [row["pair"] for row in rows] == PAIRS
    assert close([row["score"] for row in rows], wanted)
    assert list(rows[0]) == ["pair", "score", "source", "model_version", "graph", "age_ms", "sampled"]
    ends = [served.ask({"node_id": end})[0][1]["sampled"] for end in PAIRS[3]]
    assert rows[3]["sampled"] == ends
    ((status, answer),) = served.ask({"pairs": PAIRS, "return": ["probability"]})
    if link_score == "cosine":
        assert status == 400
    else:
        found = [row["probability"] for row in answer["predictions"]]
        assert close(found, 1 / (1 + np.exp(-np.asarray(wanted, dtype=np.float64))))
        assert "score" not in answer["predictions"][0]


def test_a_bad_pair_errs_alone() -> None:
    _, served = _serve(0, task="link", link_score="dot")
    pairs = [[0, 1], [0, 77], ["x", 1], [1], 5, [None, 2], [0, 1, 2], [77, 78]]
    (before, (status, answer), after) = served.ask({"node_id": 1}, {"pairs": pairs}, {"node_id": 2})
    assert (before[0], status, after[0]) == (200, 200, 200)
    assert after[1]["node_id"] == 2
    codes = [row.get("error", {}).get("code") for row in answer["predictions"]]
    assert codes == [None, "unknown_node", *["malformed"] * 5, "unknown_node"]
    assert [row["pair"] for row in answer["predictions"]][1:4] == [[0, 77], ["x", 1], [None, None]]


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        ({"pairs": []}, 400, "`pairs` is empty"),
        ({"pairs": [[0, 1]] * 1025}, 413, "2050 nodes asked for, at most 2048"),
        ({"pairs": [[0, 1]], "num_hops": 2}, 200, "this model has 1 layers"),
        ({"pairs": [[0, 1]], "return": ["embedding"]}, 400, "Invalid enum value 'embedding'"),
        ({"pairs": 5}, 400, "Expected `array`"),
        ({"pairs": [[0, 1]], "node_id": 1}, 400, "exactly one of"),
    ],
)
def test_what_cannot_be_scored_is_refused(request_: object, status: int, message: str) -> None:
    _, served = _serve(0, task="link", link_score="dot")
    ((found, answer),) = served.ask(request_)
    assert found == status
    error = answer.get("error") or answer["predictions"][0]["error"]
    assert message in error["message"]


def test_a_model_of_another_task_scores_no_pairs() -> None:
    ((status, answer),) = _classes().ask({"pairs": [[0, 1]]})
    assert (status, "scores no pairs" in answer["error"]["message"]) == (400, True)
