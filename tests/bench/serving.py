"""TorchServe end to end, beside a handler that does nothing under the same settings."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from gateway.tuning.load import Answered, send_all
from handler.metrics import BATCHES, REQUESTS, Metric
from tests.bench.example import make_example
from tests.servers import Server, running

NUM_NODES = 1797
_NOOP = "no-op"
# How the example is asked: for all that it says, and for the label alone.
_ASKED: dict[str, dict[str, Any]] = {
    "live": {"max_staleness_ms": 0},
    "stored": {},
    "stored, label": {"return": ["label"]},
}
WARM_UP_S = 5.0
_PUBLISHED_S = 2  # workers hand their counters over once a second


@click.command("serving")
@click.option("--seconds", type=click.FloatRange(min=1), default=20, show_default=True, help="At a time.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often each is asked, in turns: a machine that others use has better and worse times.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 16, 64),
    show_default=True,
    help="Connections kept open; may be given several times.",
)
def serving_command(seconds: float, rounds: int, connections: tuple[int, ...]) -> None:
    """Requests of one node each, over connections that are kept open.

    Live answers are computed, stored ones are proven to hold and come from the cache.

    Of the no-op handler: the median of the rounds, and the lowest and highest. Early is the slowest of the
    first 20 answers, over the median; batch is the mean number of requests that a worker answers at once.
    """
    with TemporaryDirectory() as folder:
        archive, _, _ = make_example(Path(folder))
        noop = pack_noop(archive, Path(folder))
        click.echo(
            "| connections | handler | requests/s | of no-op | p50 ms | p99 ms | early | batch | statuses |"
        )
        click.echo("|---|---|---|---|---|---|---|---|---|")
        with running(Path(folder, "ts"), archive, noop) as server:
            server.ask({"node_ids": list(range(NUM_NODES))})  # so that all are in the cache
            _round(server, max(connections), WARM_UP_S)  # Java compiles what it runs often
            for count in connections:
                measured = [_round(server, count, seconds) for _ in range(rounds)]
                for name in measured[0]:
                    click.echo(_row(name, count, seconds, measured))


@dataclass(frozen=True)
class _Measured:
    """What one handler was measured to do in one round."""

    answers: list[Answered]
    mean_batch: float | None = None


def _round(server: Server, connections: int, seconds: float) -> dict[str, _Measured]:
    measured = {_NOOP: _Measured(_measure(server, "noop", connections, seconds, {}))}
    for name, options in _ASKED.items():
        before = _Counted.now(server)
        answers = _measure(server, "graphsage", connections, seconds, options)
        measured[name] = _Measured(answers, _Counted.now(server).mean_batch_since(before))
    return measured


@dataclass(frozen=True)
class _Counted:
    """Requests and batches of requests that Hopserve's workers have answered so far."""

    requests: float
    batches: float

    @classmethod
    def now(cls, server: Server) -> _Counted:
        time.sleep(_PUBLISHED_S)
        text = server.metrics()
        return cls(_sum_of(REQUESTS, text), _sum_of(BATCHES, text))

    def mean_batch_since(self, before: _Counted) -> float:
        return (self.requests - before.requests) / (self.batches - before.batches)


def _sum_of(metric: Metric, text: str) -> float:
    """Over all labels; the last word of a line is the value."""
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(metric.name + "{"))


def _measure(
    server: Server, model: str, connections: int, seconds: float, options: dict[str, Any]
) -> list[Answered]:
    requests = requests_until(time.monotonic() + seconds, options)
    return send_all(server.url(model), server.headers(), requests, connections)


def requests_until(
    deadline: float, options: Mapping[str, Any], num_nodes: int = NUM_NODES, list_size: int | None = None
) -> Iterator[dict[str, Any]]:
    """Requests for random nodes, until a time of the monotonic clock.

    Args:
        num_nodes: of which the first so many are asked for; those of the example without it.
        list_size: nodes in each request; one that is no list without it.
    """
    generator = random.Random(0)
    while time.monotonic() < deadline:
        if list_size is None:
            yield {"node_id": generator.randrange(num_nodes), **options}
        else:
            yield {"node_ids": [generator.randrange(num_nodes) for _ in range(list_size)], **options}


def _row(name: str, connections: int, seconds: float, rounds: list[dict[str, _Measured]]) -> str:
    answers = [each for measured in rounds for each in measured[name].answers]
    ratios = [len(measured[name].answers) / len(measured[_NOOP].answers) for measured in rounds]
    taken_ms = np.array([answer.seconds for answer in answers]) * 1000
    p50, p99 = np.quantile(taken_ms, [0.5, 0.99])
    statuses = dict(Counter(answer.status for answer in answers))
    batches = [each for measured in rounds if (each := measured[name].mean_batch) is not None]
    return (
        f"| {connections} | {name} | {len(answers) / (seconds * len(rounds)):.0f}"
        f" | {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        f" | {p50:.2f} | {p99:.2f} | {taken_ms[:20].max() / p50:.1f}x"
        f" | {np.mean(batches) if batches else np.nan:.1f} | {statuses} |"
    )


def pack_noop(like: Path, work: Path) -> Path:
    """An archive of the no-op handler, with the `model-config.yaml` of another archive."""
    with zipfile.ZipFile(like) as archive:
        archive.extract("model-config.yaml", work)
    shutil.copy(Path(__file__).with_name("noop.py"), work)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", "noop"]
    command += ["--version", "1.0", "--handler", "noop.py", "--config-file", "model-config.yaml"]
    subprocess.run(command, cwd=work, env={**os.environ, "TMPDIR": str(work)}, check=True)
    return (work / "noop.mar").rename(work / "noop-1.0.mar")
