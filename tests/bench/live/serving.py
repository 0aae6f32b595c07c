"""A graph that changes behind TorchServe: how soon changes count, and what they cost those who ask."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import click
import numpy as np
from numpy.typing import NDArray

from archive.export.export import export_model
from archive.pack import GraphPlan, PackPlan, pack
from gateway.tuning.load import Sent, send_all
from handler import headers
from handler.graph.home import write_home
from tests.bench.live.graphs import REQUEST_EDGES, beside, edge_bodies
from tests.bench.live.ingest import TARGET_EDGES_PER_S
from tests.bench.pipeline import PLAN, Sage, power_law, show_table
from tests.servers import Server, running

NUM_WORKERS = 2
TARGET_VISIBLE_MS = 50.0
TARGET_P99_RATIO = 1.5
INGEST_EDGES_PER_S = 10_000
_SEQ = re.compile(rb'"seq":\s*(\d+)')
_LAST_SEQ = re.compile(rb'"last_seq":\s*(\d+)')
_SETTLE_S = 0.5
_JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(work: Path, num_edges: int) -> Iterator[Bench]:
    """A graph with a model of two workers, behind TorchServe."""
    home = work / "served"
    arrays = power_law(num_edges)
    write_home(home, arrays, replace=home.exists())
    export_model(Sage().eval(), PLAN, work / "model")
    graph = GraphPlan(graph_folder=home, settings={"compact_after": 0})
    model = PackPlan(
        "sage",
        "1.0",
        graph_folder=home,
        model_folder=work / "model",
        num_workers=NUM_WORKERS,
        max_workers=NUM_WORKERS,
    )
    store = work / "store"
    with running(work / "ts", pack(graph, store), pack(model, store)) as server:
        yield Bench(server, arrays.num_nodes)


@dataclass(frozen=True)
class _Answer:
    """An answer to a query.

    Args:
        due_s: when it should have been asked.
        sent_s, received_s: when it was, and when the answer was there; all of one clock.
        seq: the latest mutation that counted.
    """

    due_s: float
    sent_s: float
    received_s: float
    status: int
    worker: str
    seq: int


@dataclass
class _Phase:
    """What came back while something was going on."""

    answers: list[_Answer] = field(default_factory=list)
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0

    def latency_ms(self, share: float) -> float:
        """Of answers from when they were due, or another quantile."""
        return float(np.quantile([a.received_s - a.due_s for a in self.answers], share) * 1000)


class Bench:
    """What is measured of one server."""

    def __init__(self, server: Server, num_nodes: int) -> None:
        self._server = server
        self._num_nodes = num_nodes
        self._seeds = itertools.count(1000)

    def show_ingest(self, seconds: float) -> None:
        """Requests of a thousand edges over HTTP, from as many connections as stand in the first column."""
        click.echo(
            f"Durable ingest over HTTP, requests of {REQUEST_EDGES:,} edges; {NUM_WORKERS} workers of a model"
            " follow on the same cores\n"
        )
        rows = []
        for connections in (1, 4, 16):
            bodies = self._bodies(int(seconds * 150) + connections)
            deadline = time.monotonic() + seconds
            sent = (Sent(body, _JSON) for body in bodies if time.monotonic() < deadline)
            started = time.monotonic()
            answers = send_all(self._server.url("graph"), self._server.headers(), sent, connections)
            taken_s = time.monotonic() - started
            done = sum(answer.status == 200 for answer in answers)
            rate = done * REQUEST_EDGES / taken_s
            met = beside(rate, TARGET_EDGES_PER_S, lambda value: f"{value:,.0f}")
            p50, p99 = np.quantile([answer.seconds * 1000 for answer in answers], [0.5, 0.99])
            rows.append([connections, *met, f"{p50:.1f}", f"{p99:.1f}", len(answers) - done])
            self._wait_until_followed()
        show_table(("connections", "edges/s", "target", "met", "p50 ms", "p99 ms", "refused"), rows)

    def show_visibility(self, seconds: float, connections: int) -> None:
        """How long after its acknowledgement a mutation counts in answers of all workers."""
        rows = []
        for name, num_edges, pause_s in (("1 edge", 1, 0.02), (f"{REQUEST_EDGES:,} edges", 1000, 0.1)):
            bodies = self._bodies(int(seconds / pause_s) + 1, num_edges)
            phase = asyncio.run(self._ask_closed(seconds, connections, bodies, pause_s))
            rows.append([name, *_visibility_cells(phase)])
            self._wait_until_followed()
        click.echo(
            f"From the acknowledgement of a change until an answer that counts it has come from each of"
            f" {NUM_WORKERS} workers; {connections} connections ask as fast as they can. Stale: answers to"
            " queries sent after an acknowledgement that do not count it\n"
        )
        show_table(
            ("change", "seen", "p50 ms", "p99 ms", "target", "met", "stale", "answers/s", "query p50 ms"),
            rows,
        )

    def show_impact(self, seconds: float, pairs: int, rate: float) -> None:
        """Latency of queries that come at a steady rate, with and without ingest, in turns."""
        phases: dict[bool, list[_Phase]] = {False: [], True: []}
        for _ in range(pairs):
            for ingests in (False, True):
                wanted = INGEST_EDGES_PER_S / REQUEST_EDGES
                bodies = self._bodies(int(seconds * wanted)) if ingests else []
                phases[ingests].append(asyncio.run(self._ask_open(seconds, rate, bodies, wanted)))
                self._wait_until_followed()
        click.echo(
            f"Queries at {rate:.0f}/s, timed from when they are due, without and with {INGEST_EDGES_PER_S:,}"
            f" edges/s in requests of {REQUEST_EDGES:,}; medians of {pairs} pairs of {seconds:.0f} s each\n"
        )
        rows = []
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            without, with_ = (
                np.array([phase.latency_ms(share) for phase in phases[ingests]]) for ingests in (False, True)
            )
            ratio = float(np.median(with_ / without))
            met = beside(ratio, TARGET_P99_RATIO, lambda value: f"{value:.2f}x", at_most=True)
            spread = f"{(with_ / without).min():.2f} to {(with_ / without).max():.2f}"
            rows.append([name, f"{np.median(without):.1f}", f"{np.median(with_):.1f}", *met, spread])
        show_table(("", "without ms", "with ms", "ratio", "target", "met", "of pairs"), rows)
        ingested = [len(each.acknowledged) * REQUEST_EDGES / each.seconds for each in phases[True]]
        failed = sum(answer.status != 200 for each in phases[True] for answer in each.answers)
        click.echo(f"Ingested {np.median(ingested):,.0f} edges/s; {failed} queries failed\n")

    def _bodies(self, count: int, num_edges: int = REQUEST_EDGES) -> list[bytes]:
        return edge_bodies(np.arange(self._num_nodes), count, next(self._seeds), num_edges)

    async def _ask_closed(
        self, seconds: float, connections: int, bodies: list[bytes], pause_s: float
    ) -> _Phase:
        """Ask over connections as fast as they can, while changes are made one after another."""
        phase = _Phase()
        deadline = time.monotonic() + seconds
        async with self._session() as session:

            async def ask() -> None:
                while time.monotonic() < deadline:
                    await self._ask(session, time.monotonic(), phase)

            async def change() -> None:
                for body in bodies:
                    if time.monotonic() > deadline - _SETTLE_S:
                        return
                    await self._change(session, body, phase)
                    await asyncio.sleep(pause_s)

            await asyncio.gather(change(), *(ask() for _ in range(connections)))
        phase.seconds = seconds
        return phase

    async def _ask_open(self, seconds: float, rate: float, bodies: list[bytes], change_rate: float) -> _Phase:
        """Ask, and change, at steady rates, whatever the answers take."""
        phase = _Phase(seconds=seconds)
        gaps = random.Random(0)
        started = time.monotonic()
        async with self._session() as session, asyncio.TaskGroup() as tasks:

            async def change() -> None:
                for number, body in enumerate(bodies):
                    await asyncio.sleep(max(0, started + number / change_rate - time.monotonic()))
                    tasks.create_task(self._change(session, body, phase))

            tasks.create_task(change())
            due_s = started
            while (due_s := due_s + gaps.expovariate(rate)) < started + seconds:
                await asyncio.sleep(max(0, due_s - time.monotonic()))
                tasks.create_task(self._ask(session, due_s, phase))
        return phase

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=self._server.headers()) as session:
            yield session

    async def _ask(self, session: aiohttp.ClientSession, due_s: float, phase: _Phase) -> None:
        body = b'{"node_id": %d}' % random.randrange(self._num_nodes)
        sent_s = time.monotonic()
        async with session.post(self._server.url("sage"), data=body, headers=_JSON) as response:
            text = await response.read()
        found = _SEQ.search(text)
        phase.answers.append(
            _Answer(
                due_s,
                sent_s,
                time.monotonic(),
                response.status,
                response.headers.get(headers.WORKER, ""),
                int(found[1]) if found else -1,
            )
        )

    async def _change(self, session: aiohttp.ClientSession, body: bytes, phase: _Phase) -> None:
        async with session.post(self._server.url("graph"), data=body, headers=_JSON) as response:
            text = await response.read()
        found = _LAST_SEQ.search(text)
        if response.status == 200 and found:
            phase.acknowledged.append((time.monotonic(), int(found[1])))
        else:
            phase.refused += 1

    def _wait_until_followed(self) -> None:
        time.sleep(_SETTLE_S)
        self._server.ask({"node_id": 0}, model="sage")


def _visibility_cells(phase: _Phase) -> list[str]:
    good = [answer for answer in phase.answers if answer.status == 200]
    delays_ms, missed = [], 0
    for worker in {answer.worker for answer in good}:
        mine = sorted((answer for answer in good if answer.worker == worker), key=lambda a: a.received_s)
        seqs = np.maximum.accumulate([answer.seq for answer in mine])
        first = np.searchsorted(seqs, [seq for _, seq in phase.acknowledged])
        missed += int((first == len(mine)).sum())
        received: NDArray[np.float64] = np.array([*(answer.received_s for answer in mine), np.inf])
        delays_ms.append((received[first] - [at_s for at_s, _ in phase.acknowledged]) * 1000)
    if len(delays_ms) != NUM_WORKERS:
        raise RuntimeError(f"{len(delays_ms)} workers answered, of {NUM_WORKERS}")
    slowest = np.maximum(np.max(delays_ms, axis=0), 0)
    p50, p99 = np.quantile(slowest, [0.5, 0.99], method="higher")
    met = beside(float(p99), TARGET_VISIBLE_MS, lambda value: f"{value:.1f}", at_most=True)
    at_s = np.array([at_s for at_s, _ in phase.acknowledged])
    known = np.array([0, *(seq for _, seq in phase.acknowledged)])
    stale = sum(answer.seq < known[np.searchsorted(at_s, answer.sent_s)] for answer in good)
    return [
        f"{len(slowest) - missed // NUM_WORKERS} of {len(slowest)}",
        f"{p50:.1f}",
        *met,
        f"{stale} of {len(good):,}",
        f"{len(good) / phase.seconds:.0f}",
        f"{phase.latency_ms(0.5):.1f}",
    ]
