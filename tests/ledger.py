"""What clients have asked a graph for, one change after the other, and what that must make of it.

Edges may repeat in these graphs, and each has a time of its own: one that is lost shows, and so does one
that is there twice.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.home import write_home
from handler.graph.rules import EdgeRules
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot
from tests.graphs import FEATURE_DIM
from tests.replay import contents

NUM_NODES = 200
_NUM_EDGES = 600
_MOST_CLIENTS = 16
_PLAN = BuildPlan(rules=EdgeRules(duplicates="keep"))

Edge = tuple[int, int]


@dataclass(frozen=True)
class Acknowledged:
    """A change that was acknowledged, as it was asked for."""

    body: bytes
    first_seq: int
    last_seq: int

    def as_repeated(self) -> dict[str, Any]:
        """The answer to the same request when it comes again."""
        return {"first_seq": self.first_seq, "last_seq": self.last_seq, "repeated": True}


@dataclass
class Ledger:
    """The changes of one client, who asks for the next one when the last is acknowledged.

    Args:
        number: of the client, from 0.
        edges: by time, those that the client has added and not removed.
        nodes: features by id, of those that the client has added.
    """

    number: int
    edges: dict[float, Edge] = field(default_factory=dict)
    nodes: dict[int, list[float]] = field(default_factory=dict)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    num_repeated: int = 0
    _pending: dict[str, Any] | None = None
    _num_edges: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.number)

    def ask(self, num_edges: int | None = None) -> bytes:
        """The change that is not acknowledged yet, or else a new one.

        Args:
            num_edges: that it adds; a few without.
        """
        if self._pending is None:
            self._pending = self._draw(num_edges or self._random.randrange(1, 5))
        return json.dumps(self._pending).encode()

    def acknowledge(self, answer: dict[str, Any]) -> None:
        """Take note of the answer to what was asked."""
        change, body = self._pending, self.ask()
        assert change is not None
        assert answer["last_seq"] >= answer["first_seq"] > self.last_seq, answer
        self.num_repeated += answer["repeated"]
        self.acknowledged.append(Acknowledged(body, answer["first_seq"], answer["last_seq"]))
        self.nodes |= {node["node_id"]: node["x"] for node in change["add_nodes"]}
        for edge in change["remove_edges"]:
            del self.edges[edge["time"]]
        for edge in change["add_edges"]:
            self.edges[edge["time"]] = (edge["source"], edge["target"])
        self._pending = None

    @property
    def is_waiting(self) -> bool:
        """Whether something was asked for and is not acknowledged yet."""
        return self._pending is not None

    @property
    def last_seq(self) -> int:
        """The latest mutation that was acknowledged."""
        return self.acknowledged[-1].last_seq if self.acknowledged else 0

    def _draw(self, num_edges: int) -> dict[str, Any]:
        draw = self._random
        new: list[dict[str, Any]] = []
        if draw.random() < 0.2:
            node_id = NUM_NODES + self.number + _MOST_CLIENTS * len(self.nodes)
            new.append({"node_id": node_id, "x": [float(draw.randrange(-9, 9)) for _ in range(FEATURE_DIM)]})
        removed = []
        if self.edges and draw.random() < 0.3:
            time = draw.choice(list(self.edges))
            source, end = self.edges[time]
            removed.append({"source": source, "target": end, "time": time})
        added = []
        for _ in range(num_edges):
            target: int = (
                new[0]["node_id"] if new else min(draw.randrange(NUM_NODES), draw.randrange(NUM_NODES))
            )
            time = float(self.number + _MOST_CLIENTS * self._num_edges)
            added.append({"source": draw.randrange(NUM_NODES), "target": target, "time": time})
            self._num_edges += 1
        request_id = f"{self.number}-{len(self.acknowledged)}"
        return {"add_nodes": new, "remove_edges": removed, "add_edges": added, "request_id": request_id}


def write_first(folder: Path) -> None:
    """The home of the graph with which all clients begin."""
    write_home(folder, _arrays([]), _PLAN)


def rebuilt(ledgers: Sequence[Ledger]) -> Snapshot:
    """The graph with all that was acknowledged, built from scratch."""
    with TemporaryDirectory() as folder:
        write_snapshot(Path(folder, "graph"), _arrays(ledgers), _PLAN)
        return Snapshot.open(Path(folder, "graph"))


def check_exactly_once(found: Snapshot, ledgers: Sequence[Ledger]) -> None:
    """What was acknowledged is there, once each, and nothing else."""
    here, there = contents(found), contents(rebuilt(ledgers))
    have, want = Counter(here["time"].tolist()), Counter(there["time"].tolist())
    assert (want - have, have - want) == (Counter(), Counter()), "what is lost, and what is too much"
    for name, array in there.items():
        assert np.array_equal(here[name], array), name


def _arrays(ledgers: Sequence[Ledger]) -> GraphArrays:
    draw = np.random.default_rng(0)
    ends = draw.integers(0, NUM_NODES, (2, _NUM_EDGES))
    time = -1.0 - np.arange(_NUM_EDGES)
    x = draw.standard_normal((NUM_NODES, FEATURE_DIM)).astype(np.float32)
    ids = np.arange(NUM_NODES)
    for ledger in ledgers:
        ids = np.append(ids, np.array(list(ledger.nodes), dtype=np.int64))
        x = np.concatenate([x, np.array(list(ledger.nodes.values()), np.float32).reshape(-1, FEATURE_DIM)])
    place = {int(node_id): index for index, node_id in enumerate(ids)}
    for ledger in ledgers:
        added = np.array([[place[end] for end in edge] for edge in ledger.edges.values()], dtype=np.int64)
        ends = np.concatenate([ends, added.reshape(-1, 2).T], axis=1)
        time = np.append(time, list(ledger.edges))
    return GraphArrays("changed", EdgeArrays(ends, time=time), len(ids), ids, DenseFeatures(x))
