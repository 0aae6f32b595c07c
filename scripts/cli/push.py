"""`hopserve graph push`: brings a graph into a Redis Cluster, from which several hosts serve it."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import click

from handler.errors import GraphUnavailable, LogGap, LogUnavailable
from handler.graph.cluster.layout import ClusterManifest, Keys, read_place
from handler.graph.follower import follow as follow_graph
from handler.graph.home import GraphHome, open_held
from handler.graph.opening import is_cluster
from handler.graph.ordering import STRATEGIES, Strategy
from handler.graph.sampling import Sampling
from handler.log.opening import open_log
from handler.settings import read_location
from scripts.cli.options import EXISTING_FOLDER, Bars

try:
    from handler.graph.cluster.mirror import Mirror, matching
    from handler.graph.cluster.push import graph_version, manifest_of, push
    from handler.graph.cluster.shards import Shards
except ImportError:
    raise GraphUnavailable("needs the package redis: pip install 'hopserve[redis]'") from None

_PAUSE_S = 0.02
_RETRY_S = 1.0


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
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with what changes in the graph, until an interrupt. The next time goes on from there.",
)
def push_command(
    folder: Path, place: str, strategy: Strategy | None, head: int, partitions: int, *, follow: bool
) -> None:
    """Bring the graph in FOLDER to PLACE, such as redis+cluster://HOST:6379/NAME, or env:NAME of a variable.

    HOST is any node of the cluster. What is served there under the same NAME goes on until all is there, and
    is then removed. A push that was interrupted goes on where it was.
    """
    place = read_location(place)
    if not is_cluster(place):
        raise click.BadParameter("expected redis+cluster://HOST:PORT/NAME", param_hint="PLACE")
    url, name = read_place(place)
    with ExitStack() as closed:
        shards = closed.enter_context(closing(Shards(url, timeout_s=30)))
        held = closed.enter_context(open_held(folder))
        if follow and held.home is None:
            raise click.UsageError(
                f"{folder} is a bare snapshot, which does not change: there is nothing to follow"
            )
        graph_id = "" if held.home is None else held.home.graph_id
        wanted = manifest_of(held.snapshot, graph_id, strategy, partitions, head)
        if follow and (found := matching(shards, name, wanted)) is not None:
            with suppress(LogGap):
                _follow(folder, shards, name, *found)
            click.echo(f"{name}: the log does not reach back to what the cluster has: pushing anew")
        manifest = push(
            held.snapshot,
            shards,
            name,
            graph_id=graph_id,
            strategy=strategy,
            head=head,
            partitions=partitions,
            progress=Bars(),
        )
        graph = manifest.graph
        click.echo(
            f"{name}: {graph.num_nodes:,} nodes and {graph.num_edges:,} edges of snapshot"
            f" {graph.snapshot_id}, by `{graph.ordering.strategy}`"
        )
        if follow:
            _follow(folder, shards, name, graph_version(manifest), manifest)
        elif held.home is not None and (later := _later(held.home)):
            click.echo(f"{folder}: {later} mutations of its log stay behind: `--follow` brings them, too")


def _later(home: GraphHome) -> int:
    """The mutations in a graph's log that its snapshot has not."""
    with closing(open_log(home.log, home.log_folder, home.graph_id)) as log:
        return max(0, log.last_seq() - home.current_seq)


def _follow(folder: Path, shards: Shards, name: str, version: str, manifest: ClusterManifest) -> None:
    """Bring over what changes; returns never.

    Raises:
        LogGap: see `Mirror`.
    """
    sampling = Sampling(strategy=manifest.graph.ordering.strategy)
    follower = follow_graph(folder, lambda graph: graph, sampling)
    with closing(follower), closing(Mirror(follower, shards, Keys(name, version), manifest)) as mirror:
        click.echo(f"{name}: follows the log from mutation {mirror.reached.seq} on")
        while True:
            try:
                if not mirror.step():
                    time.sleep(_PAUSE_S)
            except (GraphUnavailable, LogUnavailable) as error:
                click.echo(f"{name}: {error}; trying again", err=True)
                time.sleep(_RETRY_S)
