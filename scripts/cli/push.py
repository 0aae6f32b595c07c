"""`hopserve graph push`: brings a graph into a Redis Cluster, from which several hosts serve it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from handler.errors import GraphUnavailable
from handler.graph.cluster.layout import read_place
from handler.graph.home import GraphHome
from handler.graph.layout import is_home
from handler.graph.opening import is_cluster
from handler.graph.ordering import STRATEGIES, Strategy
from handler.graph.snapshot import Snapshot
from handler.log.opening import open_log
from handler.settings import read_location
from scripts.cli.options import EXISTING_FOLDER, Bars

try:
    from handler.graph.cluster.push import push
    from handler.graph.cluster.shards import Shards
except ImportError:
    raise GraphUnavailable("needs the package redis: pip install 'hopserve[redis]'") from None


@click.command("push")
@click.argument("folder", type=EXISTING_FOLDER)
@click.argument("place")
@click.option(
    "--ordering",
    "strategy",
    type=click.Choice(STRATEGIES),
    help="By which the model samples, if the graph stores several.  [default: that of its rows]",
)
@click.option(
    "--head",
    type=click.IntRange(1, 65536),
    default=32,
    show_default=True,
    help="Neighbors of each node that are read at once: as many as the model samples at most, or more.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 16384),
    default=256,
    show_default=True,
    help="Parts that can move between masters; a request asks each that it needs once.",
)
def push_command(folder: Path, place: str, strategy: Strategy | None, head: int, partitions: int) -> None:
    """Bring the graph in FOLDER to PLACE, such as redis+cluster://HOST:6379/NAME, or env:NAME of a variable.

    HOST is any node of the cluster. What is served there under the same NAME goes on until all is there, and
    is then removed. A push that was interrupted goes on where it was.
    """
    place = read_location(place)
    if not is_cluster(place):
        raise click.BadParameter("expected redis+cluster://HOST:PORT/NAME", param_hint="PLACE")
    snapshot = Snapshot.open(folder)
    if is_home(folder) and (later := _later(folder, snapshot)):
        click.echo(f"{folder}: {later} mutations of its log stay behind: `hopserve graph compact` first")
    url, name = read_place(place)
    with closing(Shards(url, timeout_s=30)) as shards:
        manifest = push(
            snapshot, shards, name, strategy=strategy, head=head, partitions=partitions, progress=Bars()
        )
    graph = manifest.graph
    click.echo(
        f"{name}: {graph.num_nodes:,} nodes and {graph.num_edges:,} edges of snapshot {graph.snapshot_id}, by"
        f" `{graph.ordering.strategy}`"
    )


def _later(folder: Path, snapshot: Snapshot) -> int:
    """The mutations in a graph's log that its snapshot has not."""
    home = GraphHome.read(folder)
    with closing(open_log(home.log, home.log_folder, home.graph_id)) as log:
        return max(0, log.last_seq() - snapshot.manifest.seq)
