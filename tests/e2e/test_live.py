"""A live graph under a real TorchServe: real events, workers that come and go, files, and compaction."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from handler import headers
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot, verify
from scripts.cli.main import hopserve
from tests.graphs import FEATURE_DIM
from tests.ledger import NUM_NODES, Ledger, check_exactly_once, rebuilt, write_first
from tests.live_servers import LiveServer, Questions, serving, until
from tests.models import random_model
from tests.replay import Events, check_same

HOPSERVE = Path(sys.executable).parent / "hopserve"
FANOUTS = (10, 5)


def _hopserve(*arguments: object) -> str:
    result = CliRunner().invoke(hopserve, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


class Replay:
    """A set of real events, the graph of which is served from its first part on.

    Args:
        options: of `hopserve graph build`.
        create_missing: how the later nodes come; see `Events.requests`.
    """

    def __init__(
        self, events: Events, folder: Path, options: tuple[str, ...], *, create_missing: bool
    ) -> None:
        self.events = events
        self.folder = folder
        self.num_first = len(events) * 6 // 10
        self.home = self._build("home", self.num_first, options)
        self.whole = Snapshot.open(self._build("whole", len(events), options))
        self._create_missing = create_missing

    def run(self, model: tuple[ModelConfig, GraphSAGE], **settings: Any) -> None:
        """Send the rest, and compare with the whole: what workers answer, and what a compaction makes."""
        first_nodes = Snapshot.open(self.home).ids.id_of(np.arange(100))
        with serving(self.folder, self.home, model, **settings) as live:
            with Questions(live.server, first_nodes):
                requests = self.events.requests(self.num_first, 4000, create_missing=self._create_missing)
                last_seq = [live.change(request)["last_seq"] for request in requests][-1]
            live.check_answers(self.whole, last_seq)
            info = live.info()
            assert (info["seq"], info["num_nodes"], info["num_edges"], info["log"]["lag"]) == (
                last_seq, self.whole.num_nodes, self.whole.num_edges, 0,
            )  # fmt: skip
            live.check_compacted(lambda snapshot: check_same(snapshot, self.whole))
            live.check_answers(self.whole, last_seq)

    def _build(self, name: str, num_events: int, options: tuple[str, ...]) -> Path:
        file = self.events.write(self.folder / f"{name}.npz", num_events)
        _hopserve("graph", "build", "--npz", file, "--out", self.folder / name, *options)
        return self.folder / name


def test_the_edits_of_a_wiki_come_in_while_it_is_asked_and_compacted(
    dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    events = Events.read(dataset("wikipedia_jodie"), "label")
    options = ("--undirected", "--duplicates", "drop", "--ordering", "recent")
    replay = Replay(events, tmp_path, options, create_missing=False)
    replay.run(random_model(FANOUTS, sampling=Sampling(strategy="recent")), compact_after=1000)


def test_answers_and_comments_of_a_forum_come_in_while_it_is_asked(
    dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    events = Events.read(dataset("mathoverflow"), "edge_type")
    options = ("--duplicates", "keep", "--ordering", "seeded")
    replay = Replay(events, tmp_path, options, create_missing=True)
    replay.run(random_model(FANOUTS, edge_inputs=("edge_attr",), edge_dim=1), compact_after=0)


def test_new_snapshots_come_by_themselves_and_old_ones_go_while_it_is_asked(tmp_path: Path) -> None:
    home = tmp_path / "graph"
    write_first(home)
    ledger = Ledger(0)
    with serving(tmp_path, home, random_model(FANOUTS), compact_after=1000) as live:
        assert live.info()["log"]["first_seq"] == 1
        with Questions(live.server, range(NUM_NODES)) as questions:

            def has_everyone_moved_on() -> bool:
                ledger.acknowledge(live.change(ledger.ask(num_edges=300)))
                has_gone = not (home / "snapshot-0").exists() and live.info()["log"]["first_seq"] > 1
                return has_gone and all(len(each) > 1 for each in questions.snapshots.values())

            until(has_everyone_moved_on)
        assert len(questions.snapshots) == 2
        live.check_answers(rebuilt([ledger]), ledger.last_seq)
        info = live.info()
        assert 0 < info["snapshot_seq"] <= info["seq"] == ledger.last_seq
        assert 1 < info["log"]["first_seq"] <= info["snapshot_seq"] + 1
        live.check_compacted(lambda snapshot: check_exactly_once(snapshot, [ledger]))


@dataclass(frozen=True)
class Ingested:
    """A server that was sent two files, and the graph with all that is in them."""

    live: LiveServer
    whole: Snapshot
    last_seq: int


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingested]:
    """A table of edges, the sending of which is killed and interrupted, and then JSON lines."""
    folder = tmp_path_factory.mktemp("ingest")
    files = _Files(folder)
    with serving(folder, files.home, random_model(FANOUTS), num_workers=1, compact_after=0) as live:
        arguments = [HOPSERVE, "ingest", "--ts-config", live.server.properties.file]

        def run(*more: object, end_with: signal.Signals | None = None) -> str:
            command = [str(argument) for argument in (*arguments, *more)]
            environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
            seq = live.info()["seq"]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
                if end_with is not None:
                    until(lambda: process.poll() is not None or live.info()["seq"] > seq)
                    process.send_signal(end_with)
                told, _ = process.communicate(timeout=300)
            ended = {None: 0, signal.SIGINT: 130, signal.SIGKILL: -9}[end_with]
            assert process.returncode == ended, "it was over before it could be ended" * (
                end_with is not None
            )
            return told

        table = (files.table, "--create-missing")
        for end_with in (signal.SIGKILL, signal.SIGINT):  # long before the file ends
            run(*table, "--batch-size", 100, end_with=end_with)
        run(*table)
        assert "nothing to send" in run(*table)
        told = run(files.lines)
        yield Ingested(live, files.whole, int(told.split()[-1]))


class _Files:
    """The same graph as one file, and as a graph with files of what came later."""

    def __init__(self, folder: Path, num_first: int = 1000, num_rows: int = 60_000) -> None:
        draw = np.random.default_rng(0)
        ids = np.arange(num_first)
        first, later = draw.integers(0, num_first, (2, 4000)), draw.integers(0, 3 * num_first, (2, num_rows))
        edges = np.concatenate([first, later], axis=1)
        time = np.arange(edges.shape[1])
        removed = draw.choice(edges.shape[1], 500, replace=False)
        all_ids = np.arange(3 * num_first)
        x = draw.standard_normal((len(all_ids), FEATURE_DIM)).astype(np.float32)
        self.home = _built(folder / "home", edges[:, :4000], time[:4000], ids, x[:num_first])
        kept = np.setdiff1d(time, removed)
        self.whole = Snapshot.open(_built(folder / "whole", edges[:, kept], kept, all_ids, x))
        self.table = folder / "later.csv"
        rows = zip(*later.tolist(), time[4000:].tolist(), strict=True)
        self.table.write_text("source,target,time\n" + "".join(f"{u},{v},{t}\n" for u, v, t in rows))
        self.lines = folder / "later.jsonl"
        new = [{"node_id": int(i), "x": x[i].tolist()} for i in range(num_first, len(all_ids))]
        gone = [{"source": int(edges[0, k]), "target": int(edges[1, k]), "time": float(k)} for k in removed]
        lines: list[Any] = [{"set_features": [node]} for node in new]
        lines += [{"remove_edges": gone[start : start + 7]} for start in range(0, len(gone), 7)]
        self.lines.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _built(folder: Path, edges: Any, time: Any, ids: Any, x: Any) -> Path:
    file = folder.with_suffix(".npz")
    np.savez(file, edge_index=edges, edge_time=time, node_id=ids, x=x)
    _hopserve("graph", "build", "--npz", file, "--out", folder, "--duplicates", "keep")
    return folder


def test_files_arrive_whole_and_once_though_their_sending_is_interrupted(
    ingested: Ingested, tmp_path: Path
) -> None:
    live, whole = ingested.live, ingested.whole
    info = live.info()
    assert (info["seq"], info["num_edges"]) == (ingested.last_seq, whole.num_edges)
    live.check_answers(whole, ingested.last_seq)
    # A copy, because a worker that starts is to have much to read.
    copy = shutil.copytree(live.home.folder, tmp_path / "copy")
    _hopserve("graph", "compact", copy)
    check_same(verify(copy), whole)


def test_a_worker_that_starts_anew_knows_all_that_was_acknowledged_before_it_answers(
    ingested: Ingested,
) -> None:
    live = ingested.live
    assert ingested.last_seq - live.home.current_seq > 50_000
    (killed,) = live.server.worker_pids()
    os.kill(killed, signal.SIGKILL)
    until(lambda: _is_ready(live, killed))
    response = live.server.ask({"node_id": 0})
    assert response.status_code == 200
    assert int(response.headers[headers.WORKER]) != killed
    assert response.json()["graph"]["seq"] >= ingested.last_seq


def _is_ready(live: LiveServer, killed: int) -> bool:
    with live.server.client() as client:
        return any(
            worker.status == "READY" and worker.pid != killed
            for worker in client.version("graphsage").workers
        )
