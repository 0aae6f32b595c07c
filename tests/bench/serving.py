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
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tests.bench.example import make_example
from tests.load import Answered, send_all
from tests.servers import Server, running

_NUM_NODES = 1797


@click.command("serving")
@click.option("--seconds", type=click.FloatRange(min=1), default=60, show_default=True, help="For each row.")
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 16, 64),
    show_default=True,
    help="Connections kept open; may be given several times.",
)
def serving_command(seconds: float, connections: tuple[int, ...]) -> None:
    """Requests of one node each, over connections that are kept open.

    Early is the slowest of the first 20 answers, over the median.
    """
    with TemporaryDirectory() as folder:
        archive, _, _ = make_example(Path(folder))
        noop = _pack_noop(archive, Path(folder))
        click.echo("| connections | handler | requests/s | of no-op | p50 ms | p99 ms | early | statuses |")
        click.echo("|---|---|---|---|---|---|---|---|")
        with running(Path(folder, "ts"), archive, noop) as server:
            for count in connections:
                bare = _measure(server, "noop", count, seconds)
                click.echo(_row("no-op", count, bare, bare, seconds))
                click.echo(
                    _row("graphsage", count, _measure(server, "graphsage", count, seconds), bare, seconds)
                )


def _measure(server: Server, model: str, connections: int, seconds: float) -> list[Answered]:
    return send_all(server.url(model), server.headers(), _until(time.monotonic() + seconds), connections)


def _until(deadline: float) -> Iterator[dict[str, Any]]:
    generator = random.Random(0)
    while time.monotonic() < deadline:
        yield {"node_id": generator.randrange(_NUM_NODES)}


def _row(name: str, connections: int, answers: list[Answered], bare: list[Answered], seconds: float) -> str:
    taken_ms = np.array([answer.seconds for answer in answers]) * 1000
    p50, p99 = np.quantile(taken_ms, [0.5, 0.99])
    statuses = dict(Counter(answer.status for answer in answers))
    return (
        f"| {connections} | {name} | {len(answers) / seconds:.0f} | {len(answers) / len(bare):.2f}"
        f" | {p50:.2f} | {p99:.2f} | {taken_ms[:20].max() / p50:.1f}x | {statuses} |"
    )


def _pack_noop(like: Path, work: Path) -> Path:
    """An archive of the no-op handler, with the `model-config.yaml` of another archive."""
    with zipfile.ZipFile(like) as archive:
        archive.extract("model-config.yaml", work)
    shutil.copy(Path(__file__).with_name("noop.py"), work)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", "noop"]
    command += ["--version", "1.0", "--handler", "noop.py", "--config-file", "model-config.yaml"]
    subprocess.run(command, cwd=work, env={**os.environ, "TMPDIR": str(work)}, check=True)
    return (work / "noop.mar").rename(work / "noop-1.0.mar")
