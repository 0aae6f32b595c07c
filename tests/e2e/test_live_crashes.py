"""Whatever is killed, at whatever moment: what was acknowledged is in the graph, and once.

`HOPSERVE_KILLS` says how often something is killed; a tenth of that under a real TorchServe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import closing, suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from handler.change_service import ChangeService
from handler.graph import home as graph_home
from handler.graph.compaction import compact
from handler.graph.follower import follow
from handler.graph.home import GraphHome
from handler.graph.snapshot import verify
from handler.log.embedded import LmdbLog
from handler.metrics import Counters
from handler.settings import GraphSettings
from tests.forked import Appending, Forked, compacting
from tests.ledger import NUM_NODES, Ledger, check_exactly_once, rebuilt, write_first
from tests.live_servers import Clients, Questions, serving, until
from tests.models import random_model
from tests.servers import Server, kill_and_start_again

KILLS = int(os.environ.get("HOPSERVE_KILLS", "22"))
SERVER_KILLS = max(6, KILLS // 10)
PROCESS_KILLS = max(0, KILLS - SERVER_KILLS)
NUM_CLIENTS = 2
VICTIMS = ("graph", "graphsage", "graph", "everything", "graphsage", "graph")
_MEAN_LIFE_S = 0.15  # as long as it takes to start and to answer a few changes


def _kill_worker(server: Server, model: str, draw: random.Random) -> None:
    until(lambda: server.ready_pids(model) != [])
    pid = draw.choice(server.ready_pids(model))
    time.sleep(draw.random() * 0.02)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Killed:
    """Two processes that append to one log, and one that compacts it again and again; one dies at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers = [Ledger(number) for number in range(NUM_CLIENTS)]
        self.num_killed = self.num_compacted = 0
        self._random = random.Random(KILLS)
        self._appending = [self._start(ledger) for ledger in self.ledgers]
        self._compaction: Forked | None = None

    def run(self, num_kills: int) -> None:
        """Kill so often, and then let everything be acknowledged."""
        while self.num_killed < num_kills or not self.num_compacted:
            next_kill = time.monotonic() + self._random.expovariate(1 / _MEAN_LIFE_S)
            while (left_s := next_kill - time.monotonic()) > 0:
                self._take_answers(left_s)
            self._kill(self._random.randrange(NUM_CLIENTS + 1))
        while any(ledger.is_waiting for ledger in self.ledgers):
            self._take_answers(60, ask_on=False)

    def close(self) -> None:
        for process in self._appending:
            process.kill()
        if self._compaction is not None:
            self._compaction.kill()

    def _start(self, ledger: Ledger) -> Appending:
        """A process that is asked for what is not acknowledged yet."""
        process = Appending(self.folder)
        process.send(ledger.ask())
        return process

    def _take_answers(self, timeout_s: float, *, ask_on: bool = True) -> None:
        ready = wait([process.connection for process in self._appending], timeout_s)
        assert ready or ask_on, "no answer"
        for process, ledger in zip(self._appending, self.ledgers, strict=True):
            if process.connection in ready:
                ledger.acknowledge(process.receive())
                if ask_on:
                    process.send(ledger.ask())

    def _kill(self, victim: int) -> None:
        if victim < NUM_CLIENTS:
            self._appending[victim].kill()
            self._appending[victim] = self._start(self.ledgers[victim])
            self.num_killed += 1
        if self._compaction is not None and self._compaction.has_ended():
            self._compaction = None
            self.num_compacted += 1
        if victim == NUM_CLIENTS and self._compaction is not None:
            self.num_killed += self._compaction.kill()
            self._compaction = None
        if self._compaction is None:
            self._compaction = compacting(self.folder)


def test_a_server_whose_processes_are_killed_loses_nothing(tmp_path: Path) -> None:
    """Its workers, or all of it at once; compactions, which it begins by itself, end with it."""
    write_first(tmp_path / "graph")
    draw = random.Random(KILLS)
    with serving(tmp_path, tmp_path / "graph", random_model((10, 5)), compact_after=200) as live:
        with (
            Clients(live.server, NUM_CLIENTS) as clients,
            Questions(live.server, range(NUM_NODES), is_calm=False),
        ):
            for number in range(SERVER_KILLS):
                clients.wait_for(draw.randrange(1, 30))
                victim = VICTIMS[number % len(VICTIMS)]
                if victim == "everything":
                    kill_and_start_again(live.server)
                else:
                    _kill_worker(live.server, victim, draw)
            clients.wait_for(1)
            until(lambda: live.home.current_seq > 0)
        last_seq = max(ledger.last_seq for ledger in clients.ledgers)
        live.check_answers(rebuilt(clients.ledgers), last_seq)
        for ledger in clients.ledgers:
            for change in ledger.acknowledged[-20:]:
                assert live.change(change.body) == change.as_repeated()
        live.check_compacted(lambda snapshot: check_exactly_once(snapshot, clients.ledgers))


def test_processes_that_are_killed_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compile_all(tmp_path / "other")
    folder = tmp_path / "graph"
    write_first(folder)
    killed = Killed(folder)
    try:
        killed.run(PROCESS_KILLS)
    finally:
        killed.close()
    _check_repeats(folder, killed.ledgers)
    monkeypatch.setattr(graph_home, "_LEFTOVER_AGE_S", 0.0)
    _check_compacted(folder, killed.ledgers)


def _compile_all(folder: Path) -> None:
    """Forks begin with what their parent has compiled."""
    write_first(folder)
    ledger = Ledger(0)
    with closing(_service(folder)) as service:
        for _ in range(30):
            _apply(service, ledger)
    _check_compacted(folder, [ledger])


def _service(folder: Path) -> ChangeService:
    return ChangeService(follow(folder, lambda graph: graph), GraphSettings(graph=""), Counters())


def _apply(service: ChangeService, ledger: Ledger) -> None:
    (response,) = service.answer([ledger.ask()])
    ledger.acknowledge(json.loads(response.body))


def _check_repeats(folder: Path, ledgers: list[Ledger]) -> None:
    """What was acknowledged is known again."""
    with closing(_service(folder)) as service:
        for ledger in ledgers:
            for change in ledger.acknowledged[-50:]:
                (response,) = service.answer([change.body])
                assert json.loads(response.body) == change.as_repeated()


def _check_compacted(folder: Path, ledgers: list[Ledger]) -> None:
    """Once nobody reads it, a compaction leaves one snapshot with everything, and an empty log."""
    home = GraphHome.read(folder)
    with closing(LmdbLog.open(home.log_folder, home.graph_id)) as log:
        compact(home, log)
        last_seq = max(ledger.last_seq for ledger in ledgers)
        assert (log.first_seq(), log.last_seq()) == (last_seq + 1, last_seq)
    names = {path.name for path in folder.iterdir()}
    assert names == {"CURRENT", "compaction.lock", "graph.json", "log", f"snapshot-{last_seq}"}
    check_exactly_once(verify(home.current), ledgers)
