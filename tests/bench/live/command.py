"""`scripts/bench live`: a graph that changes, beside the same graph at rest."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.bench.live.compaction import show_compaction
from tests.bench.live.ingest import show_ingest
from tests.bench.live.sampling import show_memory, show_sampling
from tests.bench.live.serving import serving

_PARTS = ("ingest", "sampling", "memory", "http", "visibility", "impact", "compaction")
_SERVED_PARTS = frozenset({"http", "visibility", "impact"})
_SERVED_EDGES = 1_000_000


@click.command("live")
@click.argument("parts", nargs=-1, type=click.Choice(_PARTS))
@click.option("--quick", is_flag=True, help="Small graphs and few repeats: only to see that all works.")
@click.option(
    "--edges",
    type=click.IntRange(100_000),
    default=10_000_000,
    show_default=True,
    help="Of the graph that is sampled and compacted.",
)
@click.option(
    "--rate", type=click.FloatRange(1), default=200, show_default=True, help="Queries a second, of `impact`."
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where graphs are built, and those of `sampling` kept.  [default: a temporary folder]",
)
def live_command(parts: tuple[str, ...], *, quick: bool, edges: int, rate: float, work: Path | None) -> None:
    """Measure PARTS of what a graph that changes costs; all of them without any.

    \b
    ingest      changes made durable, in one process
    http        changes made durable, through TorchServe
    sampling    two hops of ten with a tenth of the edges in memory, beside a snapshot of all
    memory      what each kind of change takes
    visibility  from the acknowledgement of a change until every worker counts it
    impact      latency of queries with changes coming, beside without
    compaction  a new snapshot, with a tenth and with all of the changes of `sampling`
    """  # noqa: D301 - click knows the backspace
    chosen = set(parts or _PARTS)
    edges = min(edges, 300_000) if quick else edges
    served = min(edges, _SERVED_EDGES)
    click.echo(
        f"{len(os.sched_getaffinity(0))} cores are shared by all that runs: Java, workers, and who asks\n"
    )
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        kept = work or root
        kept.mkdir(parents=True, exist_ok=True)
        if "ingest" in chosen:
            show_ingest(root, num_edges=served, turns=2 if quick else 8)
        if "sampling" in chosen:
            show_sampling(kept, num_edges=edges, rounds=60 if quick else 1000)
        if "memory" in chosen:
            show_memory(root, num_edges=served)
        if chosen & _SERVED_PARTS:
            _show_served(root, served, chosen, quick=quick, rate=rate)
        if "compaction" in chosen:
            show_compaction(root, num_edges=edges)


def _show_served(root: Path, num_edges: int, chosen: set[str], *, quick: bool, rate: float) -> None:
    with serving(root, num_edges) as bench:
        if "impact" in chosen:
            bench.show_impact(2 if quick else 8, pairs=1 if quick else 4, rate=rate)
        if "visibility" in chosen:
            bench.show_visibility(2 if quick else 12, connections=8)
        if "http" in chosen:
            bench.show_ingest(2 if quick else 5)
