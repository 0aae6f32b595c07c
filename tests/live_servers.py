"""A graph that changes and a model over it, served by a real TorchServe."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import httpx
import numpy as np
import torch

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.pack import GraphPlan, PackPlan, pack
from gateway.errors import UpstreamError
from handler import headers
from handler.errors import SnapshotError
from handler.graph.compaction import compact
from handler.graph.home import GraphHome
from handler.graph.snapshot import Snapshot, verify
from handler.log.opening import open_log
from handler.model.exported import ExportedModel
from tests.ledger import Ledger
from tests.models import export
from tests.served import Answering, close
from tests.servers import Server, running

PATIENCE_S = 120.0
_TIMEOUT_S = 3.0  # TorchServe answers nothing that a worker had when it died
_JSON = {"Content-Type": "application/json"}
_RETURNED = ["embedding", "neighbors"]


@dataclass(frozen=True)
class LiveServer:
    """A running server of a graph and a model over it.

    Args:
        home: of the graph.
        exported: the model's folder.
        num_workers: of the model.
    """

    server: Server
    home: GraphHome
    exported: Path
    num_workers: int

    def change(self, request: Any) -> dict[str, Any]:
        """Change the graph, or ask what it is; bytes go as they are."""
        content = request if isinstance(request, bytes) else json.dumps(request).encode()
        response = httpx.post(
            self.server.url("graph"), content=content, headers=self.server.headers() | _JSON, timeout=60
        )
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def info(self) -> dict[str, Any]:
        return self.change({"info": True})

    def every_worker(self, node_ids: Sequence[Any], **options: Any) -> list[list[Any]]:
        """What each worker of the model answers for some nodes, once it knows of the mutation asked for."""
        answers: dict[str, list[Any]] = {}

        def has_everyone_answered() -> bool:
            response = self.server.ask({"node_ids": node_ids, **options})
            assert response.status_code == 200, response.text
            rows = response.json()["predictions"]
            if not any(row.get("error", {}).get("code") == "not_fresh" for row in rows):
                answers[response.headers[headers.WORKER]] = rows
            return len(answers) == self.num_workers

        until(has_everyone_answered)
        return list(answers.values())

    def snapshots(self) -> set[str]:
        """Those that the workers answer from."""
        node_ids = Snapshot.open(self.home.folder).ids.id_of(np.arange(1))
        return {row["graph"]["snapshot"] for (row,) in self.every_worker(node_ids)}

    def check_answers(self, wanted: Snapshot, min_seq: int, num_nodes: int = 200) -> None:
        """Every worker answers as one does that serves another graph, which does not change."""
        model = ExportedModel.load(self.exported, torch.device("cpu"))
        chosen = np.random.default_rng(0).permutation(wanted.num_nodes)[:num_nodes]
        node_ids, returned = list(wanted.ids.id_of(chosen)), {"return": _RETURNED}
        ((status, expected),) = Answering(wanted, model).ask({"node_ids": node_ids} | returned)
        assert status == 200, expected
        for rows in self.every_worker(node_ids, min_seq=min_seq, **returned):
            for found, row in zip(rows, expected["predictions"], strict=True):
                assert "error" not in found, found
                assert found["graph"]["seq"] >= min_seq
                assert (found["node_id"], found["neighbors"]) == (row["node_id"], row["neighbors"])
                assert close(found["embedding"], row["embedding"]), found["node_id"]

    def check_compacted(self, check: Callable[[Snapshot], None]) -> None:
        """Compact, which must give a snapshot that passes a check, and that workers move on to."""
        until(self._is_compacted)
        compacted = verify(self.home.current)
        check(compacted)
        until(lambda: self.snapshots() == {compacted.manifest.snapshot_id})

    def _is_compacted(self) -> bool:
        """Compact, but where the server is at it itself."""
        with closing(open_log(self.home.log, self.home.log_folder, self.home.graph_id)) as log:
            try:
                compact(self.home, log)
            except SnapshotError as error:
                if "is being compacted by another process" not in str(error):
                    raise
                return False
        return True


@contextmanager
def serving(
    folder: Path,
    home: Path,
    model: tuple[ModelConfig, GraphSAGE],
    num_workers: int = 2,
    model_settings: Mapping[str, Any] = MappingProxyType({}),
    others: Sequence[Path] = (),
    **graph_settings: Any,
) -> Iterator[LiveServer]:
    """A server of a graph and a model, until the end of the block; of `others`, too, which are archives."""
    export(*model, folder / "export")
    about_model = {"model_folder": folder / "export", "num_workers": num_workers, "settings": model_settings}
    archives = [
        pack(PackPlan("graphsage", "1.0", graph_folder=home, **about_model), folder),  # type: ignore[arg-type]
        pack(GraphPlan(graph_folder=home, settings=graph_settings), folder),
    ]
    with running(folder / "ts", *archives, *others) as server:
        yield LiveServer(server, GraphHome.read(home), folder / "export", num_workers)


class Questions:
    """Asks a model for random nodes all the time, in a thread of its own; a context manager.

    At its end no worker may have gone back, behind an answer that it had given.

    Args:
        is_calm: whether every question must be answered.
    """

    def __init__(self, server: Server, node_ids: Sequence[Any], *, is_calm: bool = True) -> None:
        self.statuses: Counter[int] = Counter()
        #: The snapshots that each process has answered from, in order.
        self.snapshots: dict[str, list[str]] = {}
        self._server = server
        self._node_ids = node_ids
        self._is_calm = is_calm
        self._last_seq: dict[str, int] = {}
        self._gone_back: list[Any] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stopping.set()
        self._thread.join()
        if error is None:
            assert self._gone_back == []
            assert self.statuses[200] > 0
            assert not self._is_calm or set(self.statuses) == {200}, self.statuses

    def _run(self) -> None:
        # One client for all: each takes long to be made.
        with httpx.Client(timeout=PATIENCE_S if self._is_calm else _TIMEOUT_S) as client:
            self._ask_on(client)

    def _ask_on(self, client: httpx.Client) -> None:
        draw, url = random.Random(0), self._server.url()
        while not self._stopping.is_set():
            status = 0
            with suppress(httpx.HTTPError, UpstreamError):
                response = client.post(
                    url, json={"node_id": draw.choice(self._node_ids)}, headers=self._server.headers()
                )
                status = response.status_code
                if status == 200:
                    self._note(response.headers[headers.WORKER], response.json()["graph"])
            self.statuses[status] += 1
            if status != 200:
                time.sleep(0.1)

    def _note(self, worker: str, graph: dict[str, Any]) -> None:
        if graph["seq"] < self._last_seq.get(worker, 0):
            self._gone_back.append((worker, graph, self._last_seq[worker]))
        self._last_seq[worker] = graph["seq"]
        snapshots = self.snapshots.setdefault(worker, [])
        if graph["snapshot"] not in snapshots[-1:]:
            snapshots.append(graph["snapshot"])


class Clients:
    """Change a graph all the time, each in a thread of its own, whatever becomes of it; a context manager.

    A change is asked for until it is acknowledged; at the end, all were.
    """

    def __init__(self, server: Server, num_clients: int) -> None:
        self.ledgers = [Ledger(number) for number in range(num_clients)]
        self._server = server
        self._failures: list[Exception] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(ledger,), daemon=True) for ledger in self.ledgers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        if error is None:
            assert self._failures == []
            assert not any(ledger.is_waiting for ledger in self.ledgers), "not everything was acknowledged"

    @property
    def num_acknowledged(self) -> int:
        return sum(len(ledger.acknowledged) for ledger in self.ledgers)

    def wait_for(self, num_changes: int) -> None:
        """Wait until so many changes more were acknowledged."""
        wanted = self.num_acknowledged + num_changes
        until(lambda: self._failures != [] or self.num_acknowledged >= wanted)

    def _run(self, ledger: Ledger) -> None:
        try:
            with httpx.Client(timeout=_TIMEOUT_S) as client:
                while ledger.is_waiting or not self._stopping.is_set():
                    self._ask(client, ledger)
        except Exception as error:  # noqa: BLE001 - shown at the end
            self._failures.append(error)

    def _ask(self, client: httpx.Client, ledger: Ledger) -> None:
        with suppress(httpx.HTTPError, UpstreamError):
            key = self._server.headers()
            response = client.post(self._server.url("graph"), content=ledger.ask(), headers=key | _JSON)
            if response.status_code == httpx.codes.OK:
                ledger.acknowledge(response.json())
                return
            # TorchServe's own errors look different.
            ours = response.json().get("error", {}).get("code")
            assert ours in {None, "not_ready", "not_logged"}, response.text
        time.sleep(0.1)


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
