"""`hopserve precompute`: the outputs of all nodes, before they are asked for."""

from __future__ import annotations

from pathlib import Path

import click

from archive.precompute.run import PrecomputePlan, precompute
from archive.reading import unpacked
from handler.cache.similar import METRICS, Metric
from scripts.cli.options import ANY_PATH, EXISTING_FOLDER, Bars, say


class Shard(click.ParamType[tuple[int, int]]):
    """One of several parts, counted from 0."""

    name = "I/K"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, slash, count = str(value).partition("/")
        if not (slash and number.isdigit() and count.isdigit() and int(number) < int(count)):
            self.fail(f"{value!r} is not one of several shards, such as 0/4 to 3/4", param, ctx)
        return int(number), int(count)


@click.command("precompute")
@click.argument("name")
@click.option("--model-version", help="Version.  [default: the only one in the store]")
@click.option("--store", type=ANY_PATH, default=Path("model_store"), show_default=True, help="Model store.")
@click.option("--graph", type=EXISTING_FOLDER, help="Instead of the graph that the archive names.")
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="On this machine."
)
@click.option(
    "--shard",
    type=Shard(),
    default=(0, 1),
    help="Compute only this share of the nodes: 0/4 to 3/4 on four machines that share the graph's folder, or"
    " that copy the files of each stage to each other.",
)
@click.option("--chunk-nodes", type=click.IntRange(min=1), help="Nodes at once.  [default: about 128 MB]")
@click.option("--restart", is_flag=True, help="Begin anew, instead of going on where a run was ended.")
@click.option(
    "--index",
    "indexes",
    type=click.Choice([*METRICS, "none"]),
    multiple=True,
    default=("cosine",),
    show_default=True,
    help="By what similar nodes are to be found; may be given several times.",
)
def precompute_command(
    name: str,
    model_version: str | None,
    store: Path,
    graph: Path | None,
    processes: int,
    shard: tuple[int, int],
    chunk_nodes: int | None,
    restart: bool,
    indexes: tuple[Metric, ...],
) -> None:
    """Compute the outputs of all nodes by the packed model NAME, and put them where workers find them.

    The nodes of the snapshot that counts are computed layer by layer, with the samples that are served.
    Mutations since that snapshot are not in it: `hopserve graph compact` first. What they touch is computed
    when it is asked for. A run that was ended goes on where it was, by the same command. Where all is
    computed already, only indexes that are missing are made.
    """
    metrics = tuple(metric for metric in METRICS if metric in indexes)
    plan = PrecomputePlan(processes, *shard, chunk_nodes, restart, metrics)
    with unpacked(store, name, model_version, graph) as model:
        try:
            table = precompute(model, plan, Bars())
        except KeyboardInterrupt:
            say("stopped: the same command goes on from here")
            raise
    if table is not None:
        click.echo(f"{table}: all nodes are precomputed for {model.name} {model.version}")
