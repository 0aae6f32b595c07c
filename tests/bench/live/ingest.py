"""Durable ingest in one process: JSON in, an fsynced log, the answer out."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from handler import change_service, intake
from handler.change_service import ChangeService
from handler.graph.arrays import GraphArrays
from handler.graph.follower import Follower, follow
from handler.graph.home import write_home
from handler.graph.live_graph import LiveGraph
from handler.log.embedded import LmdbLog
from handler.metrics import Counters
from handler.settings import GraphSettings
from tests.bench.live.graphs import REQUEST_EDGES, beside, edge_bodies, int_ids, str_ids
from tests.bench.pipeline import show_table
from tests.bench.sampler import PowerLawEdges

TARGET_EDGES_PER_S = 50_000
_GROUPS = (1, 4, 16)
_REQUESTS_PER_TURN = 64
_WARM_UP_TURNS = 2
# What is timed within an answer, and where it is called from; what it does not name is the rest.
_STAGES: dict[str, tuple[Any, str]] = {
    "parse": (change_service, "parse_change"),
    "resolve": (intake.Resolver, "resolve"),
    "encode": (intake, "encode_mutations"),
    "append": (LmdbLog, "append"),
    "apply": (LiveGraph, "apply_record"),
}


def show_ingest(work: Path, *, num_edges: int, turns: int) -> None:
    """Time requests of a thousand edges by how many share one commit, on one core."""
    click.echo(
        f"Durable ingest in one process on one core, requests of {REQUEST_EDGES:,} edges, each applied, too;"
        f" medians of {turns} turns of {_REQUESTS_PER_TURN} requests\n"
    )
    rates, stages = [], []
    for kind, make_ids in (("int", int_ids), ("str", str_ids)):
        with _on_one_core():
            measured = _Ingest(work / f"ingest-{kind}", num_edges, make_ids).run(turns)
        for group in _GROUPS:
            rates.append(measured.rate_row(kind, group))
            stages.append(measured.stage_row(kind, group))
    show_table(
        (
            "ids",
            "requests a commit",
            "edges/s",
            "target",
            "met",
            "slow tenth",
            "fsync of a file",
            "of that",
        ),
        rates,
    )
    click.echo("Microseconds per edge, and share of the whole (append ends with LMDB's fsync)\n")
    show_table(("ids", "requests a commit", "whole", *_STAGES, "rest", "bytes/edge of the log"), stages)


class _Ingest:
    """A graph whose changes are timed.

    Args:
        make_ids: the ids of so many nodes.
    """

    def __init__(self, folder: Path, num_edges: int, make_ids: Callable[[int], Any]) -> None:
        edges = PowerLawEdges(num_edges)
        self._ids = make_ids(edges.num_nodes)
        if not folder.exists():
            write_home(folder, GraphArrays("power-law", edges, edges.num_nodes, ids=self._ids))
        self._folder = folder
        self._whole_us: dict[int, list[float]] = {group: [] for group in _GROUPS}
        self._stage_us: dict[int, dict[str, list[float]]] = {
            group: {name: [] for name in _STAGES} for group in _GROUPS
        }
        self._fsync_us: dict[int, list[float]] = {group: [] for group in _GROUPS}
        self._bytes_per_edge = 0.0

    def run(self, turns: int) -> _Ingest:
        """Let the group sizes take turns, each followed by plain files of as many bytes."""
        follower = follow(self._folder, lambda graph: graph)
        service = ChangeService(follower, GraphSettings(graph=str(self._folder)), Counters())
        try:
            for turn in range(turns + _WARM_UP_TURNS):
                for group in _GROUPS:
                    self._take_turn(follower, service, group, turn)
        finally:
            service.close()
        noted = [*self._whole_us.values(), *self._fsync_us.values()]
        for taken in [*noted, *(taken for stages in self._stage_us.values() for taken in stages.values())]:
            del taken[:_WARM_UP_TURNS]
        return self

    def _take_turn(
        self, follower: Follower[LiveGraph], service: ChangeService, group: int, turn: int
    ) -> None:
        bodies = edge_bodies(self._ids, _REQUESTS_PER_TURN, seed=turn * 100 + group)
        num_edges = _REQUESTS_PER_TURN * REQUEST_EDGES
        with _timed_stages() as taken_s:
            started = time.perf_counter()
            for start in range(0, len(bodies), group):
                answers = service.answer(bodies[start : start + group])
                if any(answer.status != 200 for answer in answers):
                    raise RuntimeError(f"a change was refused: {answers[0].body!r}")
            with follower.at_the_end():  # what was taken in last is applied within the turn, too
                pass
            whole_s = time.perf_counter() - started
        self._whole_us[group].append(whole_s * 1e6 / num_edges)
        for name in _STAGES:
            self._stage_us[group][name].append(taken_s[name] * 1e6 / num_edges)
        self._bytes_per_edge = taken_s["bytes"] / num_edges
        num_bytes = int(self._bytes_per_edge * group * REQUEST_EDGES)
        started = time.perf_counter()
        for _ in range(_REQUESTS_PER_TURN // group):
            _append_to_file(self._folder / "plain", num_bytes)
        self._fsync_us[group].append((time.perf_counter() - started) * 1e6 / num_edges)

    def rate_row(self, kind: str, group: int) -> list[str]:
        """Edges a second, beside the target and the floor."""
        whole = 1e6 / np.median(self._whole_us[group])
        slow = 1e6 / np.quantile(self._whole_us[group], 0.9)
        floor = 1e6 / np.median(self._fsync_us[group])
        met = beside(float(whole), TARGET_EDGES_PER_S, lambda value: f"{value:,.0f}")
        return [kind, str(group), *met, f"{slow:,.0f}", f"{floor:,.0f}", f"{whole / floor:.2f}"]

    def stage_row(self, kind: str, group: int) -> list[str]:
        """Where the time goes."""
        whole = float(np.mean(self._whole_us[group]))
        stages = [float(np.mean(self._stage_us[group][name])) for name in _STAGES]
        cells = [f"{us:.2f} ({us / whole:.0%})" for us in [*stages, whole - sum(stages)]]
        return [kind, str(group), f"{whole:.2f}", *cells, f"{self._bytes_per_edge:.0f}"]


@contextmanager
def _timed_stages() -> Iterator[dict[str, float]]:
    """Seconds by stage, of this thread alone: the follower's own may be at work meanwhile.

    Beside them `bytes`, which the log was given.
    """
    taken_s: dict[str, float] = defaultdict(float)
    mine = threading.get_ident()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return function(*args, **kwargs)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken_s[name] += time.perf_counter() - started
                if name == "append":
                    taken_s["bytes"] += sum(len(record.data) for record in args[1])

        return call

    with ExitStack() as patched:
        for name, (owner, attribute) in _STAGES.items():
            patched.enter_context(patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
        yield taken_s


def _append_to_file(path: Path, num_bytes: int) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(bytes(num_bytes))
        os.fsync(file.fileno())


@contextmanager
def _on_one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
