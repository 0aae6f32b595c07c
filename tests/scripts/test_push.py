"""`hopserve graph push` brings a graph into a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from handler.errors import GraphUnavailable
from handler.graph.arrays import GraphArrays
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.window import ClusterGraph
from handler.graph.edges import EdgeArrays, EdgeBlock
from handler.graph.home import GraphHome, write_home
from handler.graph.mutations import Mutations, encode_mutations
from handler.log.embedded import LmdbLog
from handler.log.protocol import Record
from scripts.cli.main import hopserve
from tests.clusters import Cluster, running_cluster

NONE = np.empty(0, dtype=np.int64)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), masters=1) as started:
        yield started


@pytest.fixture
def home(tmp_path: Path) -> GraphHome:
    write_home(tmp_path / "graph", GraphArrays("pair", EdgeArrays(np.array([[0], [1]])), 2))
    return GraphHome.read(tmp_path / "graph")


def _push(home: GraphHome, place: str, *options: str) -> Result:
    command = ["graph", "push", str(home.folder), place, *options]
    return CliRunner().invoke(hopserve, command, catch_exceptions=False, standalone_mode=False)


def test_a_graph_is_pushed(home: GraphHome, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", f"redis+cluster{cluster.url.removeprefix('redis')}/pair")
    result = _push(home, "env:PLACE", "--head", "5")
    assert "pair: 2 nodes and 1 edges" in result.stdout
    assert "mutations" not in result.stdout
    shards = Shards(cluster.url)
    assert ClusterGraph.open(shards, "pair").manifest.head == 5
    shards.close()


def _add_node(home: GraphHome, number: int) -> None:
    """The mutation of this number."""
    node = Mutations(
        created=1.0, first_node=1 + number, node_ids=[10 + number], featured=NONE,
        features=np.empty((0, 0), dtype=np.float32),
        removed=EdgeBlock(NONE, NONE, None, np.empty(0)), added=EdgeBlock(NONE, NONE),
    )  # fmt: skip
    log = LmdbLog.open(home.log_folder, home.graph_id)
    log.append([Record(number, number, encode_mutations(node))], [], number - 1)
    log.close()


def test_what_the_snapshot_has_not_is_said(home: GraphHome, cluster: Cluster) -> None:
    _add_node(home, 1)
    assert "1 mutations of its log stay behind" in _push(home, f"redis+cluster{cluster.url[5:]}/late").stdout


def test_it_follows_the_log_until_an_interrupt_and_goes_on_from_there(
    home: GraphHome, cluster: Cluster
) -> None:
    command = [str(Path(sys.executable).with_name("hopserve")), "graph", "push", str(home.folder)]
    command += [f"redis+cluster{cluster.url[5:]}/followed", "--follow"]
    shards = Shards(cluster.url)
    for number in (1, 2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            begun = next(line for line in lines if "follows the log" in line)
            assert f"from mutation {number - 1} on" in begun
            _add_node(home, number)
            deadline = time.monotonic() + 30
            while (opened := ClusterGraph.open(shards, "followed")).reached.seq < number:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert opened.index_of([10 + number]).tolist() == [1 + number]
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
    shards.close()


def test_wrong_places_are_refused(home: GraphHome) -> None:
    with pytest.raises(click.BadParameter, match="redis"):
        _push(home, "redis://127.0.0.1:1/0")
    with pytest.raises(GraphUnavailable, match="cluster"):
        _push(home, "redis+cluster://127.0.0.1:1/pair")
