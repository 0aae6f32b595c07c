"""`hopserve graph`: makes graph snapshots, shows them, and keeps them up."""

from __future__ import annotations

import click

from scripts.cli.build import build_command
from scripts.cli.lazy import LazyGroup
from scripts.cli.look import add_ordering_command, info_command, sample_command, verify_command
from scripts.cli.upkeep import compact_command, repair_command


@click.group(
    cls=LazyGroup,
    lazy={"pack": "scripts.cli.model:graph_pack_command", "push": "scripts.cli.push:push_command"},
)
def graph() -> None:
    """Make graph snapshots, look at them, and keep them up."""


for command in (
    build_command,
    info_command,
    verify_command,
    sample_command,
    add_ordering_command,
    compact_command,
    repair_command,
):
    graph.add_command(command)
