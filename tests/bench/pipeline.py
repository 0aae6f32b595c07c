"""Stage times of the pipeline in one process, without TorchServe."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch

from handler.graph.snapshot import Snapshot
from handler.metrics import STAGE_TIME, Counters
from handler.model.runtime import TorchScriptRuntime
from handler.service import Service
from handler.settings import Settings
from tests.bench.example import make_example

_BATCH_SIZES = (1, 8, 32, 64)


@click.command("pipeline")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=300, show_default=True, help="Batches per size."
)
def pipeline_command(rounds: int) -> None:
    """Time one process on one thread: digits, two hops of ten, 64 -> 64 -> 64."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        _, graph, export = make_example(Path(folder))
        counters = Counters()
        runtime = TorchScriptRuntime.load(export, torch.device("cpu"))
        service = Service(Snapshot.open(graph), runtime, Settings(graph=str(graph)), counters, "1.0")
        service.warm_up(max(_BATCH_SIZES))
        click.echo("Microseconds per request; early = slowest of the first 20 over the median\n")
        click.echo("| batch | median | p99 | early | stages |\n|---|---|---|---|---|")
        for size in _BATCH_SIZES:
            click.echo(_row(service, counters, size, rounds))


def _row(service: Service, counters: Counters, size: int, rounds: int) -> str:
    generator = np.random.default_rng(0)
    counters.drain()
    taken_us = []
    for _ in range(rounds):
        bodies = [b'{"node_id": %d}' % node for node in generator.integers(0, 1797, size)]
        started_ns = time.perf_counter_ns()
        service.answer(bodies)
        taken_us.append((time.perf_counter_ns() - started_ns) / 1000)
    stages = ", ".join(
        f"{labels[0]} {total_us / rounds / size:.1f}"
        for (metric, labels), total_us in counters.drain().items()
        if metric is STAGE_TIME
    )
    median, p99 = np.quantile(taken_us, [0.5, 0.99])
    early = max(taken_us[:20]) / median
    return f"| {size} | {median / size:.0f} | {p99 / size:.0f} | {early:.1f}x | {stages} |"
