"""A real graph, asked whole: what is served is what was computed offline."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch

from archive.datasets import load_npz
from archive.example.train import TrainingPlan, train
from archive.pack import PackPlan, pack
from gateway.tuning.load import send_all
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot
from tests.models import embed_all, export
from tests.servers import Server


def test_all_served_nodes_of_cora_agree_with_the_offline_ones(
    dataset: Callable[[str], Path],
    tmp_path: Path,
    run_server: Callable[..., AbstractContextManager[Server]],
) -> None:
    write_snapshot(tmp_path / "cora", load_npz(dataset("cora")))
    snapshot = Snapshot.open(tmp_path / "cora")
    result = train(snapshot, TrainingPlan(num_epochs=30))
    export(result.config, result.model, tmp_path / "export")
    embedding = embed_all(result.model, snapshot, result.config.layer_fanouts)
    assert result.model.head is not None
    with torch.inference_mode():
        logits = result.model.head(torch.relu(embedding)).numpy()
    embedding = embedding.numpy()
    label = [result.config.labels[place] for place in logits.argmax(axis=1)]
    scale = np.abs(embedding).max(axis=1)

    plan = PackPlan("cora", "1.0", model_folder=tmp_path / "export", graph_folder=tmp_path / "cora")
    archive = pack(plan, tmp_path / "store")
    with run_server(archive) as server:
        nodes = range(snapshot.num_nodes)
        singles = send_all(server.url("cora"), server.headers(), [{"node_id": node} for node in nodes], 32)
        lists = [{"node_ids": list(nodes[start : start + 100])} for start in range(0, len(nodes), 100)]
        lists = send_all(server.url("cora"), server.headers(), lists, 4)
        rows = [json.loads(answer.body) for answer in singles]
        rows += [row for answer in lists for row in json.loads(answer.body)["predictions"]]
    assert len(rows) == 2 * snapshot.num_nodes
    for row in rows:
        node = row["node_id"]
        assert row["label"] == label[node]
        assert np.abs(np.array(row["embedding"]) - embedding[node]).max() <= 1e-5 * scale[node]
