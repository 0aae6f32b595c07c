"""Similar nodes of real graphs, as they are precomputed and served, are those that brute force finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from archive.checkpoint import ModelConfig
from archive.export.export import export_model
from archive.reading import unpacked
from handler.cache.similar import METRICS
from handler.cache.table import Table, tables_in
from handler.graph.follower import open_source
from handler.graph.snapshot import Snapshot
from handler.keeping import open_store
from handler.metrics import Counters
from handler.model.exported import ExportedModel
from handler.service import Service
from scripts.cli.main import hopserve
from tests.served import CPU

TOP_K = 10
NUM_ASKED = 180


def _hopserve(*arguments: object) -> None:
    result = CliRunner().invoke(hopserve, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name",
    ["amazon_photo", "citeseer", "cora", "musae_facebook", "pubmed_partial", "tolokers", "twitch_de"],
)
def test_recall_on_real_graphs(dataset: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    home, store = tmp_path / "graph", tmp_path / "store"
    _hopserve("graph", "build", "--npz", dataset(name), "--out", home)
    features = Snapshot.open(home).features
    assert features is not None
    torch.manual_seed(0)
    config = ModelConfig(
        task="embedding",
        feature_dim=features.shape[1],
        hidden_dim=32,
        embedding_dim=32,
        layer_fanouts=(5, 5),
        labels=(),
    )
    export_model(config.build().eval(), config.export_plan(), tmp_path / "export")
    packing = ("--model", tmp_path / "export", "--graph", home, "--store", store)
    _hopserve("pack", "--name", "model", "--version", "1.0", *packing)
    indexes = ("--index", "cosine", "--index", "dot")
    _hopserve("precompute", "model", "--model-version", "1.0", "--store", store, *indexes)

    table = Table.open(tables_in(home / "embeddings" / "model" / "1.0")[0])
    output = table.output.astype(np.float64)
    asked = np.random.default_rng(0).choice(len(output), NUM_ASKED, replace=False)
    with unpacked(store, "model", "1.0") as packed:
        kept = open_store(packed.settings, packed.signature, "model", "1.0", Counters())
        model = ExportedModel.load(packed.folder, CPU)
        service = Service(open_source(home), model, packed.settings, Counters(), "1.0", kept)
        for metric in METRICS:
            length = np.linalg.norm(output, axis=1, keepdims=True)
            rows = output if metric == "dot" else output / np.where(length > 0, length, 1)
            request = {"node_ids": asked.tolist(), "top_k": TOP_K, "metric": metric}
            (answer,) = service.answer([json.dumps(request).encode()])
            recalls = []
            for node, row in zip(asked, json.loads(answer.body)["predictions"], strict=True):
                scores = rows @ rows[node]
                scores[node] = -np.inf
                least = np.partition(scores, -TOP_K)[-TOP_K]
                found = [similar["node_id"] for similar in row["similar"]]
                assert len(set(found) - {node}) == TOP_K
                assert np.allclose([similar["score"] for similar in row["similar"]], scores[found], rtol=1e-4)
                recalls.append((scores[found] >= least - 1e-6 * abs(least)).mean())
            assert np.mean(recalls) >= 0.95
        service.close()
