"""`scripts/bench`: measures this machine's Hopserve, as ratios within one run."""

from __future__ import annotations

import click

from tests.bench.formats import formats_command
from tests.bench.gateway import gateway_command
from tests.bench.live.command import live_command
from tests.bench.pipeline import pipeline_command
from tests.bench.precompute import precompute_command
from tests.bench.sampler import sampler_command
from tests.bench.serving import serving_command


@click.group()
def bench() -> None:
    """Measure; the numbers say something only beside the others of the same run."""


bench.add_command(formats_command)
bench.add_command(gateway_command)
bench.add_command(live_command)
bench.add_command(pipeline_command)
bench.add_command(precompute_command)
bench.add_command(sampler_command)
bench.add_command(serving_command)

if __name__ == "__main__":
    bench(prog_name="scripts/bench")
