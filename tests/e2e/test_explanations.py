"""Explanations by a real server, directly, by command, and in pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import Server


def _explain(server: Server, request: Any, version: str = "") -> httpx.Response:
    url = server.url(version=version).replace("/predictions/", "/explanations/")
    return httpx.post(url, json=request, headers=server.headers(), timeout=60)


def test_a_node_is_explained(server: Server) -> None:
    answer = _explain(server, {"node_id": 42, "top": 1_000})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    explained = answer.json()
    predicted = server.ask({"node_id": 42}).json()
    assert explained["explained"] == {"label": predicted["label"]}
    assert explained["sampled"] == predicted["sampled"]
    assert (explained["model_version"], explained["graph"]) == ("1.0", predicted["graph"])
    assert explained["complete"]
    moved = explained["score"] - explained["baseline"]
    assert sum(node["importance"] for node in explained["nodes"]) == pytest.approx(moved, rel=0.02)
    assert explained["nodes"] == _explain(server, {"node_id": 42, "top": 1_000}, "1.0").json()["nodes"]
    best = {edge["importance"] > 0 for edge in explained["edges"][:5]}
    if best == {True}:
        assert explained["fidelity"]["without"] < explained["score"]


def test_explanations_and_predictions_come_together(server: Server) -> None:
    def ask(number: int) -> int:
        if number % 4:
            return server.ask({"node_id": number, "max_staleness_ms": 0}).status_code
        return _explain(server, {"node_id": number}).status_code

    with ThreadPoolExecutor(32) as clients:
        statuses = list(clients.map(ask, range(200)))
    assert {status for number, status in enumerate(statuses) if number % 4} == {200}
    assert {status for number, status in enumerate(statuses) if not number % 4} <= {200, 429}


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [({"node_id": 99_999}, 404, "unknown_node"), ({"node_id": 1, "label": "x"}, 400, "malformed")],
)
def test_what_is_wrong_is_said(server: Server, request_: Any, status: int, code: str) -> None:
    answer = _explain(server, request_)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("name", ["why.png", "why.html"])
def test_a_command_draws_it(server: Server, tmp_path: Path, name: str) -> None:
    command = [str(Path(sys.executable).with_name("hopserve")), "explain", "42", "--top", "3"]
    command += ["--plot", str(tmp_path / name), "--ts-config", str(server.properties.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["nodes"]) == len(answer["edges"]) == len(answer["features"]) == 3
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(b"\x89PNG" if name.endswith(".png") else b"<!DOCTYPE html>")
    if name.endswith(".html"):
        assert b"http://" not in drawn.split(b"</style>")[1].replace(b"http://www.w3.org", b"")


def test_a_command_that_cannot_is_one_line(server: Server, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("hopserve")), "explain", "99999"]
    command += ["--ts-config", str(server.properties.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the graph has no node 99999" in done.stderr
    assert len(done.stderr.splitlines()) == 1
