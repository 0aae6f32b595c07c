"""What is made of two versions' answers to the same request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.judging.policy import Policy
from gateway.rollout.comparing import Answer, Comparisons, paired


def _answer(*rows: Any, status: int = 200) -> tuple[int, bytes]:
    content = rows[0] if len(rows) == 1 else {"predictions": rows}
    return status, json.dumps(content).encode()


def _row(node: Any, label: str = "a") -> dict[str, Any]:
    return {"node_id": node, "embedding": [1.0, 2.0], "label": label}


def _error(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": ""}}


def test_rows_are_compared_one_by_one() -> None:
    pairs = list(paired(_answer(_row(1), _row(2)), _answer(_row(1), _row(2, "b"))))
    assert [(one.node, one.label, other.label) for one, other in pairs] == [("1", "a", "a"), ("2", "a", "b")]
    assert [one.failed or other.failed for one, other in pairs] == [False, False]


@pytest.mark.parametrize("status", [500, 503, 507])
def test_a_request_that_fails_is_one_failure_however_many_nodes_it_names(status: int) -> None:
    ((_, other),) = paired(_answer(_row(1), _row(2), _row(3)), _answer(_error("internal"), status=status))
    assert other.failed


def test_what_is_the_clients_fault_is_no_failure() -> None:
    unknown = _answer(_error("unknown_node"), status=404)
    ((one, other),) = paired(unknown, unknown)
    assert (one.failed, other.failed) == (False, False)


def test_torchserves_own_words_are_a_failure() -> None:
    gone = 404, b'{"code": 404, "type": "ModelNotFoundException", "message": "no such model"}'
    ((_, other),) = paired(_answer(_row(1)), gone)
    assert other.failed


def test_numbers_that_are_none_are_a_failure() -> None:
    broken = 200, b'{"node_id": 1, "embedding": [1.0, 1e39]}'
    ((_, other),) = paired(_answer(_row(1)), broken)
    assert other.failed


@pytest.mark.parametrize("lost", [(0, b""), (200, b"nonsense"), (500, b"{}")])
def test_nothing_is_concluded_where_the_old_version_fails(lost: tuple[int, bytes]) -> None:
    assert list(paired(lost, _answer(_row(1)))) == []


def test_each_node_counts_once() -> None:
    comparisons = Comparisons(Policy(), 1.0)
    for _ in range(3):
        comparisons.add(Answer("1", label="a"), Answer("1", label="b"))
    comparisons.add(Answer("2", label="a"), Answer("2", failed=True))
    comparisons.add(Answer("3", failed=True), Answer("3", failed=True))
    summary = comparisons.summary()
    assert (summary.compared, summary.failed) == (2, 1)
    assert (summary.labels_compared, summary.labels_differ) == (1, 1)
    assert summary.similarity is None


def test_embeddings_are_compared_when_there_are_enough() -> None:
    comparisons = Comparisons(Policy(min_compared=30), 1.0)
    rng = np.random.default_rng(0)
    for node in range(40):
        embedding = rng.standard_normal(4).astype(np.float32)
        comparisons.add(Answer(str(node), embedding), Answer(str(node), 2 * embedding))
        if node == 28:
            assert comparisons.summary().similarity is None
    assert comparisons.summary().similarity == pytest.approx(1)
    for node in range(40, 200):
        noise = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
        comparisons.add(*(Answer(str(node), one) for one in noise))
    assert (comparisons.summary().similarity or 1) < 0.9


def test_embeddings_of_other_dimensions_are_compared_too() -> None:
    comparisons = Comparisons(Policy(min_compared=30), 1.0)
    rng = np.random.default_rng(0)
    for node in range(40):
        embedding = rng.standard_normal(4).astype(np.float32)
        wider = np.concatenate([embedding, np.zeros(3, dtype=np.float32)])
        comparisons.add(Answer(str(node), embedding), Answer(str(node), wider))
    assert comparisons.summary().similarity == pytest.approx(1)
