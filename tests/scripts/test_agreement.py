"""Precomputed, cached and live answers of all nodes of real graphs agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray

from archive.checkpoint import ModelConfig
from archive.export.export import export_model
from archive.reading import unpacked
from handler.graph.follower import open_source
from handler.graph.snapshot import Snapshot
from handler.keeping import open_store
from handler.metrics import Counters
from handler.model.exported import ExportedModel
from handler.service import Service
from scripts.cli.main import hopserve
from tests.served import CPU

_AT_ONCE = 2000


def _hopserve(*arguments: object) -> str:
    result = CliRunner().invoke(hopserve, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _answers(service: Service, num_nodes: int, **options: Any) -> tuple[set[str], NDArray[np.float64]]:
    """Where the answers for all nodes are from, and float64 [num_nodes, dim]."""
    sources: set[str] = set()
    rows: list[list[float]] = []
    for start in range(0, num_nodes, _AT_ONCE):
        ids = list(range(start, min(start + _AT_ONCE, num_nodes)))
        (answer,) = service.answer([json.dumps({"node_ids": ids} | options).encode()])
        for row in json.loads(answer.body)["predictions"]:
            sources.add(row["source"])
            rows.append(row["embedding"] + list(row["probabilities"].values()))
    return sources, np.array(rows)


@pytest.mark.parametrize("name", ["cora", "tolokers", "musae_facebook"])
def test_all_sources_say_the_same(dataset: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    home, store = tmp_path / "graph", tmp_path / "store"
    _hopserve("graph", "build", "--npz", dataset(name), "--out", home)
    snapshot = Snapshot.open(home)
    assert snapshot.features is not None
    torch.manual_seed(0)
    config = ModelConfig(
        task="classification",
        feature_dim=snapshot.features.shape[1],
        hidden_dim=32,
        embedding_dim=16,
        layer_fanouts=(10, 5),
        labels=("a", "b", "c"),
    )
    export_model(config.build().eval(), config.export_plan(), tmp_path / "export")
    packing = ("--model", tmp_path / "export", "--graph", home, "--store", store)
    _hopserve("pack", "--name", "model", "--version", "1.0", *packing)
    _hopserve("precompute", "model", "--model-version", "1.0", "--store", store)
    returned = {"return": ["embedding", "probabilities"]}
    with unpacked(store, "model", "1.0") as packed:
        model = ExportedModel.load(packed.folder, CPU)

        def serving() -> Service:
            kept = open_store(packed.settings, packed.signature, "model", "1.0", Counters())
            return Service(open_source(home), model, packed.settings, Counters(), "1.0", kept)

        service = serving()
        found = {"live": _answers(service, snapshot.num_nodes, max_staleness_ms=0, **returned)}
        found["precomputed"] = _answers(service, snapshot.num_nodes, **returned)
        service.close()
        shutil.rmtree(home / "embeddings" / "model" / "1.0")
        service = serving()
        found["cache"] = _answers(service, snapshot.num_nodes, **returned)
        service.close()
    live = found["live"][1]
    for source, (sources, rows) in found.items():
        assert sources == {source}
        largest = np.abs(live).max(axis=1, keepdims=True)
        assert (np.abs(rows - live) <= 1e-5 * largest).all()
