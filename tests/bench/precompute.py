"""Precomputing all nodes, beside asking the served model for each."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from archive.export.export import export_model
from archive.pack import PackPlan, pack
from archive.precompute.run import PrecomputePlan, precompute
from archive.precompute.similar import build_index
from archive.reading import unpacked
from gateway.tuning.load import send_all
from handler.cache.table import Table, tables_in
from tests.bench.pipeline import PLAN, Sage, make_graph
from tests.servers import running

_NUM_ASKED = 20_000


@click.command("precompute")
@click.option("--edges", type=click.IntRange(10_000), default=1_000_000, show_default=True)
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--connections", type=click.IntRange(min=1), multiple=True, default=(1, 64), show_default=True)
def precompute_command(edges: int, processes: int, connections: tuple[int, ...]) -> None:
    """Two layers of ten neighbors, 128 -> 256 -> 64; microseconds for each node, and as a ratio.

    The served model is asked for one node at a time, live, over connections that are kept open.
    """
    with TemporaryDirectory() as root:
        folder = Path(root)
        graph = make_graph(folder / "graph", edges)
        export_model(Sage(), PLAN, folder / "export")
        plan = PackPlan("sage", "1.0", model_folder=folder / "export", graph_folder=folder / "graph")
        archive = pack(plan, folder / "store")
        with unpacked(folder / "store", "sage", "1.0") as model:
            started = time.perf_counter()
            precompute(model, PrecomputePlan(num_processes=processes))
            each_us = (time.perf_counter() - started) / graph.num_nodes * 1e6
            table = Table.open(tables_in(folder / "graph" / "embeddings" / "sage" / "1.0")[0])
            started = time.perf_counter()
            build_index(table, "cosine", model.signature.embedding_dim)
            index_us = (time.perf_counter() - started) / graph.num_nodes * 1e6
        click.echo("| how | us per node | of precomputing |")
        click.echo("|---|---|---|")
        click.echo(f"| precomputed, {graph.num_nodes} nodes | {each_us:.1f} | 1.0x |")
        click.echo(f"| index by the cosine, of as many | {index_us:.1f} | {index_us / each_us:.1f}x |")
        nodes = np.random.default_rng(0).integers(0, graph.num_nodes, _NUM_ASKED).tolist()
        with running(folder / "ts", archive) as server:
            for count in connections:
                requests = [{"node_id": node, "max_staleness_ms": 0} for node in nodes]
                requests = requests if count > 1 else requests[: _NUM_ASKED // 10]
                started = time.perf_counter()
                answers = send_all(server.url("sage"), server.headers(), requests, count)
                taken_us = (time.perf_counter() - started) / len(answers) * 1e6
                assert {answer.status for answer in answers} == {200}
                click.echo(f"| served, {count} connections | {taken_us:.1f} | {taken_us / each_us:.1f}x |")
