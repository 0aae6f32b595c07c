"""What the gateway adds: the same requests to TorchServe itself and through the gateway, in turns."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import click
import numpy as np
import psutil

from gateway.envoy.process import find_envoy
from gateway.process import find_controller
from gateway.tuning.load import send_all
from tests.bench.example import make_example
from tests.bench.laps import ASKER, Lap, run_lap
from tests.bench.live.graphs import beside
from tests.bench.pipeline import show_table
from tests.bench.serving import NUM_NODES, WARM_UP_S, requests_until
from tests.gateways import Front, fronted

TARGET_ADDED_MS = 0.5
TARGET_THROUGHPUT = 0.85
_Way = Literal["direct", "gateway"]
_WAYS: tuple[_Way, _Way] = ("direct", "gateway")
_ASKED: dict[str, dict[str, Any]] = {"stored": {}, "live": {"max_staleness_ms": 0}}
_QUANTILES = (0.5, 0.95, 0.99)


@click.command("gateway")
@click.option("--seconds", type=click.FloatRange(min=1), default=5, show_default=True, help="At a time.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="How often each is asked, in turns: a machine that others use has better and worse times.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 64),
    show_default=True,
    help="Connections kept open; may be given several times.",
)
@click.option(
    "--answers",
    type=click.Choice([*_ASKED]),
    multiple=True,
    default=tuple(_ASKED),
    show_default=True,
    help="Stored ones come from the cache, live ones are computed; may be given several times.",
)
def gateway_command(
    seconds: float, rounds: int, connections: tuple[int, ...], answers: tuple[str, ...]
) -> None:
    """Requests of one node each, to TorchServe itself and through the gateway, over open connections.

    Of the added time and of the throughput: the median of the rounds, and the lowest and highest. The
    processor's time is in milliseconds per 1,000 requests; the controller's is not for requests at all, so
    it is more where there are fewer.
    """
    click.echo(
        f"{len(os.sched_getaffinity(0))} cores are shared by all that runs, and who asks is one of them\n"
    )
    with TemporaryDirectory() as folder:
        archive, _, _ = make_example(Path(folder))
        with fronted(Path(folder, "ts"), archive) as front:
            bench = _Bench(front, seconds)
            bench.warm_up(max(connections))
            contests = [
                _Contest(name, count, bench.run(_ASKED[name], count, rounds))
                for name in answers
                for count in connections
            ]
    _show(contests)


@dataclass(frozen=True)
class _Contest:
    """Both ways to ask for the same, over so many connections, in each round."""

    asked: str
    connections: int
    rounds: list[dict[_Way, Lap]]

    def added_ms(self) -> list[float]:
        """By which the median with the gateway is longer, in each round."""
        return [
            float(np.median(laps["gateway"].taken_ms) - np.median(laps["direct"].taken_ms))
            for laps in self.rounds
        ]

    def throughputs(self) -> list[float]:
        """With the gateway, of that without, in each round."""
        return [laps["gateway"].rate / laps["direct"].rate for laps in self.rounds]


class _Bench:
    """Asks a server and the gateway before it.

    Args:
        seconds: for which each is asked at a time.
    """

    def __init__(self, front: Front, seconds: float) -> None:
        self._seconds = seconds
        self._key = front.server.headers()
        self._urls: dict[_Way, str] = {
            "direct": front.server.url(version="1.0"),
            "gateway": front.url(),
        }
        self._server = front.server
        self._processes = _processes(front)

    def warm_up(self, connections: int) -> None:
        """Java compiles what it runs often; all nodes come into the cache."""
        self._server.ask({"node_ids": list(range(NUM_NODES))})
        for options in _ASKED.values():
            for way in _WAYS:
                self._lap(way, options, connections, WARM_UP_S)

    def run(self, options: Mapping[str, Any], connections: int, rounds: int) -> list[dict[_Way, Lap]]:
        """Let both take turns; who begins changes with each."""
        return [
            {
                way: self._lap(way, options, connections, self._seconds)
                for way in (_WAYS if number % 2 else _WAYS[::-1])
            }
            for number in range(rounds)
        ]

    def _lap(self, way: _Way, options: Mapping[str, Any], connections: int, seconds: float) -> Lap:
        headers = self._key if way == "direct" else {}
        requests = requests_until(time.monotonic() + seconds, options)
        url = self._urls[way]
        return run_lap(lambda: send_all(url, headers, requests, connections), self._processes)


def _processes(front: Front) -> dict[str, list[psutil.Process]]:
    java = front.server.process
    envoy, controller = find_envoy(front.gateway.files), find_controller(front.gateway)
    if envoy is None or controller is None:
        raise RuntimeError("the gateway has ended")
    return {
        ASKER: [psutil.Process()],
        "TorchServe": [java],
        "workers": java.children(recursive=True),
        "Envoy": [envoy],
        "controller": [controller],
    }


def _show(contests: list[_Contest]) -> None:
    show_table(
        ("answers", "connections", "way", "requests/s", "p50 ms", "p95 ms", "p99 ms", "statuses"),
        [[*_place(contest), *_speed(contest, way)] for contest in contests for way in _WAYS],
    )
    click.echo("Milliseconds of the processor per 1,000 requests\n")
    names = list(contests[0].rounds[0]["direct"].cpu_s)
    show_table(
        ("answers", "connections", "way", *names, "sum"),
        [[*_place(contest), *_cpu(contest, way, names)] for contest in contests for way in _WAYS],
    )
    show_table(
        ("answers", "connections", "what the gateway does", "lowest to highest", "median", "target", "met"),
        [row for contest in contests for row in _verdicts(contest)],
    )


def _place(contest: _Contest) -> Iterator[object]:
    yield contest.asked
    yield contest.connections


def _speed(contest: _Contest, way: _Way) -> list[object]:
    laps = [laps[way] for laps in contest.rounds]
    quantiles = np.quantile(np.concatenate([lap.taken_ms for lap in laps]), _QUANTILES)
    statuses = Counter(answer.status for lap in laps for answer in lap.answers)
    rate = np.median([lap.rate for lap in laps])
    return [way, f"{rate:.0f}", *(f"{value:.2f}" for value in quantiles), dict(statuses)]


def _cpu(contest: _Contest, way: _Way, names: list[str]) -> list[str]:
    laps = [laps[way] for laps in contest.rounds]
    thousands = sum(len(lap.answers) for lap in laps) / 1000
    spent = [sum(lap.cpu_s[name] for lap in laps) * 1000 / thousands for name in names]
    return [way, *(f"{value:.0f}" for value in (*spent, sum(spent)))]


def _verdicts(contest: _Contest) -> Iterator[list[object]]:
    """Time counts where one asks, throughput where many do."""
    if contest.connections == 1:
        yield _verdict(contest, "adds to p50, ms", contest.added_ms(), TARGET_ADDED_MS, at_most=True)
    else:
        yield _verdict(contest, "of throughput", contest.throughputs(), TARGET_THROUGHPUT, at_most=False)


def _verdict(
    contest: _Contest, what: str, values: list[float], target: float, *, at_most: bool
) -> list[object]:
    spread = f"{min(values):.2f} to {max(values):.2f}"
    met = beside(float(np.median(values)), target, lambda value: f"{value:.2f}", at_most=at_most)
    return [*_place(contest), what, spread, *met]
