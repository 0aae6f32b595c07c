"""One archive, served from a snapshot on this machine or from a cluster, by one setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archive.pack import PackPlan, pack
from handler.graph.cluster.push import push
from handler.graph.cluster.shards import Shards
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.metrics import Counters
from handler.model.exported import ExportedModel
from handler.service import Service
from handler.settings import GRAPH_VARIABLE, Settings
from tests.clusters import running_cluster
from tests.conftest import Example
from tests.served import CPU, close
from tests.servers import running


def test_the_same_archive_serves_from_a_cluster(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot.open(example.graph)
    plan = PackPlan("graphsage", "1.0", model_folder=example.export, graph_folder=example.graph)
    archive = pack(plan, tmp_path / "store")
    model = ExportedModel.load(example.export, CPU)
    local = Service(static_source(snapshot), model, Settings(graph=""), Counters(), "1.0")
    asked = list(range(0, snapshot.num_nodes, 7))
    wanted = json.loads(local.answer([json.dumps({"node_ids": asked}).encode()])[0].body)["predictions"]
    with running_cluster(tmp_path / "cluster") as cluster:
        shards = Shards(cluster.url)
        push(snapshot, shards, "digits")
        shards.close()
        monkeypatch.setenv(GRAPH_VARIABLE, f"redis+cluster{cluster.url.removeprefix('redis')}/digits")
        with running(tmp_path / "ts", archive) as server:
            found = server.ask({"node_ids": asked}).json()["predictions"]
            for row, right in zip(found, wanted, strict=True):
                assert close(row.pop("embedding"), right.pop("embedding"))
                assert row == right
            assert server.ask({"node_id": 10**9}).status_code == 404
            for node in cluster.nodes:
                node.kill()
            assert server.ask({"node_id": 1}).status_code == 503
