"""One archive, served from a graph on this machine or from a cluster, by one setting."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from archive.datasets import load_digits
from archive.pack import GraphPlan, PackPlan, pack
from handler.graph.cluster.push import push
from handler.graph.cluster.shards import Shards
from handler.graph.follower import open_source
from handler.graph.home import write_home
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


def test_what_changes_here_is_answered_from_the_cluster(example: Example, tmp_path: Path) -> None:
    write_home(tmp_path / "graph", load_digits())
    with running_cluster(tmp_path / "cluster") as cluster:
        place = f"redis+cluster{cluster.url.removeprefix('redis')}/digits"
        plan = PackPlan(
            "graphsage",
            "1.0",
            model_folder=example.export,
            graph_folder=tmp_path / "graph",
            settings={"graph": place, "max_wait_ms": 20_000},
        )
        changing = GraphPlan(graph_folder=tmp_path / "graph", settings={"compact_after": 0})
        archives = [pack(each, tmp_path / "store") for each in (plan, changing)]
        hopserve = str(Path(sys.executable).with_name("hopserve"))
        command = [hopserve, "graph", "push", str(tmp_path / "graph"), place, "--follow"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert any("follows the log" in line for line in iter(follower.stdout.readline, ""))
            with running(tmp_path / "ts", *archives) as server:
                x = [float(number % 5) for number in range(64)]
                edges = [{"source": node, "target": 5000} for node in (3, 4, 5)]
                change = {"add_nodes": [{"node_id": 5000, "x": x}], "add_edges": edges}
                changed = server.ask(change, model="graph").json()
                found = server.ask({"node_id": 5000, "min_seq": changed["last_seq"]})
                assert found.status_code == 200, found.text
                assert found.json()["graph"]["seq"] == changed["last_seq"]
                assert found.json()["sampled"]["nodes"] > 4
                model = ExportedModel.load(example.export, CPU)
                source = open_source(tmp_path / "graph")
                local = Service(source, model, Settings(graph=""), Counters(), "1.0")
                wanted = json.loads(local.answer([b'{"node_id": 5000}'])[0].body)
                local.close()
                assert close(found.json()["embedding"], wanted["embedding"])
            follower.send_signal(signal.SIGINT)
            assert follower.wait(timeout=30) == 130
