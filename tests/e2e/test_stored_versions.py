"""Versions side by side under a real TorchServe: their stored answers share a cache, and never meet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.pack import PackPlan, pack
from scripts.cli.main import hopserve
from tests.ledger import NUM_NODES, write_first
from tests.live_servers import LiveServer, serving, until
from tests.models import export, random_model
from tests.served import close

FANOUTS = (5, 3)
VERSIONS = ("1.0", "2.0")
LAST = NUM_NODES - 1  # asked for at the end only
ASKED = range(LAST)
TOUCHED = 3


def _hopserve(live: LiveServer, *arguments: str) -> str:
    of_model = ("--model", "graphsage", "--store", str(live.server.properties.model_store))
    result = CliRunner().invoke(hopserve, [*arguments, *of_model], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _num_entries(live: LiveServer) -> dict[str, int]:
    """What the cache holds, by version."""
    return {row["version"]: row["entries"] for row in json.loads(_hopserve(live, "cache", "stats"))}


def _rows(
    live: LiveServer, version: str, node_ids: Sequence[int] = ASKED, **options: Any
) -> list[dict[str, Any]]:
    """What a version says, or with none the default one."""
    response = live.server.ask({"node_ids": [*node_ids], **options}, version=version)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["predictions"]
    assert not version or {row["model_version"] for row in rows} == {version}
    return rows


def _sources(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {row["source"] for row in rows}


def _are_same(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[bool]:
    """For each node, whether these are the same answers."""
    pairs = zip(rows, others, strict=True)
    return [close(row["embedding"], other["embedding"]) for row, other in pairs]


def _set_default(live: LiveServer, version: str) -> None:
    with live.server.client() as client:
        client.set_default("graphsage", version)


def _other_weights() -> tuple[ModelConfig, GraphSAGE]:
    config, _ = random_model(FANOUTS)
    torch.manual_seed(1)
    return config, config.build().eval()


def _packed_as_2(folder: Path, home: Path) -> Path:
    export(*_other_weights(), folder / "export-2.0")
    return pack(PackPlan("graphsage", "2.0", graph_folder=home, model_folder=folder / "export-2.0"), folder)


def _check_filled_apart(live: LiveServer) -> dict[str, list[dict[str, Any]]]:
    """Each version fills its own keys, and finds its own answers; returns these."""
    stored: dict[str, list[dict[str, Any]]] = {}
    for version in VERSIONS:
        assert _sources(_rows(live, version)) == {"live"}
        until(lambda version=version: _sources(_rows(live, version)) == {"cache"})
        stored[version] = _rows(live, version)
        assert _num_entries(live) == dict.fromkeys(stored, len(ASKED))
    for version in VERSIONS:
        again, computed = _rows(live, version), _rows(live, version, max_staleness_ms=0)
        assert (_sources(again), _sources(computed)) == ({"cache"}, {"live"})
        assert all(_are_same(again, computed))
        assert all(_are_same(again, stored[version]))
    assert not any(_are_same(*stored.values()))
    return stored


def _check_stale(live: LiveServer, version: str, seq: int, stored: Sequence[dict[str, Any]]) -> None:
    """A version computes again what a mutation touched, and only that."""
    changed = _rows(live, version, min_seq=seq)
    right = _rows(live, version, min_seq=seq, max_staleness_ms=0)
    assert _sources(right) == {"live"}
    assert all(_are_same(changed, right))
    assert changed[TOUCHED]["source"] == "live"
    is_as_before = _are_same(changed, stored)
    assert not is_as_before[TOUCHED]
    assert "cache" in _sources(changed)
    assert all(same for same, row in zip(is_as_before, changed, strict=True) if row["source"] == "cache")


def test_versions_fill_one_cache_apart(tmp_path: Path) -> None:
    home = tmp_path / "graph"
    write_first(home)
    second = _packed_as_2(tmp_path, home)
    with serving(tmp_path, home, random_model(FANOUTS), num_workers=1, others=[second]) as live:
        stored = _check_filled_apart(live)

        for version in ("2.0", "1.0"):
            _set_default(live, version)
            first = live.server.ask({"node_id": 42}).json()
            assert (first["model_version"], first["source"]) == (version, "cache")
            rows = _rows(live, "")
            assert _sources(rows) == {"cache"}
            assert all(_are_same(rows, stored[version]))
        assert _num_entries(live) == dict.fromkeys(VERSIONS, len(ASKED))

        seq = live.change({"add_edges": [{"source": 7, "target": TOUCHED, "time": 1.0}]})["last_seq"]
        for version in VERSIONS:
            _check_stale(live, version, seq, stored[version])

        # Answers are written in the order in which they were computed: with this one all are, and none comes
        # after the clearing.
        assert _sources(_rows(live, "2.0", [LAST])) == {"live"}
        until(lambda: _sources(_rows(live, "2.0", [LAST])) == {"cache"})
        cleared = _hopserve(live, "cache", "clear", "--version", "2.0")
        assert cleared == f"graphsage: {NUM_NODES} answers removed\n"
        assert _num_entries(live) == {"1.0": len(ASKED)}
        assert [_sources(_rows(live, version)) for version in VERSIONS] == [{"cache"}, {"live"}]
