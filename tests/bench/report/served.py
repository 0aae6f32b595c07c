"""Parts that ask servers: TorchServe end to end, with ingest, beside FastAPI, by workers and batch sizes."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from gateway.tuning.load import Answered, Sent, send_all, send_at_rate
from tests.bench.laps import Lap, run_lap
from tests.bench.live.graphs import REQUEST_EDGES, edge_bodies
from tests.bench.live.serving import INGEST_EDGES_PER_S
from tests.bench.report.ratios import LIST_SIZE, MANY, SHARES, batch_name, over_rounds, workers_name
from tests.bench.report.results import (
    CACHED,
    FASTAPI,
    FASTAPI_WHOLE,
    LISTS,
    LIVE,
    NOOP,
    WITH_INGEST,
    Part,
    Results,
    Turn,
)
from tests.bench.report.workshop import MODEL, Workshop
from tests.bench.serving import requests_until
from tests.servers import free_ports

_COMPUTED = {"max_staleness_ms": 0}
_READY_S = 300.0
_ASKED_AT_ONCE = 1000
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class _Asked:
    """Who is asked for what.

    Args:
        num_nodes: of which the first so many are asked for.
    """

    name: str
    url: str
    num_nodes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Callable[[], dict[str, str]] = dict
    list_size: int | None = None

    def closed(self, connections: int, seconds: float) -> Lap:
        """Ask over so many connections, as fast as answers come."""
        return run_lap(lambda: send_all(self.url, self.headers(), self._requests(seconds), connections))

    def opened(self, rate: float, seconds: float) -> Lap:
        """Ask at a rate, whatever answers take."""
        return run_lap(lambda: send_at_rate(self.url, self.headers(), self._requests(seconds), rate))

    def _requests(self, seconds: float) -> Iterator[dict[str, Any]]:
        return requests_until(time.monotonic() + seconds, self.options, self.num_nodes, self.list_size)


def measure_served(workshop: Workshop, results: Results, part: Part) -> None:
    """Live, cached and in lists, beside the no-op handler: closed loops, then open ones."""
    scale = workshop.scale
    asked = [
        _asked(workshop, NOOP, "noop", {}),
        _asked(workshop, LIVE, MODEL, _COMPUTED),
        _asked(workshop, CACHED, MODEL, {}, pool=scale.pool),
        _asked(workshop, LISTS, MODEL, _COMPUTED, list_size=LIST_SIZE),
    ]
    _fill_cache(workshop)
    for each in asked:
        each.closed(MANY, scale.warm_up_s)
    part.notes.append(
        f"{_cached_share(asked[2]):.0%} of the answers that are called cached came from the cache."
    )
    for connections in scale.connections:
        _take_turns(results, "served", asked, connections, scale.rounds, scale.seconds)
    for number in range(scale.rounds):
        for share, each in itertools.product(SHARES, asked[:3]):
            throughput = over_rounds(results.closed("served", each.name, MANY).values(), lambda t: t.per_s)
            rate = throughput * share
            lap = each.opened(rate, scale.seconds)
            known = {"part": "served", "name": each.name, "connections": 0, "round": number}
            results.turns.append(Turn.of(lap, rate=rate, share=share, **known))


def measure_ingest(workshop: Workshop, results: Results, part: Part) -> None:
    """Live answers with and without changes of the graph that come meanwhile, in turns."""
    scale = workshop.scale
    part.notes.append(f"{INGEST_EDGES_PER_S:,} edges are added a second, in requests of {REQUEST_EDGES:,}.")
    live = _asked(workshop, LIVE, MODEL, _COMPUTED)
    live.closed(MANY, scale.warm_up_s)
    rate = INGEST_EDGES_PER_S / REQUEST_EDGES
    seconds = max(scale.seconds, 2 / rate)
    statuses: list[int] = []
    for number, connections in itertools.product(range(scale.rounds), scale.connections):
        bodies = edge_bodies(np.arange(live.num_nodes), int(seconds * rate) or 1, 1000 * number + connections)
        known = {"part": "ingest", "connections": connections, "round": number}
        results.turns.append(Turn.of(live.closed(connections, seconds), name=LIVE, **known))
        with _changing(workshop, bodies, rate) as changed:
            lap = live.closed(connections, seconds)
        statuses += [answer.status for answer in changed]
        results.turns.append(Turn.of(lap, name=WITH_INGEST, **known))
    part.notes.append(f"{statuses.count(200)} of {len(statuses)} requests for changes were answered well.")


def measure_workers(workshop: Workshop, results: Results, part: Part) -> None:
    """Live answers of one worker and of two, in turns."""
    part.notes.append("All share the cores: workers, TorchServe's front end, and the load generator.")
    _race_variants(
        workshop, results, "workers", {workers_name(n): {"num_workers": n} for n in (1, 2)}, "sage-workers"
    )


def measure_batches(workshop: Workshop, results: Results, part: Part) -> None:
    """Live answers by TorchServe's `batchSize`, in turns."""
    sizes = workshop.scale.torchserve_batches
    _race_variants(
        workshop, results, "batches", {batch_name(n): {"batch_size": n} for n in sizes}, "sage-batch"
    )


def measure_fastapi(workshop: Workshop, results: Results, part: Part) -> None:
    """Hopserve and a plain service on the same graph, in turns."""
    scale, graph = workshop.scale, workshop.compared_graph
    name = MODEL if graph == workshop.graph else "sage-compared"
    part.notes.append(
        f"On a graph of {scale.compared_edges:,} edges, both: NetworkX takes about a kilobyte for each. It"
        " answers as Hopserve does, from the first ten neighbors of two hops; `whole neighborhood` takes all."
    )
    if name != MODEL:
        workshop.register(workshop.pack(name, graph=graph))
    try:
        num_nodes = scale.compared_edges // scale.edges_per_node
        live = _asked(workshop, LIVE, name, _COMPUTED, pool=num_nodes)
        with _fastapi(graph) as base:
            asked = [
                live,
                _Asked(FASTAPI, f"{base}/sampled", num_nodes),
                _Asked(FASTAPI_WHOLE, f"{base}/whole", num_nodes),
            ]
            for each in asked[:2]:
                each.closed(MANY, scale.warm_up_s)
            for connections in (1, MANY):
                _take_turns(results, "fastapi", asked, connections, scale.rounds, scale.seconds)
    finally:
        if name != MODEL:
            workshop.unregister(name)


def _asked(
    workshop: Workshop,
    name: str,
    model: str,
    options: Mapping[str, Any],
    *,
    pool: int | None = None,
    list_size: int | None = None,
) -> _Asked:
    num_nodes = workshop.scale.num_edges // workshop.scale.edges_per_node
    server = workshop.server
    url = server.url(model)
    return _Asked(name, url, min(pool or num_nodes, num_nodes), options, server.headers, list_size)


def _take_turns(
    results: Results, part: str, asked: Sequence[_Asked], connections: int, rounds: int, seconds: float
) -> None:
    """Who begins changes with each round."""
    for number in range(rounds):
        for each in asked[::-1] if number % 2 else asked:
            lap = each.closed(connections, seconds)
            known = {"part": part, "name": each.name, "connections": connections, "round": number}
            results.turns.append(Turn.of(lap, **known))


def _race_variants(
    workshop: Workshop, results: Results, part: str, variants: Mapping[str, Mapping[str, int]], prefix: str
) -> None:
    """Serve the model under a name for each variant, and let them take turns."""
    scale, registered, asked = workshop.scale, [], []
    try:
        for number, (name, options) in enumerate(variants.items()):
            model = MODEL
            if options not in ({"num_workers": 1}, {"batch_size": 64}):  # which is what is served already
                model = f"{prefix}-{number}"
                workshop.register(workshop.pack(model, **options))
                registered.append(model)
            asked.append(_asked(workshop, name, model, _COMPUTED))
        for each in asked:
            each.closed(MANY, scale.warm_up_s)
        for connections in sorted({scale.connections[0], MANY}):
            _take_turns(results, part, asked, connections, scale.rounds, scale.seconds)
    finally:
        for model in registered:
            workshop.unregister(model)


def _fill_cache(workshop: Workshop) -> None:
    nodes = list(range(min(workshop.scale.pool, workshop.snapshot.num_nodes)))
    for start in range(0, len(nodes), _ASKED_AT_ONCE):
        answer = workshop.server.ask({"node_ids": nodes[start : start + _ASKED_AT_ONCE]}, model=MODEL)
        answer.raise_for_status()


def _cached_share(cached: _Asked) -> float:
    answers = cached.closed(1, 0.2).answers
    return sum(b'"cache"' in answer.body for answer in answers) / max(1, len(answers))


@contextmanager
def _changing(workshop: Workshop, bodies: list[bytes], rate: float) -> Iterator[list[Answered]]:
    """Changes come at a rate during the block; the answers are there after it."""
    answers: list[Answered] = []
    url, key = workshop.server.url("graph"), workshop.server.headers()
    sent = (Sent(body, _JSON) for body in bodies)
    send = partial(send_at_rate, url, key, sent, rate)
    thread = threading.Thread(target=lambda: answers.extend(send()))
    thread.start()
    try:
        yield answers
    finally:
        thread.join()


@contextmanager
def _fastapi(graph: Path) -> Iterator[str]:
    """The plain service in a process of its own; its address."""
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.bench.report.fastapi_service",
        str(graph),
        str(port),
    ]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        base, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _READY_S
        while not _is_ready(base):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the FastAPI service did not start")
            time.sleep(0.1)
        yield base
    finally:
        process.terminate()
        process.wait()


def _is_ready(base: str) -> bool:
    try:
        return httpx.get(f"{base}/ready").is_success
    except httpx.HTTPError:
        return False
