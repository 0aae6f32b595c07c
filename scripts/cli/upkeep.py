"""`hopserve graph compact` and `repair`: what keeps a graph that changes small and whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from handler.errors import LogUnavailable
from handler.graph.compaction import Compacted, compact
from handler.graph.home import GraphHome, sole_use
from handler.log.embedded import LmdbLog
from handler.log.opening import open_log
from handler.log.repair import Repaired, repair
from scripts.cli.options import EXISTING_FOLDER, Bars


@click.command("compact")
@click.argument("folder", type=EXISTING_FOLDER)
def compact_command(folder: Path) -> None:
    """Fold all that the log has into a new snapshot, and drop what nobody needs any more.

    Workers go on meanwhile, and move over to the new snapshot. Edges that are older than the graph's
    greatest age are left out.
    """
    home = GraphHome.read(folder)
    with closing(open_log(home.log, home.log_folder, home.graph_id)) as log:
        compacted = compact(home, log, progress=Bars())
    if compacted is None:
        click.echo(f"{folder}: nothing to fold: the snapshot is complete up to mutation {home.current_seq}")
    else:
        click.echo(f"{folder}: {_summary(compacted)}")


@click.command("repair")
@click.argument("folder", type=EXISTING_FOLDER)
def repair_command(folder: Path) -> None:
    """Cut a damaged log back to what of it is whole, and tell what is lost.

    The log beside the graph is meant; no process may serve the graph. Mutations that are lost must be sent
    again.
    """
    home = GraphHome.read(folder)
    if home.log is not None:
        raise LogUnavailable(f"{home.log}: only the log beside a graph can be repaired")
    if not home.log_folder.exists():
        raise LogUnavailable(f"{home.log_folder}: there is no log of mutations yet")
    with sole_use(home):
        repaired = repair(home.log_folder, home.graph_id)
        with closing(LmdbLog.open(home.log_folder, home.graph_id, writable=False)) as log:
            last_seq = log.last_seq()
    click.echo(f"{folder}: {_loss(repaired)}")
    if last_seq < home.current_seq:
        click.echo(
            f"{folder}: the snapshot has mutations up to {home.current_seq}, but the log ends with"
            f" {last_seq}: restore a copy of the log, or build the graph anew"
        )
        raise click.exceptions.Exit(1)


def _summary(compacted: Compacted) -> str:
    expired = f" ({compacted.num_expired} expired ones dropped)" if compacted.num_expired else ""
    removed = ", ".join(f"snapshot-{seq}" for seq in compacted.removed) or "no older snapshot"
    return (
        f"complete up to mutation {compacted.seq}: {compacted.num_nodes} nodes,"
        f" {compacted.num_edges} edges{expired}, {compacted.size_bytes / 1e6:.1f} MB;"
        f" removed {removed}; the log begins with mutation {compacted.log_first_seq}"
    )


def _loss(repaired: Repaired) -> str:
    if repaired.cut_from_seq is None:
        return f"the log is whole: {repaired.num_records} records"
    return (
        f"mutations {repaired.cut_from_seq} to {repaired.cut_through_seq} are lost;"
        f" {repaired.num_records} records are left"
    )
