"""`scripts/bench`: measures this machine's Hopserve, as ratios within one run."""

from __future__ import annotations

from pathlib import Path

import click

from tests.bench.formats import formats_command
from tests.bench.gateway import gateway_command
from tests.bench.hosts import hosts_command
from tests.bench.live.command import live_command
from tests.bench.pipeline import pipeline_command
from tests.bench.precompute import precompute_command
from tests.bench.report.command import PARTS, run_report
from tests.bench.sampler import sampler_command
from tests.bench.serving import serving_command


@click.group(invoke_without_command=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: var/bench/TIME]")
@click.option("--quick", is_flag=True, help="A small graph and short turns, under two minutes in all.")
@click.option(
    "--max-edges",
    type=click.IntRange(min=1_000_000),
    default=10_000_000,
    show_default=True,
    help="Of the largest graph that is grown to; 100000000 takes minutes, and 20 GB of disk.",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Turns that each has.")
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Of each turn.")
@click.option(
    "--without", type=click.Choice(PARTS), multiple=True, help="A part to leave out; several times."
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where graphs are built for a while.  [default: a temporary folder]",
)
@click.pass_context
def bench(
    context: click.Context,
    *,
    out: Path | None,
    quick: bool,
    max_edges: int,
    rounds: int | None,
    seconds: float | None,
    without: tuple[str, ...],
    work: Path | None,
) -> None:
    """Measure all that is promised of speed, and write a report of it (Markdown, JSON and pictures).

    With a COMMAND, measure one thing more closely instead. Numbers say something only beside the others of
    the same run.
    """
    if context.invoked_subcommand is None:
        run_report(
            out,
            quick=quick,
            max_edges=max_edges,
            rounds=rounds,
            seconds=seconds,
            without=without,
            work=work,
        )


bench.add_command(formats_command)
bench.add_command(gateway_command)
bench.add_command(hosts_command)
bench.add_command(live_command)
bench.add_command(pipeline_command)
bench.add_command(precompute_command)
bench.add_command(sampler_command)
bench.add_command(serving_command)

if __name__ == "__main__":
    bench(prog_name="scripts/bench")
