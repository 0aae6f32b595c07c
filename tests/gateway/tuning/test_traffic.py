"""The requests by which a model is measured, from options and from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import UpstreamError
from gateway.tuning.traffic import random_traffic, read_traffic
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot

NUM_NODES = 5


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    ring = np.arange(NUM_NODES)
    write_snapshot(tmp_path / "ring", GraphArrays("ring", EdgeArrays(np.array([ring, (ring + 1) % 5])), 5))
    return Snapshot.open(tmp_path / "ring")


def _read(tmp_path: Path, *lines: Any, live: bool = False) -> list[Any]:
    file = tmp_path / "requests.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return [json.loads(body) for body in read_traffic(file, max_nodes=4, live=live).bodies]


def test_one_random_node_is_asked_for_alone(snapshot: Snapshot) -> None:
    traffic = random_traffic(snapshot, 1, 10, live=True)
    asked = [json.loads(body) for body in traffic.bodies]
    assert {request["node_id"] for request in asked} == set(range(NUM_NODES))
    assert {request["max_staleness_ms"] for request in asked} == {0}
    assert random_traffic(snapshot, 1, 10, live=True) == traffic, "so that all are measured by the same"


def test_several_nodes_of_a_request_are_all_different(snapshot: Snapshot) -> None:
    asked = [json.loads(body) for body in random_traffic(snapshot, 3, 10, live=False).bodies]
    assert all(len(set(request["node_ids"])) == 3 for request in asked)
    assert all(request.keys() == {"node_ids"} for request in asked)
    alone = random_traffic(snapshot, 1, 10, live=False)
    assert len(alone.bodies) < len(random_traffic(snapshot, 1, 10, live=True).bodies)


@pytest.mark.parametrize(
    ("num_nodes", "max_nodes", "problem"),
    [(6, 10, "6 nodes per request: the graph has only 5"), (4, 3, "the archive allows 3")],
)
def test_more_nodes_than_there_are_or_than_are_allowed(
    snapshot: Snapshot, num_nodes: int, max_nodes: int, problem: str
) -> None:
    with pytest.raises(UpstreamError, match=problem):
        random_traffic(snapshot, num_nodes, max_nodes, live=True)


def test_requests_are_sent_again_and_again(snapshot: Snapshot) -> None:
    traffic = random_traffic(snapshot, 1, 10, live=True)
    count = len(traffic.bodies)
    sent = list(traffic.several(count + 1))
    assert len(sent) == count + 1
    assert sent[0] == sent[-1]
    assert sent[0].headers == {"Content-Type": "application/json"}
    assert len(list(traffic.during(0.01))) > 0
    assert list(traffic.during(-1)) == []


def test_requests_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    lines = [{"node_id": 1, "max_staleness_ms": 50}, {"pairs": [[1, 2]]}, {"node": {"neighbors": [1]}}]
    assert _read(tmp_path, lines[0], "", lines[1], "  ", lines[2]) == lines


def test_requests_of_a_file_can_be_computed_whatever_they_say(tmp_path: Path) -> None:
    instances = {"instances": [{"node_id": 1, "max_staleness_ms": 50}, {"node_id": 2}]}
    assert _read(tmp_path, {"node_id": 1, "max_staleness_ms": 50}, instances, live=True) == [
        {"node_id": 1, "max_staleness_ms": 0},
        {"instances": [{"node_id": 1, "max_staleness_ms": 0}, {"node_id": 2, "max_staleness_ms": 0}]},
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "the request cannot be read"),
        ({}, "expected exactly one of"),
        ({"node_id": 1, "depth": 2}, "unknown field `depth`"),
        ({"node_ids": [1, 2.5]}, "not a node id"),
        ({"node_ids": [1, 2, 3, 4, 5]}, "5"),
        ({"node": {"node_id": 9}, "store": True}, "`store` would change the graph"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, problem: str) -> None:
    with pytest.raises(UpstreamError, match=rf"requests.jsonl, line 3: .*{problem}"):
        _read(tmp_path, {"node_id": 1}, "", line)


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="requests.jsonl: has no requests"):
        _read(tmp_path, "", " ")
    with pytest.raises(UpstreamError, match="absent: cannot be read"):
        read_traffic(tmp_path / "absent", 4, live=False)
