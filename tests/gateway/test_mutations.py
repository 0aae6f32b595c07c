"""Mutations are sent until they have arrived, or are refused for good."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Refused, UpstreamError
from gateway.upstream import mutations as module
from gateway.upstream.client import Client
from gateway.upstream.mutations import Applied, Mutations
from gateway.upstream.properties import read_properties
from tests.fake_graph import FakeGraph, fake_graph

_EDGE = b'{"add_edges":[{"source":1,"target":2}]}'


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGraph]:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)
    with fake_graph(tmp_path) as graph:
        yield graph


def _send(graph: FakeGraph, retry_for_s: float = 30, **options: Any) -> tuple[Applied, list[str]]:
    told: list[str] = []
    with Client(read_properties(graph.config)) as client:
        given = {"create_missing": False} | options
        return Mutations(client, retry_for_s, told.append).send(_EDGE, "r", **given), told


def test_what_is_sent(graph: FakeGraph) -> None:
    request = {"add_edges": [{"source": 1, "target": 2}], "request_id": "r"}
    assert _send(graph)[0] == Applied(1, 1, repeated=False)
    assert json.loads(graph.bodies[-1]) == request
    with pytest.raises(Refused, match="409"):
        _send(graph, create_missing=True)
    assert json.loads(graph.bodies[-1]) == request | {"create_missing": True}


@pytest.mark.parametrize("fault", [429, 500, 502, 503, 504, 507, "drop", "lose"])
def test_what_may_pass_is_tried_again_and_told_once(graph: FakeGraph, fault: Any) -> None:
    graph.faults += [fault, 503]
    applied, told = _send(graph)
    assert applied == Applied(1, 1, repeated=fault == "lose")
    assert graph.edges() == [(1, 2)]
    (message,) = told
    assert message.endswith("; trying again for up to 30 s")


def test_a_refusal_is_final(graph: FakeGraph) -> None:
    for status in (400, 404, 409, 413):
        graph.faults.append(status)
        with pytest.raises(Refused, match=f"answered {status}: made up") as refused:
            _send(graph)
        assert refused.value.status == status
    assert len(graph.bodies) == 4


def test_it_ends_after_a_while(graph: FakeGraph) -> None:
    graph.faults += [503] * 1000
    with pytest.raises(UpstreamError, match=r"answered 503: made up: 503 \(tried for 0.2 s\)"):
        _send(graph, retry_for_s=0.2)


def test_it_ends_when_it_is_stopped(graph: FakeGraph) -> None:
    graph.faults += [503] * 1000
    began = time.monotonic()
    with Client(read_properties(graph.config)) as client:
        mutations = Mutations(client, 60, lambda _: threading.Timer(0.1, mutations.stop).start())
        with pytest.raises(UpstreamError, match="503"):
            mutations.send(_EDGE, "r", create_missing=False)
    assert time.monotonic() - began < 10


def test_a_graph_describes_itself(graph: FakeGraph) -> None:
    with Client(read_properties(graph.config)) as client:
        mutations = Mutations(client, 0, print)
        assert mutations.describe().id_type == "int"
        graph.info["id_type"] = "uuid"
        with pytest.raises(UpstreamError, match="the answer of the model graph is not understood: .*id_type"):
            mutations.describe()
