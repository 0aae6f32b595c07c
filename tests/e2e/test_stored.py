"""Stored answers under a real TorchServe: shared by workers, proven, precomputed while it serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from scripts.cli.main import hopserve
from tests.ledger import NUM_NODES, write_first
from tests.live_servers import LiveServer, serving, until
from tests.models import random_model
from tests.served import close

FANOUTS = (5, 3)


def _hopserve(*arguments: object) -> str:
    result = CliRunner().invoke(hopserve, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _rows(live: LiveServer, **options: Any) -> list[dict[str, Any]]:
    response = live.server.ask({"node_ids": list(range(NUM_NODES)), **options})
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["predictions"]
    return rows


def test_answers_are_shared_precomputed_proven_and_explained(tmp_path: Path) -> None:
    home = tmp_path / "graph"
    write_first(home)
    with serving(tmp_path, home, random_model(FANOUTS)) as live:
        of_model = ("--model", "graphsage", "--store", live.server.properties.model_store)
        first = _rows(live)
        assert {row["source"] for row in first} == {"live"}
        until(lambda: all(rows[0]["source"] == "cache" for rows in live.every_worker([0])))
        (stats,) = json.loads(_hopserve("cache", "stats", *of_model))
        assert (stats["version"], stats["entries"]) == ("1.0", NUM_NODES)

        store = ("--store", live.server.properties.model_store)
        _hopserve("precompute", "graphsage", "--model-version", "1.0", *store)
        until(lambda: all(rows[0]["source"] == "precomputed" for rows in live.every_worker([0])))
        for row, stored in zip(first, _rows(live), strict=True):
            assert stored["source"] == "precomputed"
            assert close(stored["embedding"], row["embedding"])

        unit = np.array([row["embedding"] for row in first])
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        asked = {"node_id": 3, "top_k": 5}
        until(lambda: all(rows[0].get("similar") for rows in live.every_worker([3], top_k=5)))
        similar = live.server.ask(asked).json()["similar"]
        assert close([each["score"] for each in similar], np.sort(unit @ unit[3])[::-1][1:6])
        assert close(
            [unit[each["node_id"]] @ unit[3] for each in similar], [each["score"] for each in similar]
        )

        seq = live.change({"add_edges": [{"source": 7, "target": 3, "time": 1.0}]})["last_seq"]
        assert {rows[0]["source"] for rows in live.every_worker([3], min_seq=seq)} <= {"live", "cache"}
        returned = {"return": ["embedding", "neighbors"], "min_seq": seq}
        changed, right = _rows(live, **returned), _rows(live, max_staleness_ms=0, **returned)
        assert {row["source"] for row in right} == {"live"}
        # The edge comes into 3, which is expanded in its own tree and where it is a neighbor.
        stale = {row["node_id"] for row in right if row["node_id"] == 3 or 3 in [*row["neighbors"], []][0]}
        assert {row["node_id"] for row in changed if row["source"] != "precomputed"} == stale
        for row, wanted in zip(changed, right, strict=True):
            assert close(row["embedding"], wanted["embedding"])
            assert row["graph"] == wanted["graph"]

        def explain() -> dict[str, Any]:
            return dict(json.loads(_hopserve("policy", "explain", "3", *of_model)))

        until(lambda: explain()["source"] == "cache")
        explained = explain()
        assert (explained["node_id"], explained["stage"]) == (3, "old")
        assert "its row in the table is stale" in explained["why"]

        def are_counted() -> bool:
            text = live.server.metrics()
            return all(
                f'hopserve_nodes_total{{source="{source}",model_name="graphsage",model_version="1.0"' in text
                for source in ("live", "cache", "precomputed")
            )

        until(are_counted)
        assert _hopserve("cache", "clear", *of_model) == f"graphsage: {NUM_NODES} answers removed\n"
